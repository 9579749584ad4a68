"""Clocks and whole runs on a GPU: `pytest -m gpu`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from bench import cli
from bench.clocks.cuda import EventTimer, GraphTimer
from bench.clocks.cupti import CuptiTimer
from bench.clocks.flush import L2Flush
from bench.clocks.hold import TIMEOUT, FlagGpu, SleepGpu, gpu_for
from bench.clocks.stream import quickest
from bench.clocks.timer import Call, ClockUnavailable, Timer
from bench.clocks.timers import timers_for
from bench.machine import memory
from bench.model import load_run
from ext import ops

pytestmark = pytest.mark.gpu
DEVICE = torch.device("cuda", 0)
CLOCKS: dict[str, Callable[[torch.device], Timer]] = {"events": EventTimer, "graph": GraphTimer, "cupti": CuptiTimer}
NOTHING = torch.empty(0, dtype=torch.int64)


class Work(Call):
    """A call around a function; `fresh` when each must be prepared on its own."""

    def __init__(self, function: Callable[[], object], *, fresh: bool = False) -> None:
        self.function, self.fresh = function, fresh

    def prepare(self) -> None:
        pass

    def __call__(self) -> None:
        self.output = self.function()


class Spin:
    """A kernel of known length, by its own count of cycles and by the GPU's own time of day."""

    def __init__(self) -> None:
        ops.load()
        self.silent = NOTHING.to(DEVICE)
        self.spun = torch.zeros(2, dtype=torch.int64, device=DEVICE)
        for _ in range(3):  # the clock rises
            cycles, ns = self.count(20_000_000)
        self.per_second = cycles / ns * 1e9

    def count(self, cycles: int) -> tuple[int, int]:
        """What it really spun for: cycles, ns."""
        torch.ops.layerbench.spin(self.spun, cycles)
        spun = self.spun.tolist()
        return spun[0], spun[1]

    def work(self, seconds: float) -> Work:
        cycles = int(seconds * self.per_second)
        return Work(lambda: torch.ops.layerbench.spin(self.silent, cycles))

    def seconds(self, seconds: float) -> float:
        """What a spin that was asked for takes by its own count."""
        cycles = int(seconds * self.per_second)
        return min(self.count(cycles)[0] for _ in range(20)) / self.per_second


@pytest.fixture(scope="module")
def spin() -> Spin:
    return Spin()


def clock(name: str) -> Timer:
    return CLOCKS[name](DEVICE)


def low(timer: Timer, work: Work, calls: int = 20) -> float:
    timer.window(work, 3)
    return min(timer.window(work, calls) for _ in range(10))


@pytest.mark.parametrize("microseconds", [1, 2, 5, 20, 100, 1000])
@pytest.mark.parametrize("name", CLOCKS)
def test_a_spin_of_known_length_is_recovered(spin: Spin, name: str, microseconds: int) -> None:
    timer = clock(name)
    truth = spin.seconds(microseconds * 1e-6)
    assert low(timer, spin.work(microseconds * 1e-6)) == pytest.approx(truth, abs=max(0.03 * truth, 0.5e-6))
    assert timer.doubts == ()


@pytest.mark.parametrize("calls", [1, 10, 100])
@pytest.mark.parametrize("fresh", [False, True])
def test_a_millisecond_is_a_millisecond_however_many_calls_share_a_window(spin: Spin, calls: int, fresh: bool) -> None:
    work = spin.work(1e-3)
    work.fresh = fresh
    truth = spin.seconds(1e-3)
    timers = {timer.metric: timer for timer in timers_for(DEVICE)}
    latency, device = timers["latency"], timers["device"]
    assert low(device, work, calls) == pytest.approx(truth, rel=0.05)
    # A launch and a wait are part of a latency: some 10 us, but 60 on a slow host.
    assert truth <= low(latency, work, calls) < truth + 0.2e-3


def test_cycles_and_the_time_of_day_agree_on_a_long_spin(spin: Spin) -> None:
    cycles, ns = spin.count(int(0.01 * spin.per_second))
    assert cycles / spin.per_second == pytest.approx(ns * 1e-9, rel=0.01)


