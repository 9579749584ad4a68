"""Keeping a CUDA stream busy until all that is to be timed is enqueued, and the events that time it.

An event pair measures the host unless the stream is kept busy meanwhile: 36.6 us for a 0.85 us kernel were seen.
"""

from __future__ import annotations

import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from bench.clocks.timer import Call

TIMEOUT = 0.1  # s: the longest hold. A call that waits for the GPU inside would wait for ever


class Gpu(Protocol):
    """What a stopwatch needs of a GPU. All of it happens on the current stream."""

    doubt: str  # what is to be said of this way to hold; "" for nothing

    def current(self) -> AbstractContextManager[Any]:
        """Make it the current device."""

    def hold(self) -> None:
        """Keep the stream busy until release(), or until a time limit."""

    def release(self) -> None:
        """Everything is enqueued. Free of harm where nothing is held."""

    def covered(self) -> bool:
        """Once the stream is done: whether the hold lasted until release()."""

    def lengthen(self) -> bool:
        """Whether the next hold will be longer than the last."""

    def mark(self) -> Any:
        """Record an event."""

    def wait(self, mark: Any) -> None:
        """Until the stream has come to an event."""

    def seconds(self, start: Any, end: Any) -> float:
        """Between two events."""

    def settle(self) -> float:
        """Wait for all streams of the device; how long that took, in seconds."""

    def nothing(self) -> None:
        """Launch a kernel that does nothing."""


class Nothing(Call):
    """A call of one kernel that does nothing: where the device clocks have their zero.

    Start-up, drain and the gap to the next kernel are no work of the call's, and each clock sees another part of them
    (events 1.5 us, a graph 0.7, CUPTI 0.6 on an H200). Less its own reading of nothing, each is right within 0.1 us.
    """

    fresh = False

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu

    def prepare(self) -> None:
        """Nothing to make."""

    def __call__(self) -> None:
        self._gpu.nothing()


def zero_of(window: Callable[[Nothing, int], float], gpu: Gpu) -> float:
    """What a clock's `window` says of a kernel that does nothing, in seconds: the median of seven."""
    with gpu.current():
        return statistics.median(window(Nothing(gpu), 64) for _ in range(7))


class _Events:
    """Everything but the hold."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def current(self) -> AbstractContextManager[Any]:
        return torch.cuda.device(self._device)

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def wait(self, mark: torch.cuda.Event) -> None:
        mark.synchronize()
        # What the host still has to tidy up, 100 us after hundreds of launches, belongs to this stream and no other.
        torch.cuda.current_stream(self._device).synchronize()

    def seconds(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        return float(start.elapsed_time(end)) * 1e-3

    def settle(self) -> float:
        start = time.perf_counter()
        torch.cuda.synchronize(self._device)
        return time.perf_counter() - start


class FlagGpu(_Events):
    """Holds by our own kernel, which watches a flag in the host's memory: the hold lasts as long as it must."""

    doubt = ""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        with torch.cuda.device(device):
            self._state = torch.zeros(2, dtype=torch.int64).pin_memory()  # turn let go, turn timed out
            self._unstored = torch.empty(0, dtype=torch.int64, device=device)
        self._host = self._state.numpy()
        self._turn = 0

    def hold(self) -> None:
        self._turn += 1
        torch.ops.layerbench.hold(self._state, self._turn, int(TIMEOUT * 1e9))

    def release(self) -> None:
        self._host[0] = self._turn

    def covered(self) -> bool:
        return int(self._host[1]) != self._turn

    def lengthen(self) -> bool:
        return False

    def nothing(self) -> None:
        torch.ops.layerbench.spin(self._unstored, 0)


class SleepGpu(_Events):
    """Holds by torch's own sleeping kernel, of a length fixed beforehand: it is doubled when it was too short."""

    def __init__(self, device: torch.device, reason: str) -> None:
        super().__init__(device)
        self.doubt = f"held by guessed sleeps, for want of a hold of ours: {reason}"
        self._length = 200e-6
        self._end = torch.cuda.Event()
        self._late = False
        with torch.cuda.device(device):
            self._cycles = _sleep_cycles_per_second()

    def hold(self) -> None:
        torch.cuda._sleep(int(self._length * self._cycles))
        self._end.record()

    def release(self) -> None:
        self._late = bool(self._end.query())

    def covered(self) -> bool:
        return not self._late

    def lengthen(self) -> bool:
        if self._length >= TIMEOUT:
            return False
        self._length *= 2
        return True

    def nothing(self) -> None:
        torch.cuda._sleep(0)


class NetClock(ABC):
    """A device clock less its own reading of a kernel that does nothing: `zero`, which zero_of() finds."""

    zero: float

    def window(self, call: Any, calls: int) -> float:
        return max(self._raw(call, calls) - self.zero, 0.0)

    @abstractmethod
    def _raw(self, call: Any, calls: int) -> float:
        """Seconds per call as the clock reads them."""


def gpu_for(device: torch.device) -> Gpu:
    """The device, held by our kernel where there is one; else by sleeps, which say so in their `doubt`."""
    reason = _why_no_kernel()
    return SleepGpu(device, reason) if reason else FlagGpu(device)


def _why_no_kernel() -> str | None:
    from ext import build, ops

    try:
        ops.load()
    except build.BuildError as error:
        return error.reason
    return build.cuda_reason()


def _sleep_cycles_per_second() -> float:
    """Speed of the counter that torch.cuda._sleep spins on."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(1_000_000)  # loads the kernel
    start.record()
    torch.cuda._sleep(10_000_000)
    end.record()
    end.synchronize()
    return float(10_000_000 / (start.elapsed_time(end) * 1e-3))
