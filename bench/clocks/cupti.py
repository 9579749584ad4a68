"""Device time by CUPTI's activity records: the driver's own start and end of every kernel, copy and fill."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from bench.clocks.hold import Gpu, NetClock, gpu_for, zero_of
from bench.clocks.timer import Call, ClockUnavailable, Flush, no_gc

Interval = tuple[int, int]  # start and end, ns

_KINDS = ("CONCURRENT_KERNEL", "MEMCPY", "MEMCPY2", "MEMSET")
_BUFFER = 8 << 20  # bytes CUPTI is given for records at a time


class Recorder:
    """CUPTI's records of what ran on the GPUs. One a process: CUPTI knows one pair of callbacks."""

    def __init__(self, cupti: Any) -> None:
        self._cupti = cupti
        self._kinds = [int(getattr(cupti.ActivityKind, kind)) for kind in _KINDS]
        self._records: list[Interval] = []
        cupti.activity_register_callbacks(lambda: (_BUFFER, 0), self._completed)

    @contextmanager
    def on(self) -> Iterator[None]:
        """Record, in here alone."""
        enabled = []
        try:
            for kind in self._kinds:
                self._cupti.activity_enable(kind)
                enabled.append(kind)
            yield
        finally:
            for kind in enabled:
                self._cupti.activity_disable(kind)

    def take(self) -> list[Interval]:
        """What was recorded since the last time; the device must be synchronised."""
        self._cupti.activity_flush_all(1)  # forced: buffers that are not full, too
        records, self._records = self._records, []
        return records

    def _completed(self, activities: Sequence[Any]) -> None:
        # CUPTI takes the buffer back after this: nothing of a record may be kept.
        self._records.extend(
            (int(record.start), int(record.end)) for record in activities if int(record.kind) in self._kinds
        )


@functools.cache
def recorder() -> Recorder:
    """The process's own. Raises ClockUnavailable: no package, or CUPTI refuses."""
    try:
        cupti = importlib.import_module("cupti.cupti")
    except ImportError as error:
        raise ClockUnavailable(f"cupti: no cupti-python (install layerbench[gpu]): {error}") from error
    try:
        made = Recorder(cupti)
        with made.on():
            return made
    except Exception as error:  # its errors share no type
        raise ClockUnavailable(f"cupti: refused: {type(error).__name__}: {error}") from error


class CuptiTimer(NetClock):
    """Time the GPU is busy with a call: what its kernels, copies and fills cover together, gaps left out.

    Overlapping kernels count once. Once used, CUPTI stays attached to the process and makes launches dearer.
    """

    metric = "device"
    clock = "cupti"
    about = "GPU time of one call: what its kernels, copies and fills cover by CUPTI's records, less an empty kernel's"

    def __init__(
        self,
        device: torch.device,
        *,
        flush: Flush | None = None,
        records: Recorder | None = None,
        synchronise: Callable[[], None] | None = None,
        gpu: Gpu | None = None,
    ) -> None:
        self._records, self._flush = records or recorder(), flush
        self._synchronise = synchronise or (lambda: torch.cuda.synchronize(device))
        self._summed = self._busy = 0
        self._uneven = self._lost = False
        self.zero = zero_of(self._raw, gpu or gpu_for(device))

    @property
    def doubts(self) -> tuple[str, ...]:
        found = []
        if self._summed > 1.02 * self._busy:
            found.append(
                f"kernels overlap: their times add up to {self._summed / self._busy:.2f} times the device time"
            )
        if self._uneven:
            found.append("CUPTI recorded a number of kernels that is no multiple of the calls")
        if self._lost:
            found.append("CUPTI recorded kernels without their times")
        return tuple(found)

    def _raw(self, call: Call, calls: int) -> float:
        several = 1 if call.fresh or self._flush else calls
        counted = total = 0
        with no_gc(), self._records.on():
            for _ in range(calls // several):
                intervals = self._run(call, several)
                counted += len(intervals)
                self._summed += sum(end - start for start, end in intervals)
                total += covered(intervals)
        if not counted:
            raise ClockUnavailable("cupti: recorded no work on the GPU")
        self._busy += total
        self._uneven |= counted % calls > 0
        return total / calls * 1e-9

    def _run(self, call: Call, several: int) -> list[Interval]:
        call.prepare()
        if self._flush:
            self._flush()
        self._synchronise()
        self._records.take()  # what came before is not the call's
        call.repeat(several)
        self._synchronise()
        records = self._records.take()
        timed = [(start, end) for start, end in records if end > 0]
        self._lost |= len(timed) < len(records)
        return timed


def covered(intervals: Sequence[Interval]) -> int:
    """How much the intervals cover together, ns."""
    total, reached = 0, 0
    for start, end in sorted(intervals):
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total
