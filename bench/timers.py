"""Clocks. Each times a window of calls and answers in seconds per call.

A timer never decides how often to call, when to stop or what the numbers mean: measure.py does. Adding a clock is
adding one class with these three members.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import torch


class Call(Protocol):
    """One unit of work to time; see task.py for the real ones."""

    fresh: bool  # each call needs its own prepare(), outside the window

    def prepare(self) -> None:
        """What one call needs and must not be timed: a new graph, cleared gradients."""

    def __call__(self) -> object:
        """Do the work once."""


class Timer(Protocol):
    """A clock: `metric` names the quantity, `clock` says how it was taken, `about` is a line for a legend."""

    metric: str
    clock: str
    about: str

    def window(self, call: Call, calls: int) -> float:
        """Seconds per call over `calls` calls."""

    @property
    def doubts(self) -> tuple[str, ...]:
        """Warnings about the numbers given so far."""


class HostTimer:
    """Wall-clock time of a call on the host, with the device synchronised before and after every call."""

    metric = "latency"
    clock = "host"
    about = "host wall time of one call, device synchronised"
    doubts: tuple[str, ...] = ()

    def __init__(
        self, synchronise: Callable[[], None] | None = None, now: Callable[[], int] = time.perf_counter_ns
    ) -> None:
        self._synchronise, self._now = synchronise, now

    def window(self, call: Call, calls: int) -> float:
        with no_gc():
            if self._synchronise is None and not call.fresh:
                return self._together(call, calls) / calls * 1e-9
            return self._one_by_one(call, calls) / calls * 1e-9

    def _together(self, call: Call, calls: int) -> int:
        # One pair of clock readings for all calls: theirs cost (about 0.1 us) would drown a small op.
        repeats = range(calls)
        start = self._now()
        for _ in repeats:
            call()
        return self._now() - start

    def _one_by_one(self, call: Call, calls: int) -> int:
        synchronise = self._synchronise or _nothing
        total = 0
        for _ in range(calls):
            call.prepare()
            synchronise()
            start = self._now()
            call()
            synchronise()
            total += self._now() - start
        return total


class EventTimer:
    """Time the GPU is busy with a call, by a pair of CUDA events on its stream.

    An event pair measures the host unless the stream is kept busy until everything is enqueued: 36.6 us for a 0.85 us
    kernel were seen. So the stream spins first (the hold), and a pair counts only if its first event had not been
    reached when the last call was enqueued; otherwise the hold grows and the pair is taken again. Calls that fill the
    launch queue are taken fewer at a time. Work that waits for the GPU inside can never be enqueued behind a hold:
    it is timed without one, and `doubts` says so.
    """

    metric = "device"
    clock = "events"
    about = "GPU time of one call: CUDA events behind a hold that outlasts the enqueueing, less an empty pair"

    _FIRST_HOLD, _LONGEST_HOLD = 200e-6, 0.1  # s
    _QUEUE = 64  # calls behind one hold, at first: beyond about 1,000 queued kernels the host blocks

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._hold, self._queue, self._held = self._FIRST_HOLD, self._QUEUE, True
        with torch.cuda.device(device):
            self._cycles = _cycles_per_second()
            self._empty = self._empty_pair()

    @property
    def doubts(self) -> tuple[str, ...]:
        if self._held:
            return ()
        return ("device time includes host gaps: the call waits for the GPU inside, so no hold can cover it",)

    def window(self, call: Call, calls: int) -> float:
        done, total = 0, 0.0
        with no_gc(), torch.cuda.device(self._device):
            while done < calls:
                chunk = 1 if call.fresh else min(calls - done, self._queue)
                call.prepare()
                torch.cuda.synchronize()
                elapsed = self._pair(call, chunk)
                if elapsed is None:
                    self._hold_longer()
                    continue
                total += max(elapsed - self._empty, 0.0)
                done += chunk
        return total / calls

    def _pair(self, work: Callable[[], object], calls: int) -> float | None:
        """Seconds between the events; None when the hold had ended before everything was enqueued."""
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        if self._held:
            torch.cuda._sleep(int(self._hold * self._cycles))
        start.record()
        for _ in range(calls):
            work()
        end.record()
        late = self._held and start.query()
        end.synchronize()
        return None if late else start.elapsed_time(end) * 1e-3

    def _empty_pair(self) -> float:
        """What two events cost by themselves; from a fixed number of tries, some of which a slow host may spoil."""
        pairs = [pair for pair in (self._pair(_nothing, 1) for _ in range(21)) if pair is not None]
        return statistics.median(pairs) if pairs else 0.0

    def _hold_longer(self) -> None:
        if self._hold < self._LONGEST_HOLD:
            self._hold *= 2
        elif self._queue > 1:
            self._hold, self._queue = self._FIRST_HOLD, self._queue // 2
        else:
            self._held = False


def _cycles_per_second() -> float:
    """Speed of the counter that torch.cuda._sleep spins on."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(1_000_000)  # loads the kernel
    start.record()
    torch.cuda._sleep(10_000_000)
    end.record()
    end.synchronize()
    return float(10_000_000 / (start.elapsed_time(end) * 1e-3))


def timers_for(device: torch.device) -> tuple[Timer, ...]:
    """The clocks that apply on a device; the first one paces the measurement."""
    if device.type != "cuda":
        return (HostTimer(),)
    return (HostTimer(lambda: torch.cuda.synchronize(device)), EventTimer(device))


@contextmanager
def no_gc() -> Iterator[None]:
    """Keep Python's collector out of a window, and put it back as it was."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _nothing() -> None:
    pass
