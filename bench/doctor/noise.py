"""The A/A run: identical variants through the real runner, and what their differences say of this machine."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bench import runner, stats
from bench.doctor import findings
from bench.doctor.findings import Finding, Outcome, Twins
from bench.model import (
    Block,
    Case,
    Direction,
    Measurement,
    Planned,
    Policy,
    Run,
    Status,
    Suite,
    Verdict,
    load_run,
)

Tell = Callable[[str], None]

LAYERS = {"ROLL": "roll of 4 KiB", "COPY": "copy of 4 MiB", "CONV": "unfold+matmul at 64x64"}
TWINS = ("eager", "twin_1", "twin_2", "twin_3")  # as in selftest_layers, which needs torch
LEAST = 2  # repeats


def suite(devices: Sequence[str], policy: Policy) -> Suite:
    """A block for every device and layer."""
    blocks = [_block(layer, device) for device in devices for layer in LAYERS]
    return Suite("self-test", policy, tuple(blocks))


def _block(layer: str, device: str) -> Block:
    name = f"bench.selftest_layers:{layer}"
    cases = [Case(name, variant, (), "float32", device, 1, Direction.INFERENCE) for variant in TWINS]
    return Block(TWINS[0], tuple(map(Planned, cases)))


def repeat(folder: Path, devices: Sequence[str], *, seconds: float, deadline: float, tell: Tell) -> Iterator[Run]:
    """Run the suite in fresh processes, at least twice, for as long as another run ends before `deadline`.

    `seconds` is the sampling time a variant, `deadline` a time.monotonic(). A run with a failure in it is the last.
    """
    longest, number = 0.0, 0
    while number < LEAST or time.monotonic() + longest < deadline:
        number += 1
        start = time.monotonic()
        path = folder / str(number)
        path.mkdir()
        policy = Policy(seed=number, seconds=seconds, warmup_seconds=1.0, timeout=15.0)
        progress = _Told(number, tell)
        runner.run(suite(devices, policy), path, stop_rule=stats.settled, progress=progress)
        run = load_run(path)
        yield run
        if any(measurement.status is not Status.OK for measurement in run.measurements):
            return
        longest = max(longest, time.monotonic() - start)


class _Told:
    """A runner.Progress in a line."""

    def __init__(self, number: int, tell: Tell) -> None:
        self._what, self._tell = f"A/A run {number}", tell

    def preparing(self, case: Case) -> None:
        if case.variant == TWINS[0]:
            self._tell(f"{self._what}: {label(case)}")

    def sampled(self, block: Block, rounds: int, lows: dict[str, float]) -> None:
        pass

    def finished(self, measurement: Measurement) -> None:
        pass


def label(case: Case) -> str:
    """A case's name in the self-test's table."""
    name = LAYERS[case.layer.rpartition(":")[2]]
    return name if case.device == "cpu" else f"{name} on {case.device}"


def judge(runs: Sequence[Run], same_within: float) -> tuple[list[Finding], list[Twins]]:
    """A finding for every case, one for the false verdicts and one for the page faults of the copy; and the data."""
    found: list[Finding] = []
    twins: list[Twins] = []
    for block in runs[0].header.suite.blocks:
        blocks = [_measured(run, block) for run in runs]
        bad = next((one for rows in blocks for one in rows if one.status is not Status.OK), None)
        if bad is not None:
            outcome: Outcome = "skip" if bad.status is Status.SKIPPED else "fail"
            found.append(Finding(f"A/A {label(bad.case)}", outcome, detail=f"{bad.status}: {bad.reason}"))
            continue
        result = compare(blocks, same_within)
        twins.append(result)
        found.append(findings.noise(result, same_within))
        if block.setting.startswith("bench.selftest_layers:COPY") and blocks[0][0].case.device == "cpu":
            found.append(findings.warm_faults(_faults(blocks)))
    return [*found, findings.false_verdicts(twins)], twins


def compare(blocks: Sequence[Sequence[Measurement]], same_within: float) -> Twins:
    """One case's blocks, each with the baseline first; by device time where there is one. All must be ok."""
    name = "device" if blocks[0][0].metric("device") else "latency"
    comparisons, false_blocks, centres = [], 0, []
    for baseline, *others in blocks:
        base = baseline.metric(name)
        assert base is not None  # ok, and on the same device as the first
        centres.append(stats.summarise(base.lows).centre)
        pairs = [stats.compare(metric, base, same_within) for one in others if (metric := one.metric(name))]
        compared = [pair for pair in pairs if pair is not None]
        comparisons += compared
        false_blocks += any(map(_false, compared))
    return Twins(
        label(blocks[0][0].case),
        name,
        statistics.median(centres),
        ratios=tuple(math.log(one.speedup) for one in comparisons),
        half_widths=tuple(map(_half_width, comparisons)),
        verdicts=len(comparisons),
        false=sum(map(_false, comparisons)),
        blocks=len(blocks),
        false_blocks=false_blocks,
    )


def _half_width(comparison: stats.Comparison) -> float | None:
    return math.log(comparison.interval[1] / comparison.interval[0]) / 2 if comparison.interval else None


def _false(comparison: stats.Comparison) -> bool:
    return comparison.verdict in (Verdict.FASTER, Verdict.SLOWER)


def _measured(run: Run, block: Block) -> list[Measurement]:
    return [one for one in run.measurements if one.case.setting == block.setting]


def _faults(blocks: Sequence[Sequence[Measurement]]) -> float:
    metrics = [one.metric("page_faults") for rows in blocks for one in rows]
    return statistics.median(low for metric in metrics if metric for low in metric.lows)
