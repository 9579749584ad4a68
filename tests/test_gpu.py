"""Clocks and whole runs on a GPU: `pytest -m gpu`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from bench import cli
from bench.model import load_run
from bench.timers import EventTimer, HostTimer, timers_for

pytestmark = pytest.mark.gpu
DEVICE = torch.device("cuda")


class Work:
    """A call around a function; `fresh` when each must be prepared on its own."""

    def __init__(self, function: object, *, fresh: bool = False) -> None:
        self.function, self.fresh = function, fresh

    def prepare(self) -> None:
        pass

    def __call__(self) -> None:
        self.function()  # type: ignore[operator]


def cycles_per_second() -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for _ in range(2):
        start.record()
        torch.cuda._sleep(20_000_000)
        end.record()
        end.synchronize()
    return float(20_000_000 / (start.elapsed_time(end) * 1e-3))


@pytest.mark.parametrize("microseconds", [20, 100, 1000])
@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("calls", [1, 10, 100])
def test_a_kernel_of_known_length_is_timed_right(microseconds: int, fresh: bool, calls: int) -> None:
    cycles = int(microseconds * 1e-6 * cycles_per_second())
    work = Work(lambda: torch.cuda._sleep(cycles), fresh=fresh)
    timer = EventTimer(DEVICE)
    measured = min(timer.window(work, calls) for _ in range(5)) * 1e6
    # A launch has a length of its own, which the spin does not know: about 1 us.
    assert measured == pytest.approx(microseconds, abs=max(0.03 * microseconds, 2.0))
    assert timer.doubts == ()


def test_a_tiny_kernel_takes_less_on_the_device_than_on_the_host() -> None:
    x = torch.randn(256, device=DEVICE)
    work = Work(lambda: x + x)
    latency, device = (timer.window(work, 50) for timer in timers_for(DEVICE))
    assert 0 < device < 5e-6
    assert latency > device


def test_latency_includes_the_device_and_is_not_just_the_launch() -> None:
    cycles = int(0.002 * cycles_per_second())
    latency = HostTimer(torch.cuda.synchronize).window(Work(lambda: torch.cuda._sleep(cycles)), 10)
    assert latency == pytest.approx(0.002, rel=0.05)


def test_work_that_waits_for_the_device_inside_is_timed_and_said_so() -> None:
    x = torch.randn(1024, device=DEVICE)
    timer = EventTimer(DEVICE)
    assert timer.window(Work(lambda: x.sum().item()), 3) > 0
    assert "waits for the GPU inside" in timer.doubts[0]


def test_hundreds_of_kernels_a_call_do_not_fill_the_queue_unnoticed() -> None:
    x = torch.randn(256, device=DEVICE)

    def many() -> None:
        for _ in range(300):
            x.add(1)

    timer = EventTimer(DEVICE)
    per_kernel = timer.window(Work(many), 20) / 300
    assert timer.doubts == ()
    assert 0.5e-6 < per_kernel < 5e-6


def test_a_suite_runs_on_the_gpu_in_all_directions(tmp_path: Path) -> None:
    axes = {
        "variant": ["eager", "script", "trace", "custom_op", "native"],
        "direction": ["inference", "forward", "backward", "forward_backward"],
        "device": "cuda",
        "threads": 1,
    }
    groups = [
        {"layer": "unfold_conv2d", "axes": axes | {"size": 32, "out_channels": 4}},
        {"layer": "shift", "axes": axes},
    ]
    suite = tmp_path / "suite.json"
    suite.write_text(json.dumps({"policy": {"seconds": 0.2}, "groups": groups}), encoding="utf-8")
    assert cli.command(["run", str(suite), "--out", str(tmp_path / "run")]) == 0
    for measurement in load_run(tmp_path / "run").measurements:
        latency, device = measurement.metric("latency"), measurement.metric("device")
        assert latency is not None
        assert device is not None
        assert device.clock == "events"
        assert 0 < min(device.lows) < min(latency.lows)


def test_the_second_gpu_is_timed_while_the_first_is_current() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    other = torch.device("cuda:1")
    x, y = torch.randn(1 << 24, device=DEVICE), torch.randn(1 << 24, device=other)
    first = min(EventTimer(DEVICE).window(Work(lambda: x + x), 20) for _ in range(5))
    second = min(EventTimer(other).window(Work(lambda: y + y), 20) for _ in range(5))
    assert second == pytest.approx(first, rel=0.05)
