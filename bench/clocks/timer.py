"""What a clock is: it times a window of calls and answers in seconds per call.

A timer never decides how often to call, when to stop or what the numbers mean: measure.py does. Adding a clock is
adding one class with these members, and a name in timers.py.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

Flush = Callable[[], None]


class ClockUnavailable(Exception):
    """A clock that was asked for cannot be had, or cannot time this call; the text says why."""


class Call(Protocol):
    """One unit of work to time, to be inherited from; see task.py for the real ones."""

    fresh: bool  # each call needs its own prepare(), outside the window

    def prepare(self) -> None:
        """What one call needs and must not be timed: a new graph, cleared gradients."""

    def __call__(self) -> object:
        """Do the work once."""

    def repeat(self, times: int) -> None:
        """Do it so many times, with as little between as can be: whatever is there is timed."""
        for _ in range(times):
            self()


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