@pytest.mark.parametrize("size", [4 << 10, 4 << 20, 64 << 20, 1 << 30], ids=["4KiB", "4MiB", "64MiB", "1GiB"])
def test_the_clocks_agree_on_a_shift(size: int) -> None:
    ops.load()
    x = torch.randn(size // 4, device=DEVICE)
    work = Work(lambda: torch.ops.layerbench.shift(x, 5))
    readings = {name: low(clock(name), work, 10) for name in CLOCKS}
    assert max(readings.values()) - min(readings.values()) < max(0.05 * min(readings.values()), 0.7e-6), readings


def test_device_time_is_taken_on_a_stream_that_is_the_quickest_for_all_clocks_of_a_process(spin: Spin) -> None:
    assert quickest(DEVICE) is quickest(DEVICE)
    assert quickest(DEVICE) != torch.cuda.default_stream(DEVICE)
    seen = []
    clock("events").window(Work(lambda: seen.append(torch.cuda.current_stream(DEVICE))), 3)
    assert set(seen) == {quickest(DEVICE)}


@pytest.mark.parametrize("fresh", [False, True])
def test_a_call_on_the_default_stream_whatever_is_current_is_timed_there_and_told(spin: Spin, fresh: bool) -> None:
    spin_work, truth = spin.work(20e-6), spin.seconds(20e-6)

    def on_default() -> None:
        with torch.cuda.stream(torch.cuda.default_stream(DEVICE)):
            spin_work()

    timer = clock("events")
    assert low(timer, Work(on_default, fresh=fresh)) == pytest.approx(truth, abs=max(0.03 * truth, 0.5e-6))
    assert ["launches work on the default stream" in doubt for doubt in timer.doubts] == [True]


def test_work_that_fills_the_memory_is_not_taken_for_work_on_the_default_stream() -> None:
    x, timer = torch.randn(64 << 20, device=DEVICE), clock("events")
    for _ in range(3):
        timer.window(Work(lambda: x * 2), 3)
    assert timer.doubts == ()


def test_the_memory_that_a_call_needs_is_its_own() -> None:
    kept, x = torch.zeros(64 << 20, device=DEVICE), torch.randn(1 << 20, device=DEVICE)
    assert memory.needed(lambda: x * 2 + 1, DEVICE) == 8 << 20
    assert kept.numel() == 64 << 20


def test_our_hold_is_used_where_the_library_is_built() -> None:
    gpu = gpu_for(DEVICE)
    assert isinstance(gpu, FlagGpu)
    assert gpu.doubt == ""


def test_the_hold_lasts_until_it_is_released_and_no_longer() -> None:
    ops.load()
    gpu = FlagGpu(DEVICE)
    for pause in (0.0, 0.01, 0.05):
        gpu.settle()
        gpu.hold()
        end = gpu.mark()
        time.sleep(pause)
        assert not end.query()
        gpu.release()
        gpu.wait(end)
        assert gpu.covered()


def test_a_hold_that_nobody_releases_times_out_and_the_next_one_holds_again() -> None:
    ops.load()
    gpu = FlagGpu(DEVICE)
    start = time.perf_counter()
    gpu.hold()
    gpu.settle()
    assert TIMEOUT <= time.perf_counter() - start < TIMEOUT + 0.1
    gpu.release()
    assert not gpu.covered()
    gpu.hold()
    gpu.release()
    gpu.settle()
    assert gpu.covered()


def test_sleeps_hold_too_and_say_what_they_are(spin: Spin) -> None:
    timer = EventTimer(DEVICE, gpu=SleepGpu(DEVICE, "no nvcc"))
    assert low(timer, spin.work(1e-3)) == pytest.approx(spin.seconds(1e-3), rel=0.03)
    assert timer.doubts == ("held by guessed sleeps, for want of a hold of ours: no nvcc",)


def test_a_tiny_add_shows_latency_device_and_dispatch_apart() -> None:
    x = torch.randn(256, device=DEVICE)
    timers = {timer.metric: timer for timer in timers_for(DEVICE)}
    times = {metric: low(timer, Work(lambda: x + x), 50) for metric, timer in timers.items()}
    assert list(times) == ["latency", "dispatch", "throughput", "device"]
    assert 0 < times["device"] < 5e-6
    assert times["device"] < times["dispatch"] < times["latency"]  # launch-bound
    assert times["throughput"] < times["latency"]


def test_a_long_kernel_is_dispatched_long_before_it_is_done(spin: Spin) -> None:
    times = {timer.metric: low(timer, spin.work(2e-3), 8) for timer in timers_for(DEVICE)}
    truth = spin.seconds(2e-3)
    assert times["dispatch"] < 0.1 * truth
    for metric in ("latency", "device", "throughput"):
        assert times[metric] == pytest.approx(truth, rel=0.05)


def test_work_that_waits_for_the_device_inside_is_timed_and_said_so() -> None:
    x = torch.randn(1024, device=DEVICE)
    timer = EventTimer(DEVICE)
    start = time.perf_counter()
    assert timer.window(Work(lambda: x.sum().item()), 20) > 0
    assert time.perf_counter() - start < 2  # s: it neither hung nor ran into the limit for every call
    assert "waits for the GPU inside" in timer.doubts[0]


def test_work_that_waits_inside_cannot_be_captured_and_the_device_is_fine_afterwards(spin: Spin) -> None:
    x = torch.randn(1024, device=DEVICE)
    with pytest.raises(ClockUnavailable, match="graph: the call cannot be captured"):
        GraphTimer(DEVICE).window(Work(lambda: x.sum().item()), 3)
    assert low(GraphTimer(DEVICE), spin.work(1e-4)) == pytest.approx(1e-4, rel=0.1)


def test_a_preparation_that_runs_on_the_gpu_is_refused_by_the_graph_clock_and_another_is_not(spin: Spin) -> None:
    work = spin.work(1e-4)
    work.fresh = True
    assert low(GraphTimer(DEVICE), work) == pytest.approx(1e-4, rel=0.1)
    work.prepare = spin.work(1e-4)  # type: ignore[method-assign]
    with pytest.raises(ClockUnavailable, match="runs on the GPU"):
        GraphTimer(DEVICE).window(work, 3)
    assert low(CuptiTimer(DEVICE), work) == pytest.approx(1e-4, rel=0.1)
    assert low(EventTimer(DEVICE), work) == pytest.approx(1e-4, rel=0.1)


@pytest.mark.parametrize("seconds", [5e-6, 1e-3])
def test_work_on_a_side_stream_that_is_never_joined_is_doubted(spin: Spin, seconds: float) -> None:
    side, work = torch.cuda.Stream(DEVICE), spin.work(seconds)

    def aside() -> None:
        with torch.cuda.stream(side):
            work()

    timer = EventTimer(DEVICE)
    for _ in range(3):
        timer.window(Work(aside), 20)
    assert any("side stream" in doubt for doubt in timer.doubts)


def test_work_on_a_side_stream_that_is_joined_is_timed_right(spin: Spin) -> None:
    side, work = torch.cuda.Stream(DEVICE), spin.work(1e-3)

    def joined() -> None:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            work()
        torch.cuda.current_stream().wait_stream(side)

    timer = EventTimer(DEVICE)
    assert low(timer, Work(joined)) == pytest.approx(spin.seconds(1e-3), rel=0.03)
    assert timer.doubts == ()


def test_hundreds_of_kernels_a_call_do_not_fill_the_queue_unnoticed() -> None:
    x = torch.randn(256, device=DEVICE)

    def many() -> None:
        for _ in range(300):
            x.add(1)

    timer = EventTimer(DEVICE)
    per_kernel = timer.window(Work(many), 20) / 300
    assert timer.doubts == ()
    assert 0.5e-6 < per_kernel < 5e-6


@pytest.mark.parametrize("kind", [EventTimer, CuptiTimer])
def test_a_cold_cache_is_nothing_to_a_spin_and_something_to_a_copy(
    spin: Spin, kind: type[EventTimer] | type[CuptiTimer]
) -> None:
    flush = L2Flush(DEVICE)
    assert flush.bytes >= 2 * torch.cuda.get_device_properties(DEVICE).L2_cache_size
    warm, cold = (low(kind(DEVICE, flush=each), spin.work(1e-4)) for each in (None, flush))
    assert cold == pytest.approx(warm, rel=0.02)
    x, y = torch.randn(1 << 20, device=DEVICE), torch.empty(1 << 20, device=DEVICE)
    warm, cold = (low(kind(DEVICE, flush=each), Work(lambda: y.copy_(x))) for each in (None, flush))
    assert cold > 1.2 * warm


def test_latency_with_a_cold_cache_leaves_the_flush_out(spin: Spin) -> None:
    warm, cold = (timers_for(DEVICE, cache=cache)[0] for cache in ("warm", "cold"))
    assert low(cold, spin.work(1e-3)) == pytest.approx(low(warm, spin.work(1e-3)), rel=0.02)


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
