"""Does the warm-up outlast what a layer needs to settle?  python -m experiments.warmup

Layers three times as slow for their first 200 calls, at once (`step`) or less and less (`slope`), and a scripted one,
whose profiling executor recompiles it in its first calls. The first sample may be 1.5 times the median at most, and
the centre must be that of the settled layer.
"""

from __future__ import annotations

import statistics

from bench import stats
from bench.model import Case, Policy
from experiments.cases import case
from experiments.common import Quiet, Sampler, fresh, record


def measured(what: Case) -> dict[str, object]:
    """In a fresh process: the warm-up, the first sample, the centre."""
    sampler = Sampler(what, Policy())
    metric = sampler.until_settled()
    result = sampler.session.finish()
    first_call, calls, seconds = (result.metric(name) for name in ("first_call", "warmup_calls", "warmup"))
    assert first_call and calls and seconds  # noqa: PT018 - all or none
    every = [value for values in metric.samples for value in values]
    return {
        "first call us": first_call.lows[0] * 1e6,
        "warm-up calls": calls.lows[0],
        "warm-up s": seconds.lows[0],
        "rounds": len(metric.lows),
        "first sample / median": every[0] / statistics.median(every),
        "centre us": stats.summarise(metric.lows).centre * 1e6,
        "warning": "; ".join(text for text in result.warnings if "faster" in text or "steady" in text)[:40],
    }


def main() -> None:
    """Every layer in a process of its own."""
    quiet, rows = Quiet(), []
    cases = {
        f"{shape} of 200 calls, {microseconds / 1000:g} ms": case(
            "SETTLES", microseconds=float(microseconds), calls=200, shape=shape
        )
        for shape in ("step", "slope")
        for microseconds in (20, 100, 500, 2000, 10000)
    }
    cases["scripted"] = case("SCRIPTED")
    cases["scripted, forward+backward"] = case("SCRIPTED", direction="forward_backward")
    for name, what in cases.items():

        def take(what: Case = what) -> dict[str, object]:
            with fresh("warm") as process:
                return process.submit(measured, what).result()

        rows.append({"layer": name, **quiet.take(take)})
    record("warmup", quiet, rows)


if __name__ == "__main__":
    main()
