"""Device time by CUDA events: around calls as they are enqueued, or around replays of a CUDA graph of them."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from bench.clocks.hold import Gpu, NetClock, gpu_for, zero_of
from bench.clocks.stopwatch import Stopwatch, Work
from bench.clocks.stream import ignores, quickest
from bench.clocks.timer import Call, ClockUnavailable, Flush, no_gc

IGNORES_STREAM = (
    "launches work on the default stream even where another is current, as a kernel without a stream does, "
    "`<<<grid, block>>>`: beside other streams it would read what is not there yet"
)


class _EventClock(NetClock):
    """What the two clocks share: a stopwatch of events, its doubts, and its zero."""

    metric = "device"

    def __init__(self, gpu: Gpu) -> None:
        self._gpu, self._watch = gpu, Stopwatch(gpu)

    @property
    def doubts(self) -> tuple[str, ...]:
        return self._watch.doubts

    def _set_zero(self) -> None:
        self.zero = zero_of(self._raw, self._gpu)
        self._watch.forget()


class EventTimer(_EventClock):
    """Time the GPU is busy with a call: calls back to back between two events, all enqueued behind a hold.

    On the process's quickest stream, but for a call that launches on the default one whatever stream is current.
    """

    clock = "events"
    about = "GPU time of one call: CUDA events behind a hold that outlasts the enqueueing, less an empty kernel's"

    def __init__(self, device: torch.device, *, flush: Flush | None = None, gpu: Gpu | None = None) -> None:
        super().__init__(gpu or gpu_for(device))
        self._flush = flush
        self._stream = None if gpu else quickest(device)
        self._asked, self._ignored = self._stream is None, False
        self._set_zero()

    @property
    def doubts(self) -> tuple[str, ...]:
        return (*super().doubts, *((IGNORES_STREAM,) if self._ignored else ()))

    def window(self, call: Call, calls: int) -> float:
        if not self._asked:
            self._asked = True
            self._ask(call)
        return super().window(call, calls)

    def _ask(self, call: Call) -> None:
        with no_gc(), self._gpu.current():
            self._ignored = ignores(call, self._elsewhere, self._gpu)
        if self._ignored:
            self._stream = None
            self._set_zero()

    @contextmanager
    def _elsewhere(self) -> Iterator[None]:
        assert self._stream is not None
        with torch.cuda.stream(self._stream):
            yield
            self._stream.synchronize()  # beside what still runs there, two events are further apart

    def _raw(self, call: Call, calls: int) -> float:
        with no_gc(), self._gpu.current(), torch.cuda.stream(self._stream):
            self._gpu.settle()  # what the call needs may have been put there on another stream
            total = self._watch.total(call, calls, prepare=call.prepare, alone=call.fresh, flush=self._flush)
            return total / calls


class GraphTimer(_EventClock):
    """Time the GPU is busy with a call: replays of a CUDA graph of many calls, between two events.

    No host between the calls at all. Captured anew for every window, for the inputs may have moved. Times at least
    the calls it is asked for. What comes before a call cannot be left out of a graph: a flush, or a preparation that
    runs on the GPU, makes this clock unavailable.
    """

    clock = "graph"
    about = "GPU time of one call: replays of a CUDA graph of up to 100 calls between events, less an empty kernel's"

    def __init__(self, device: torch.device, *, flush: Flush | None = None) -> None:
        if flush is not None:
            raise ClockUnavailable("graph: calls inside a graph follow at once, no flush fits between them untimed")
        super().__init__(gpu_for(device))
        self._stream = torch.cuda.Stream(device)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._may_prepare = False
        self._set_zero()

    def _raw(self, call: Call, calls: int) -> float:
        with no_gc(), self._gpu.current():
            self._graph, captured = self._capture(call)
            self._graph.replay()  # the first sends it to the device
            replays = -(-calls // captured)
            return self._watch.total(self._graph.replay, replays) / (replays * captured)

    def _capture(self, call: Call) -> tuple[torch.cuda.CUDAGraph, int]:
        """A graph of as many calls as take about 5 ms, and their number."""
        self._gpu.settle()
        with torch.cuda.stream(self._stream):
            seconds = min(self._once(call) for _ in range(3))
            if call.fresh and not self._may_prepare:
                if self._record(call.prepare)[1]:
                    raise ClockUnavailable("graph: what comes before each call runs on the GPU and would be timed")
                self._may_prepare = True
            several = max(1, min(100, int(5e-3 / seconds)))

            def calls() -> None:
                for _ in range(several):
                    call.prepare()
                    call()

            graph, has_work = self._record(calls)
        self._gpu.settle()
        if not has_work:
            raise ClockUnavailable("graph: the captured calls put no work on the current stream")
        return graph, several

    def _once(self, call: Call) -> float:
        call.prepare()
        self._gpu.settle()
        start = time.perf_counter()
        call()
        self._gpu.settle()
        return time.perf_counter() - start

    def _record(self, work: Work) -> tuple[torch.cuda.CUDAGraph, bool]:
        """Capture `work`, and whether there was any. Not by torch.cuda.graph(): it empties the allocator's cache, and
        the clocks that come next would time the filling."""
        graph = torch.cuda.CUDAGraph()
        # The last graph's memory is used again; it must live until then.
        pool = self._graph.pool() if self._graph else None
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                # Autograd's own threads must be free to allocate.
                graph.capture_begin(pool, capture_error_mode="thread_local")
                try:
                    work()
                finally:
                    graph.capture_end()
        except Exception as error:
            first = error.__context__ or error  # the end of a broken capture fails, too
            raise ClockUnavailable(f"graph: the call cannot be captured: {_first_line(first)}") from error
        return graph, not any("Graph is empty" in str(warning.message) for warning in caught)


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
