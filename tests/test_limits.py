"""What limits a time, on literals; and what the allocator does, for real."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from bench import cli
from bench.limits import allocator_note, allocator_warning, limit, roofline_warning
from bench.machine import memory
from bench.model import Metric, load_run

FAULT = 0.5e-6


def of(**values: float) -> dict[str, Metric]:
    return {name: Metric(name, "s", ((value,),) * 6) for name, value in values.items()}


def test_a_small_kernel_is_launch_bound_and_a_large_one_device_bound_with_both_figures() -> None:
    small = limit(of(latency=30e-6, device=2e-6, dispatch=11e-6), FAULT)
    assert small == "launch-bound: enqueueing a call takes 11.0 µs, the GPU is busy with it for 2.00 µs"
    assert limit(of(latency=1e-3, device=9e-4, dispatch=11e-6), FAULT).startswith("device-bound")


def test_faults_that_take_a_fifth_of_the_time_bind_it() -> None:
    bound = limit(of(latency=16e-3, page_faults=8097.0), FAULT)
    assert bound == "page-fault-bound: 8,097 page faults a call, about 4.05 ms of 16.0 ms"
    assert limit(of(latency=16e-3, page_faults=100.0), FAULT) == ""
    assert limit(of(latency=2e-3), FAULT) == ""


def test_the_default_allocator_is_warned_of_with_what_the_warm_one_would_save() -> None:
    metrics = of(latency=16e-3, page_faults=8097.0)
    assert allocator_warning(metrics, "default", FAULT)[0].endswith("`allocator: warm` would save about 4.05 ms")
    assert allocator_warning(metrics, "warm", FAULT) == ()
    assert allocator_warning(of(latency=16e-3, page_faults=3.0), "default", FAULT) == ()


def test_the_warm_allocator_notes_what_the_default_one_would_add() -> None:
    assert "about 2.00 ms a call" in allocator_note(4096 * 4000, 2e-3, "warm", FAULT)[0]
    assert allocator_note(4096 * 4000, 2e-3, "default", FAULT) == ()
    assert allocator_note(1000, 1e-9, "warm", FAULT) == ()


def test_more_bytes_than_the_device_can_move_are_impossible() -> None:
    assert "2.0 times the bandwidth" in roofline_warning(1e-3, 2e9, 1e12)[0]
    assert roofline_warning(1e-3, 1e9, 1e12) == ()


def test_denormal_numbers_are_counted_and_zeros_are_not() -> None:
    tiny, zero, usual = torch.full((100,), 1e-40), torch.zeros(100), torch.randn(100)
    assert memory.denormal_share([usual, zero]) == 0
    assert memory.denormal_share([usual, torch.cat([tiny, usual, usual, usual])]) == pytest.approx(0.25)
    assert memory.denormal_share([torch.arange(5)]) == 0


def test_a_page_fault_costs_something_and_a_copy_has_a_bandwidth() -> None:
    assert 1e-8 < memory.page_fault_seconds() < 1e-4
    assert 1e8 < memory.bandwidth(torch.device("cpu"), 1) < 1e13


@pytest.mark.parametrize(("allocator", "faults"), [("default", (16_000, 40_000)), ("warm", (0, 200))])
def test_a_large_output_costs_pages_under_the_default_allocator_alone(
    allocator: str, faults: tuple[int, int], tmp_path: Path
) -> None:
    group = {"layer": "vecadd", "axes": {"length": 1 << 24, "threads": 1, "direction": "inference"}}
    policy = {"allocator": allocator, "seconds": 0.1, "min_rounds": 1}
    (tmp_path / "suite.yaml").write_text(json.dumps({"policy": policy, "groups": [group]}), encoding="utf-8")
    assert cli.command(["run", str(tmp_path / "suite.yaml"), "--out", str(tmp_path / "run")]) == 0
    (measurement,) = load_run(tmp_path / "run").measurements
    metric = measurement.metric("page_faults")
    assert metric is not None
    assert faults[0] <= min(metric.lows) <= faults[1]  # 64 MiB are 16,384 pages
    assert any("warm` would save" in text for text in measurement.warnings) == (allocator == "default")
    assert any("default allocator" in text for text in measurement.notes) == (allocator == "warm")
