"""The clocks' logic on made-up hosts, GPUs and records: exact and instant. On a real GPU: test_gpu.py."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_gpu import LAUNCH, FakeGpu, GpuWork, GuessingGpu

from bench.clocks.cuda import EventTimer, GraphTimer
from bench.clocks.cupti import CuptiTimer, Recorder, covered, recorder
from bench.clocks.flush import L2Flush, last_level_cache
from bench.clocks.host import DispatchTimer, HostTimer, ThroughputTimer
from bench.clocks.stream import ignores
from bench.clocks.timer import ClockUnavailable
from bench.clocks.timers import timers_for

CUDA = torch.device("cuda")


def events(gpu: FakeGpu, **more: Any) -> EventTimer:
    return EventTimer(CUDA, gpu=gpu, **more)


def host_timer(kind: type[HostTimer], gpu: FakeGpu, flush: Callable[[], None] | None = None) -> HostTimer:
    return kind(gpu.synchronise, lambda: round(gpu.host * 1e9), flush)


def in_turn(*works: Callable[[], object]) -> Callable[[], None]:
    def work() -> None:
        for each in works:
            each()

    return work


# --- the host's clocks ---


@pytest.mark.parametrize("calls", [1, 3, 4, 5, 100])
def test_dispatch_is_the_enqueueing_alone_and_no_window_fills_the_launch_queue(calls: int) -> None:
    gpu = FakeGpu()
    work = GpuWork(in_turn(*[lambda: gpu.launch(0.001)] * 200))
    assert host_timer(DispatchTimer, gpu).window(work, calls) == pytest.approx(200 * LAUNCH, rel=1e-3)
    assert work.calls == calls
    assert gpu.host >= calls * 200 * 0.001  # it did wait for the device, outside the clock


def test_dispatch_does_not_wait_for_what_was_enqueued_before_it() -> None:
    gpu = FakeGpu()
    gpu.launch(5.0)
    assert host_timer(DispatchTimer, gpu).window(GpuWork(lambda: gpu.launch(0.001)), 4) == pytest.approx(LAUNCH)


def test_throughput_overlaps_host_and_device_and_includes_the_tail() -> None:
    gpu = FakeGpu()
    measured = host_timer(ThroughputTimer, gpu).window(GpuWork(lambda: gpu.launch(0.001)), 10)
    assert measured == pytest.approx(0.001 + LAUNCH / 10)


def test_latency_waits_for_every_call() -> None:
    gpu = FakeGpu()
    assert host_timer(HostTimer, gpu).window(GpuWork(lambda: gpu.launch(0.001)), 10) == pytest.approx(0.001 + LAUNCH)


@pytest.mark.parametrize("kind", [HostTimer, DispatchTimer, ThroughputTimer])
def test_no_clock_of_the_host_counts_preparing_a_call(kind: type[HostTimer]) -> None:
    gpu = FakeGpu()
    work = GpuWork(lambda: gpu.launch(0.001), lambda: gpu.launch(0.5))
    expected = LAUNCH if kind is DispatchTimer else 0.001 + LAUNCH
    assert host_timer(kind, gpu).window(work, 7) == pytest.approx(expected)


@pytest.mark.parametrize("kind", [HostTimer, DispatchTimer])
@pytest.mark.parametrize("calls", [1, 10])
def test_a_flush_is_not_counted_by_the_host(kind: type[HostTimer], calls: int) -> None:
    gpu, flushes = FakeGpu(), []

    def flush() -> None:
        flushes.append(1)
        gpu.launch(0.3)

    work = GpuWork(lambda: gpu.launch(0.001))
    with_flush = host_timer(kind, gpu, flush).window(work, calls)
    assert with_flush == pytest.approx(host_timer(kind, gpu).window(work, calls))
    assert len(flushes) == calls


def test_a_flush_on_the_cpu_is_not_counted_either() -> None:
    gpu = FakeGpu()

    def spend(seconds: float) -> None:
        gpu.host += seconds

    timer = HostTimer(now=lambda: round(gpu.host * 1e9), flush=lambda: spend(0.3))
    assert timer.window(GpuWork(lambda: spend(0.002)), 5) == pytest.approx(0.002)


# --- events behind a hold ---


@pytest.mark.parametrize("calls", [1, 10, 100])
@pytest.mark.parametrize("microseconds", [1, 20, 1000])
@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("cold", [False, True])
def test_device_time_is_the_kernels_however_slow_the_host(
    calls: int, microseconds: int, fresh: bool, cold: bool
) -> None:
    gpu = FakeGpu()
    timer = events(gpu, flush=(lambda: gpu.launch(0.0001)) if cold else None)
    work = GpuWork(lambda: gpu.launch(microseconds * 1e-6), (lambda: gpu.launch(0.001)) if fresh else None)
    assert timer.window(work, calls) == pytest.approx(microseconds * 1e-6)
    assert timer.doubts == ()
    assert work.calls == calls  # no hold was too short


def test_hundreds_of_kernels_a_call_are_enqueued_fewer_calls_at_a_time() -> None:
    gpu = FakeGpu()
    timer = events(gpu)
    work = GpuWork(in_turn(*[lambda: gpu.launch(1e-6)] * 300))
    assert timer.window(work, 20) == pytest.approx(300e-6)
    assert timer.doubts == ()


def test_a_call_that_waits_inside_is_timed_without_a_hold_and_said_so() -> None:
    gpu = FakeGpu()

    def work() -> None:
        gpu.launch(0.001)
        gpu.synchronise()

    timer = events(gpu)
    assert timer.window(GpuWork(work), 10) == pytest.approx(0.001 + LAUNCH, rel=0.01)
    assert "waits for the GPU inside" in timer.doubts[0]
    assert gpu.host < 0.6  # s: it did not run into the hold's limit for every call
    holds = gpu.holds
    timer.window(GpuWork(work), 10)
    assert gpu.holds == holds  # nor does it try again


def test_one_call_that_cannot_be_held_is_an_accident_and_not_a_habit() -> None:
    gpu = FakeGpu()
    work = GpuWork(lambda: gpu.launch(0.001))

    def load_first() -> None:
        if work.calls == 1:
            gpu.host += 0.2
        gpu.launch(0.001)

    work.work = load_first
    timer = events(gpu)
    assert timer.window(work, 1) == pytest.approx(0.001)
    assert timer.doubts == ()


def test_a_hold_of_guessed_length_grows_until_it_covers_the_enqueueing_and_says_what_it_is() -> None:
    gpu = GuessingGpu("held by guessed sleeps")
    timer = events(gpu)
    assert timer.window(GpuWork(in_turn(*[lambda: gpu.launch(1e-6)] * 100)), 5) == pytest.approx(100e-6)
    assert timer.doubts == ("held by guessed sleeps",)
    assert gpu.length > 5e-3


def test_a_layer_that_fails_while_it_is_held_lets_the_stream_go() -> None:
    gpu = FakeGpu()

    def work() -> None:
        gpu.launch(0.001)
        raise ValueError("no such thing")

    with pytest.raises(ValueError, match="no such thing"):
        events(gpu).window(GpuWork(work), 1)
    before = gpu.host
    gpu.synchronise()
    assert gpu.host - before < 0.01


def test_work_on_a_side_stream_that_is_never_joined_is_doubted() -> None:
    gpu = FakeGpu()

    def work() -> None:
        gpu.launch(1e-6)
        gpu.launch_aside(0.001)

    timer = events(gpu)
    timer.window(GpuWork(work), 20)
    assert ["side stream that is never joined" in doubt for doubt in timer.doubts] == [True]


def test_short_work_all_of_it_on_a_side_stream_is_doubted_too() -> None:
    gpu = FakeGpu()
    timer = events(gpu)
    assert timer.window(GpuWork(lambda: gpu.launch_aside(2e-6)), 20) == pytest.approx(0, abs=1e-8)
    assert ["next to nothing ran on the current stream" in doubt for doubt in timer.doubts] == [True]


@pytest.mark.parametrize("fresh", [False, True])
def test_a_call_that_puts_work_on_the_default_stream_whatever_is_current_is_found(fresh: bool) -> None:
    gpu = FakeGpu()
    prepare = (lambda: gpu.launch(0.001)) if fresh else None
    assert ignores(GpuWork(lambda: gpu.launch(1e-6), prepare), nullcontext, gpu)
    assert ignores(
        GpuWork(in_turn(lambda: gpu.launch_aside(0.001), lambda: gpu.launch(1e-6)), prepare), nullcontext, gpu
    )
    assert not ignores(GpuWork(lambda: gpu.launch_aside(0.001), prepare), nullcontext, gpu)


def test_a_call_that_waits_for_the_gpu_inside_is_not_taken_for_one_that_ignores_the_current_stream() -> None:
    gpu = FakeGpu()
    assert not ignores(GpuWork(in_turn(lambda: gpu.launch_aside(0.001), gpu.synchronise)), nullcontext, gpu)


def test_where_every_launch_waits_the_clock_gives_up_holding_soon() -> None:
    class Blocking(FakeGpu):
        def mark(self) -> Any:
            op = super().mark()
            self.synchronise()
            return op

    gpu = Blocking()
    timer = events(gpu)
    assert gpu.host < 1.0
    timer.window(GpuWork(lambda: gpu.launch(0.001)), 4)
    assert len(timer.doubts) == 2  # no hold, no empty pair


def test_the_zero_of_device_time_is_a_kernel_that_does_nothing() -> None:
    gpu = FakeGpu()
    gpu.gap = 1.5e-6  # start-up, drain and the gap to the next: no work of the call's
    timer = events(gpu)
    assert timer.zero == pytest.approx(1.5e-6)
    assert timer.window(GpuWork(lambda: gpu.launch(5e-6)), 20) == pytest.approx(5e-6)
    assert timer.window(GpuWork(lambda: gpu.launch(0.0)), 20) == pytest.approx(0.0, abs=1e-12)


# --- CUPTI's records ---


class FakeCupti:
    """Records what is launched, hands it over when flushed, and only while the kind is enabled."""

    ActivityKind = SimpleNamespace(CONCURRENT_KERNEL=10, MEMCPY=1, MEMCPY2=22, MEMSET=2)

    def __init__(self) -> None:
        self.enabled: set[int] = set()
        self.waiting: list[SimpleNamespace] = []
        self.time = 1000

    def activity_register_callbacks(self, requested: Callable[[], tuple[int, int]], completed: Any) -> None:
        assert requested()[0] > 0
        self.completed = completed

    def activity_enable(self, kind: int) -> None:
        self.enabled.add(kind)

    def activity_disable(self, kind: int) -> None:
        self.enabled.remove(kind)

    def activity_flush_all(self, flag: int) -> None:
        assert flag == 1
        waiting, self.waiting = self.waiting, []
        self.completed(waiting)

    def launch(self, ns: int, kind: int = 10, ahead: int = 0) -> None:
        start = self.time - ahead
        self.time = start + ns + 500  # a gap after every kernel
        if kind in self.enabled:
            self.waiting.append(SimpleNamespace(kind=kind, start=start, end=start + ns))


def cupti_timer(cupti: FakeCupti, flush: Callable[[], None] | None = None) -> CuptiTimer:
    gpu = FakeGpu()
    gpu.nothing = lambda: cupti.launch(0)  # type: ignore[method-assign]
    return CuptiTimer(CUDA, flush=flush, records=Recorder(cupti), synchronise=lambda: None, gpu=gpu)


@pytest.mark.parametrize(
    ("intervals", "total"),
    [
        ([], 0),
        ([(5, 9)], 4),
        ([(0, 10), (20, 30)], 20),
        ([(20, 30), (0, 10), (5, 25)], 30),
        ([(0, 100), (10, 20), (90, 110)], 110),
        ([(0, 10), (10, 20)], 20),
    ],
)
def test_intervals_that_overlap_count_once(intervals: list[tuple[int, int]], total: int) -> None:
    assert covered(intervals) == total


def test_cupti_adds_up_kernels_and_copies_without_the_gaps_between() -> None:
    cupti = FakeCupti()
    timer = cupti_timer(cupti)
    assert timer.window(
        GpuWork(in_turn(lambda: cupti.launch(3000), lambda: cupti.launch(2000, kind=1))), 10
    ) == pytest.approx(5e-6)
    assert timer.doubts == ()
    assert not cupti.enabled  # it records in its windows alone


def test_cupti_counts_neither_preparation_nor_flush() -> None:
    cupti = FakeCupti()
    timer = cupti_timer(cupti, flush=lambda: cupti.launch(70_000, kind=2))
    work = GpuWork(lambda: cupti.launch(3000), lambda: cupti.launch(9000))
    assert timer.window(work, 4) == pytest.approx(3e-6)
    assert work.calls == 4


def test_cupti_says_that_kernels_overlap_and_counts_them_once() -> None:
    cupti = FakeCupti()
    timer = cupti_timer(cupti)
    work = in_turn(lambda: cupti.launch(3000), lambda: cupti.launch(3000, ahead=3500))
    assert timer.window(GpuWork(work), 2) == pytest.approx(3e-6)
    assert "kernels overlap: their times add up to 2.00 times" in timer.doubts[0]


def test_cupti_doubts_records_that_fit_no_number_of_calls() -> None:
    cupti = FakeCupti()
    work = GpuWork(lambda: cupti.launch(3000, kind=10 if work.calls > 1 else 99))
    timer = cupti_timer(cupti)
    timer.window(work, 10)
    assert "no multiple of the calls" in timer.doubts[0]


def test_cupti_without_a_record_is_unavailable_and_not_zero() -> None:
    with pytest.raises(ClockUnavailable, match="recorded no work"):
        cupti_timer(FakeCupti()).window(GpuWork(lambda: None), 3)


def test_cupti_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupti", None)
    monkeypatch.setitem(sys.modules, "cupti.cupti", None)
    with pytest.raises(ClockUnavailable, match=r"cupti: no cupti-python \(install layerbench\[gpu\]\)"):
        recorder.__wrapped__()


def test_cupti_that_refuses_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(FakeCupti):
        def activity_enable(self, kind: int) -> None:
            raise RuntimeError("ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED")

    monkeypatch.setitem(sys.modules, "cupti.cupti", Refusing())
    with pytest.raises(ClockUnavailable, match="cupti: refused: RuntimeError: ERROR_MULTIPLE"):
        recorder.__wrapped__()


# --- which clocks apply ---


def test_on_a_cpu_latency_is_the_only_time() -> None:
    assert [(timer.metric, timer.clock) for timer in timers_for(torch.device("cpu"))] == [("latency", "host")]


def test_an_unknown_device_clock_is_refused_by_name() -> None:
    with pytest.raises(ClockUnavailable, match="no device clock 'sundial'"):
        timers_for(CUDA, device_clock="sundial")


def test_a_graph_has_no_room_for_a_flush_and_says_so() -> None:
    with pytest.raises(ClockUnavailable, match="no flush fits"):
        GraphTimer(CUDA, flush=lambda: None)


# --- caches ---


def test_the_flush_writes_over_twice_the_largest_cache() -> None:
    flush = L2Flush(torch.device("cpu"))
    assert flush.bytes == 2 * last_level_cache()
    before = flush._buffer.clone()
    flush()
    assert torch.equal(flush._buffer, before + 1)


@pytest.mark.parametrize(
    ("sizes", "largest"), [(["32K", "32K", "1024K", "36608K"], 36608 << 10), (["48K", "2M", "105M"], 105 << 20)]
)
def test_the_largest_cache_is_read_from_the_system(tmp_path: Path, sizes: list[str], largest: int) -> None:
    for number, size in enumerate(sizes):
        (tmp_path / f"index{number}").mkdir()
        (tmp_path / f"index{number}" / "size").write_text(size + "\n", encoding="utf-8")
    assert last_level_cache(tmp_path) == largest


def test_a_system_that_does_not_say_gets_64_mib_written(tmp_path: Path) -> None:
    assert 2 * last_level_cache(tmp_path) == 64 << 20
