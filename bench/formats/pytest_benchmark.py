"""A run as the JSON of pytest-benchmark, for `pytest-benchmark compare` and what else reads it.

Only measured cases: the format has no place for the others. A round is one value, the lowest of its slots.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from bench.model import Measurement, Metric, Run, show_value
from bench.rows import COMPARED

FILE = "pytest-benchmark.json"
VERSION = "5.1.0"  # of pytest-benchmark, whose layout this is


def render(run: Run, plots: Sequence[Path] = ()) -> str:
    """Strict JSON; times in seconds a call. The group of a benchmark is its setting, its parameter the variant."""
    facts = run.header.environment
    content = {
        "machine_info": _machine(facts),
        "commit_info": {"project": "layerbench", **_commit(facts.get("git") or {})},
        "benchmarks": list(_benchmarks(run)),
        "datetime": run.header.started,
        "version": VERSION,
    }
    return msgspec.json.format(msgspec.json.encode(content)).decode()


def _benchmarks(run: Run) -> Iterator[dict[str, Any]]:
    for measurement in run.measurements:
        for name in COMPARED:
            metric = measurement.metric(name)
            values = [value for value in metric.lows if math.isfinite(value)] if metric else []
            if metric and values:
                yield _benchmark(run, measurement, metric, values)


def _benchmark(run: Run, measurement: Measurement, metric: Metric, values: list[float]) -> dict[str, Any]:
    case, policy = measurement.case, run.header.suite.policy
    suffix = "" if metric.name == "latency" else f" ({metric.name})"
    return {
        "group": case.setting + suffix,
        "name": case.id + suffix,
        "fullname": case.id + suffix,
        "params": {name: show_value(value) for name, value in case.params} | {"variant": case.variant},
        "param": case.variant,
        "extra_info": {
            "metric": metric.name,
            "clock": metric.clock,
            "error": measurement.error,
            "warnings": measurement.warnings,
        },
        "options": {
            "disable_gc": True,
            "timer": metric.clock,
            "min_rounds": policy.min_rounds,
            "max_time": policy.seconds,
            "min_time": policy.slot,
            "warmup": True,
        },
        "stats": _stats(values),
    }


def _stats(values: list[float]) -> dict[str, Any]:
    data = np.sort(values)
    mean, deviation = statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0
    lower, middle, upper = (float(value) for value in np.quantile(data, [0.25, 0.5, 0.75]))
    fence = 1.5 * (upper - lower)
    inside = data[(data >= lower - fence) & (data <= upper + fence)]
    far, very_far = int(np.sum(np.abs(data - mean) > deviation)), len(data) - len(inside)
    return {
        "min": float(data[0]),
        "max": float(data[-1]),
        "mean": mean,
        "stddev": deviation,
        "rounds": len(values),
        "median": middle,
        "iqr": upper - lower,
        "q1": lower,
        "q3": upper,
        "iqr_outliers": very_far,
        "stddev_outliers": far,
        "outliers": f"{far};{very_far}",
        "ld15iqr": float(inside[0]),
        "hd15iqr": float(inside[-1]),
        "ops": 1 / mean,
        "total": math.fsum(values),
        "data": values,
        "iterations": 1,
    }


def _machine(facts: dict[str, Any]) -> dict[str, Any]:
    software, chip = facts.get("software") or {}, facts.get("cpu") or {}
    return {
        "node": facts.get("fingerprint"),
        "processor": chip.get("model"),
        "machine": software.get("machine"),
        "python_implementation": software.get("implementation"),
        "python_version": software.get("python"),
        "release": software.get("kernel"),
        "system": software.get("os"),
        "cpu": {"brand_raw": chip.get("model"), "count": chip.get("logical")},
    }


def _commit(git: dict[str, Any]) -> dict[str, Any]:
    return {"id": git.get("commit"), "dirty": git.get("dirty"), "time": None, "author_time": None, "branch": None}
