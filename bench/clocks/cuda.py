"""Device time by CUDA events: around calls as they are enqueued, or around replays of a CUDA graph of them."""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable

import torch

from bench.clocks.hold import TIMEOUT, Gpu, NetClock, gpu_for, zero_of
from bench.clocks.timer import Call, ClockUnavailable, Flush, no_gc

Work = Callable[[], object]


class Stopwatch:
    """Times work on the current stream by pairs of events, less an empty pair, behind a hold.

    A pair counts only if the hold outlasted the enqueueing. If not, less is enqueued behind the next: beyond about
    1,000 queued kernels the host waits for the GPU. One call that cannot be enqueued behind a hold, twice in a row,
    waits for the GPU inside: from then on it is timed without one, and `doubts` says so.
    """

    _EMPTY_PAIRS = 51

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._held, self._queue, self._strikes = True, 64, 0
        self.forget()
        with gpu.current():
            self.empty = self._empty_pair()

    @property
    def doubts(self) -> tuple[str, ...]:
        found = [self._gpu.doubt] if self._gpu.doubt else []
        if not self._held:
            found.append(
                "device time includes host gaps: the call waits for the GPU inside, launches more than the some 1,000 "
                f"kernels that a stream's queue takes, or takes more than {TIMEOUT:g} s to enqueue, so no hold can "
                "cover it; `device_clock: graph` or `cupti` may tell"
            )
        if 2 * self._outlasted > self._taken:
            found.append("the device was busy after the stream was done: work on a side stream that is never joined")
        if 2 * self._idle > self._taken:
            found.append("next to nothing ran on the current stream: no GPU work, or all of it on a side stream")
        if self.empty is None:
            found.append("device time includes what an empty event pair takes: it could not be measured")
        return tuple(found)

    def forget(self) -> None:
        """Hold what was taken so far against nobody."""
        self._taken = self._outlasted = self._idle = 0

    def total(
        self,
        work: Work,
        times: int,
        *,
        prepare: Work | None = None,
        alone: bool = False,
        flush: Flush | None = None,
    ) -> float:
        """Seconds that `times` of `work` take together.

        `prepare` comes before every hold, and with `alone` there is one `work` behind each. `flush` comes before
        every `work`, which then has a pair of its own.
        """
        done, total = 0, 0.0
        while done < times:
            several = 1 if alone else min(times - done, self._queue)
            if prepare:
                prepare()
            self._gpu.settle()
            taken = self._take(work, several, flush)
            if taken is None:
                self._back_off(several)
                continue
            self._strikes = 0
            self._idle += taken < 50e-9 * several  # no kernel is that short
            total += taken
            done += several
        return total

    def _take(self, work: Work, times: int, flush: Flush | None) -> float | None:
        """Seconds of `times` of `work`; None if the hold ended before all was enqueued."""
        pairs = self._enqueue(work, times, flush)
        self._gpu.wait(pairs[-1][1])
        left = self._gpu.settle()
        if self._held and not self._gpu.covered():
            return None
        elapsed = [self._gpu.seconds(start, end) for start, end in pairs]
        self._taken += 1
        self._outlasted += left > max(50e-6, 0.05 * sum(elapsed))  # an idle device answers within some 10 us
        return sum(max(pair - (self.empty or 0.0), 0.0) for pair in elapsed)

    def _enqueue(self, work: Work, times: int, flush: Flush | None) -> list[tuple[object, object]]:
        gpu, pairs = self._gpu, []
        try:
            if self._held:
                gpu.hold()
            if flush is None:
                start = gpu.mark()
                for _ in range(times):
                    work()
                return [(start, gpu.mark())]
            for _ in range(times):
                flush()
                start = gpu.mark()
                work()
                pairs.append((start, gpu.mark()))
            return pairs
        finally:
            gpu.release()

    def _empty_pair(self) -> float | None:
        """Seconds of two events with nothing between: the median of many, some of which a slow host may spoil."""
        self.empty = 0.0
        pairs: list[float] = []
        for tried in range(self._EMPTY_PAIRS):
            self._gpu.settle()
            taken = self._take(_nothing, 1, None)
            # Not the first: it loads the kernel that holds.
            if taken is not None and tried > 0:
                pairs.append(taken)
            if taken is None and not pairs and not self._gpu.lengthen() and tried >= 3:
                break  # every launch waits here, as under CUDA_LAUNCH_BLOCKING
        self.forget()
        return statistics.median(pairs) if pairs else None

    def _back_off(self, several: int) -> None:
        if self._gpu.lengthen():
            return
        if several > 1:
            self._queue = max(1, several // 8)
            return
        self._strikes += 1  # once may be a kernel that is loaded, or memory that is asked for
        self._held = self._strikes < 2


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
    """Time the GPU is busy with a call: calls back to back between two events, all enqueued behind a hold."""

    clock = "events"
    about = "GPU time of one call: CUDA events behind a hold that outlasts the enqueueing, less an empty kernel's"

    def __init__(self, device: torch.device, *, flush: Flush | None = None, gpu: Gpu | None = None) -> None:
        super().__init__(gpu or gpu_for(device))
        self._flush = flush
        self._set_zero()

    def _raw(self, call: Call, calls: int) -> float:
        with no_gc(), self._gpu.current():
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


def _nothing() -> None:
    pass
