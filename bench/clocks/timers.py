"""Clocks of the host, and which clocks apply where. Each times a window of calls and answers in seconds per call.

A timer never decides how often to call, when to stop or what the numbers mean: measure.py does. Adding a clock is
adding one class with these members. The GPU's own clocks are in cuda.py and cupti.py.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import torch

from bench.clocks.flush import L2Flush

Flush = Callable[[], None]


class ClockUnavailable(Exception):
    """A clock that was asked for cannot be had, or cannot time this call; the text says why."""


class Call(Protocol):
    """One unit of work to time; see task.py for the real ones."""

    fresh: bool  # each call needs its own prepare(), outside the window

    def prepare(self) -> None:
        """What one call needs and must not be timed: a new graph, cleared gradients."""

    def __call__(self) -> object:
        """Do the work once."""


class Timer(Protocol):
    """A clock: `metric` names the quantity, `clock` says how it was taken, `about` is a line for a legend.

    Given a flush, a timer times every call on its own and flushes before each, outside the window.
    """

    metric: str
    clock: str
    about: str

    def window(self, call: Call, calls: int) -> float:
        """Seconds per call over `calls` calls. Raises ClockUnavailable where the clock cannot time this call."""

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
        total = 0
        for _ in range(calls):
            call.prepare()
            if self._flush:
                self._flush()
            self._settle()
            total += self._timed(call, 1, wait=wait)
        self._settle()
        return total

    def _timed(self, call: Call, calls: int, *, wait: bool) -> int:
        # One pair of clock readings for all calls: theirs cost (about 0.1 us) would drown a small op.
        settle = self._synchronise if wait else None
        repeats = range(calls)
        start = self._now()
        for _ in repeats:
            call()
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


def timers_for(device: torch.device, *, device_clock: str | None = "events", cache: str = "warm") -> tuple[Timer, ...]:
    """The clocks that apply on a device; the first one paces the measurement.

    `device_clock` is events, graph or cupti, or None for no device time; `cache` warm or cold. Raises
    ClockUnavailable.
    """
    flush = L2Flush(device) if cache == "cold" else None
    if device.type != "cuda":
        return (HostTimer(flush=flush),)

    def settle() -> None:
        torch.cuda.synchronize(device)

    return (
        HostTimer(settle, flush=flush),
        *(() if device_clock is None else (device_timer(device, device_clock, flush),)),
        DispatchTimer(settle, flush=flush),
        ThroughputTimer(settle, flush=flush),
    )


def device_timer(device: torch.device, clock: str, flush: Flush | None = None) -> Timer:
    """The clock of that name for device time. Raises ClockUnavailable, with the reason."""
    from bench.clocks.cuda import EventTimer, GraphTimer
    from bench.clocks.cupti import CuptiTimer

    if clock == "events":
        return EventTimer(device, flush=flush)
    if clock == "graph":
        return GraphTimer(device, flush=flush)
    if clock == "cupti":
        return CuptiTimer(device, flush=flush)
    raise ClockUnavailable(f"no device clock {clock!r}: there are events, graph and cupti")


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
