"""Time between CUDA events that is the GPU's and not the host's."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from bench.clocks.hold import TIMEOUT, Gpu
from bench.clocks.timer import Flush

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
        self.held, self._queue, self._strikes = True, 64, 0
        self.forget()
        with gpu.current():
            self.empty = self._empty_pair()

    @property
    def doubts(self) -> tuple[str, ...]:
        found = [self._gpu.doubt] if self._gpu.doubt else []
        if not self.held:
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
        if self.held and not self._gpu.covered():
            return None
        elapsed = [self._gpu.seconds(start, end) for start, end in pairs]
        self._taken += 1
        # An idle device answers within some 10 us, after hundreds of launches, of which the host has to tidy up, 60.
        self._outlasted += left > max(200e-6, 0.05 * sum(elapsed))
        return sum(max(pair - (self.empty or 0.0), 0.0) for pair in elapsed)

    def _enqueue(self, work: Work, times: int, flush: Flush | None) -> list[tuple[object, object]]:
        gpu, pairs = self._gpu, []
        try:
            if self.held:
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
        self.held = self._strikes < 2


def _nothing() -> None:
    pass
