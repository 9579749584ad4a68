"""Synthetic runs for tests: seeded noise around planted times, every status, warnings, and a GPU-like layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bench.model import (
    SCHEMA,
    Block,
    Case,
    Direction,
    Header,
    Measurement,
    Metric,
    Planned,
    Policy,
    Run,
    Status,
    Suite,
    Value,
)

ENVIRONMENT: dict[str, Any] = {
    "fingerprint": "cpu-2x-test",
    "hardware": {"cpu": "Example CPU <9000>", "cores": 2, "limits": {"cpu quota": 2.0, "memory": None}},
    "software": {"python": "3.11.2", "torch": "2.13.0", "flags": ["tf32 off", "denormals kept"]},
    "git": {"commit": "0123abc", "dirty": True},
}


def case(
    layer: str = "shift",
    variant: str = "eager",
    direction: str = "forward",
    device: str = "cpu",
    threads: int = 2,
    dtype: str = "float32",
    **params: Value,
) -> Case:
    return Case(layer, variant, tuple(params.items()), dtype, device, threads, Direction(direction))


def metric(
    centre: float,
    *,
    name: str = "latency",
    unit: str = "s",
    rounds: int = 20,
    noise: float = 0.01,
    seed: int = 0,
    clock: str = "host",
    about: str = "",
) -> Metric:
    """Rounds of three values whose lowest scatter around `centre`."""
    random = np.random.default_rng(seed)
    lows = centre * np.exp(noise * random.standard_normal(rounds))
    return Metric(name, unit, tuple((low * 1.2, low, low * 1.1) for low in map(float, lows)), clock, about)


def ok(what: Case, seconds: float | Metric, *more: Metric, error: float | None = 2e-7, **fields: Any) -> Measurement:
    latency = seconds if isinstance(seconds, Metric) else metric(seconds, seed=len(what.id))
    return Measurement(what, Status.OK, metrics=(latency, *more), error=error, bound=1e-5, **fields)


def run_of(
    *measurements: Measurement,
    baseline: str = "eager",
    expect: Mapping[str, Status] | None = None,
    missing: Sequence[Case] = (),
    problems: tuple[str, ...] = (),
    name: str = "synthetic",
    **policy: Any,
) -> Run:
    """A run whose suite has a block per setting. `expect` is by variant; `missing` cases are planned only."""
    expect = expect or {}
    settings: dict[str, list[Planned]] = {}
    for one in [*(measurement.case for measurement in measurements), *missing]:
        settings.setdefault(one.setting, []).append(Planned(one, expect.get(one.variant, Status.OK)))
    suite = Suite(name, Policy(**policy), tuple(Block(baseline, tuple(cases)) for cases in settings.values()))
    header = Header(SCHEMA, "0.1.0", "2026-01-02T03:04:05Z", suite, dict(ENVIRONMENT))
    done = {measurement.case.id: measurement for measurement in measurements}
    return Run(header, tuple(done[key] for key in suite.cases() if key in done), problems)


def showcase() -> Run:
    """Several layers, devices and directions, a swept parameter, every status, warnings, an unheard-of metric."""
    return run_of(
        *_swept_layer(),
        *_gpu_layer(),
        *_wrong_layer(),
        missing=[case("Слой-β", "eager", "inference", n=8)],
        expect={"trace_unchecked": Status.INCORRECT},
        name="showcase",
    )


def _swept_layer() -> list[Measurement]:
    speeds = {"eager": 1.0, "script": 0.98, "native": 0.31, "custom_op": 0.22}
    found = []
    for direction in ("forward", "forward_backward"):
        for size in (64, 256, 1024, 4096):
            for variant, factor in speeds.items():
                what = case("unfold_conv2d", variant, direction, size=size, kernel=(3, 3), bias=True)
                seconds = (8e-6 + 3e-8 * size) * factor * (3 if direction == "forward_backward" else 1)
                warnings = ("page faults: 812 a call; the default allocator would be slower",) if size == 4096 else ()
                noise = 0.08 if variant == "script" else 0.01
                latency = metric(seconds, noise=noise, seed=size + len(variant))
                first = metric(seconds * 900, name="first_call", rounds=1)
                found.append(ok(what, latency, first, warnings=warnings, notes=("warm-up ended at a plateau",)))
            what = case("unfold_conv2d", "compile", direction, size=size, kernel=(3, 3), bias=True)
            found.append(Measurement(what, Status.SKIPPED, "no C++ compiler: <script>alert(1)</script> | install g++"))
    return found


def _gpu_layer() -> list[Measurement]:
    found = []
    for variant, latency, device in (
        ("eager", 1550e-6, 638e-6),
        ("native", 55e-6, 34e-6),
        ("custom_op", 26e-6, 13.3e-6),
    ):
        busy = metric(device, name="device", clock="events", seed=7)
        energy = metric(0.35 * device * 700, name="energy", unit="J", seed=8, about="energy of one call, from NVML")
        faults = metric(0.0, name="page_faults", unit="1")
        notes = ("clocks were locked at 1980 MHz",)
        found.append(ok(case("shift", variant, device="cuda", k=1), latency, busy, energy, faults, notes=notes))
    return [
        *found,
        Measurement(
            case("shift", "script", device="cuda", k=1), Status.FAILED, "RuntimeError: out of memory\n  at 3 GiB"
        ),
    ]


def _wrong_layer() -> list[Measurement]:
    wrong = Measurement(
        case("Слой-β", "trace_unchecked", n=8),
        Status.INCORRECT,
        "output differs for negated input",
        error=0.7,
        bound=1e-5,
    )
    surprise = Measurement(
        case("Слой-β", "custom_op", n=8), Status.INCORRECT, "output has NaN", error=float("inf"), bound=1e-5
    )
    thin = ok(
        case("Слой-β", "native", n=8), metric(1.1e-6, rounds=1), warnings=("stopped at the time limit after 1 round",)
    )
    return [ok(case("Слой-β", "eager", n=8), 1e-6), wrong, surprise, thin]
