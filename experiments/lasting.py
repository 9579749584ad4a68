"""What do verdicts say of noise that lasts over rounds?  python -m experiments.lasting

Simulated rounds of a variant that is as fast as its baseline, whose noise resembles that of the round before, sampled
until the stop rule holds. Needs no quiet machine.
"""

from __future__ import annotations

import math

import numpy as np

from bench import stats
from bench.model import Metric, Policy, Verdict
from experiments.common import Quiet, record

TRIALS, LONGEST = 150, 60  # runs of each kind, and rounds of the longest


def trial(random: np.random.Generator, alike: float, noise: float) -> tuple[bool, bool, int]:
    """Whether the interval holds 1, whether the verdict is false, and the rounds it took."""
    logs, level = [], random.normal()
    for _ in range(LONGEST):
        logs.append(noise * level)
        level = alike * level + math.sqrt(1 - alike * alike) * random.normal()
    for n in range(Policy().min_rounds, LONGEST + 1):
        variant = Metric("latency", "s", tuple((1e-3 * math.exp(log),) for log in logs[:n]))
        baseline = Metric("latency", "s", ((1e-3,),) * n)
        if stats.settled(variant, baseline, Policy()):
            break
    comparison = stats.compare(variant, baseline, Policy().same_within)
    assert comparison is not None
    assert comparison.interval is not None
    low, high = comparison.interval
    return low <= 1 <= high, comparison.verdict in (Verdict.FASTER, Verdict.SLOWER), n


def main() -> None:
    """A row a kind of noise."""
    quiet = Quiet()
    record("lasting", quiet, quiet.take(kinds, tries=1))


def kinds() -> list[dict[str, float]]:
    """What comes of each."""
    rows = []
    for alike in (0.0, 0.4, 0.8, 0.9):
        for noise in (0.02, 0.06):
            random = np.random.default_rng(1)
            holds, false, rounds = zip(*(trial(random, alike, noise) for _ in range(TRIALS)), strict=True)
            rows.append({
                "correlation of neighbours": alike, "noise": noise, "interval holds 1": sum(holds) / TRIALS,
                "false verdicts": sum(false) / TRIALS, "rounds": sum(rounds) / TRIALS,
            })  # fmt: skip
    return rows


if __name__ == "__main__":
    main()
