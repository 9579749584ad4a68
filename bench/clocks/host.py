"""Clocks of the host: a call by itself, enqueueing it, and many back to back."""

from __future__ import annotations

import time
from collections.abc import Callable

from bench.clocks.timer import Call, Flush, no_gc


class HostTimer:
    """Wall-clock time of a call on the host, with the device synchronised before and after every call."""

    metric = "latency"
    clock = "host"
    about = "host wall time of one call, device synchronised"
    doubts: tuple[str, ...] = ()

    def __init__(
        self,
        synchronise: Callable[[], None] | None = None,
        now: Callable[[], int] = time.perf_counter_ns,
        flush: Flush | None = None,
    ) -> None:
        self._synchronise, self._now, self._flush = synchronise, now, flush

    def window(self, call: Call, calls: int) -> float:
        with no_gc():
            return self._window(call, calls) / calls * 1e-9

    def _window(self, call: Call, calls: int) -> int:
        if self._synchronise is None and self._flush is None and not call.fresh:
            return self._timed(call, calls, wait=False)
        return self._one_by_one(call, calls, wait=True)

    def _one_by_one(self, call: Call, calls: int, *, wait: bool) -> int:
        settle, total = self._synchronise if wait else None, 0
        for _ in range(calls):
            call.prepare()
            if self._flush:
                self._flush()
            self._settle()
            # In this very loop: a training step drives Python's own code out of the caches, and then every function in
            # between takes up to 1 us.
            start = self._now()
            call()
            if settle:
                settle()
            total += self._now() - start
        self._settle()
        return total

    def _timed(self, call: Call, calls: int, *, wait: bool) -> int:
        # One pair of clock readings for all calls: theirs cost (about 0.1 us) would drown a small op.
        settle = self._synchronise if wait else None
        start = self._now()
        call.repeat(calls)
        if settle:
            settle()
        return self._now() - start

    def _settle(self) -> None:
        if self._synchronise:
            self._synchronise()


class DispatchTimer(HostTimer):
    """Host time to enqueue a call; the device is waited for before and after, outside the clock."""

    metric = "dispatch"
    about = "host time to enqueue one call, device not waited for"

    _AT_ONCE = 4  # calls between waits: beyond about 1,000 queued kernels a launch waits for the GPU

    def _window(self, call: Call, calls: int) -> int:
        if call.fresh or self._flush:
            return self._one_by_one(call, calls, wait=False)
        total = 0
        for done in range(0, calls, self._AT_ONCE):
            self._settle()
            total += self._timed(call, min(self._AT_ONCE, calls - done), wait=False)
        self._settle()
        return total


class ThroughputTimer(HostTimer):
    """Time per call of many, back to back, the device waited for once, after the last.

    What must come before a call and not be timed (preparation, a flush) rules out back to back: such calls are timed
    one by one, and the throughput is that of calls that wait for one another.
    """

    metric = "throughput"
    about = "time per call, back to back, device waited for once; calls that need preparing one by one"

    def _window(self, call: Call, calls: int) -> int:
        if call.fresh or self._flush:
            return self._one_by_one(call, calls, wait=True)
        self._settle()
        return self._timed(call, calls, wait=True)
