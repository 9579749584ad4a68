"""A GPU of made-up time: a host that enqueues, a stream that runs in order, a hold that lets go or times out."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from bench.clocks.hold import TIMEOUT
from bench.clocks.timer import Call

MARK = 2.3e-6  # s: what an empty event pair takes
LAUNCH = 10e-6  # s: what enqueueing a kernel takes the host
QUEUE = 1000  # kernels the launch queue takes


@dataclass
class Op:
    kind: str  # hold, mark or kernel
    enqueued: float
    length: float = 0.0
    end: float = field(default=-1.0)


class FakeGpu:
    """Satisfies hold.Gpu. A host that waits while it holds the stream waits until the hold times out."""

    def __init__(self, doubt: str = "") -> None:
        self.doubt = doubt
        self.host = self.stream = self.side = 0.0
        self.pending: list[Op] = []
        self.holds = 0
        self.late = False
        self.gap = 0.0  # s: what a kernel takes beyond its work

    # What layers do.
    def launch(self, seconds: float) -> None:
        if sum(op.kind == "kernel" for op in self.pending) >= QUEUE:
            self.synchronise()
        self.host += LAUNCH
        self._push("kernel", seconds + self.gap)

    def launch_aside(self, seconds: float) -> None:
        self.host += LAUNCH
        self.side = max(self.side, self.host) + seconds

    def synchronise(self) -> None:
        self._run(None)
        self.host = max(self.host, self.stream, self.side)

    # hold.Gpu.
    def current(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def hold(self) -> None:
        self.holds += 1
        self.late = False
        self._push("hold", TIMEOUT)

    def release(self) -> None:
        self._run(self.host)

    def covered(self) -> bool:
        return not self.late

    def lengthen(self) -> bool:
        return False

    def mark(self) -> Op:
        self.host += 1e-6
        return self._push("mark", MARK)

    def wait(self, mark: Op) -> None:
        self.host = max(self.host, mark.end)

    def seconds(self, start: Op, end: Op) -> float:
        return end.end - start.end

    def nothing(self) -> None:
        self.launch(0.0)

    def settle(self) -> float:
        before = self.host
        self.synchronise()
        self.host += 5e-6
        return self.host - before

    def _push(self, kind: str, length: float) -> Op:
        op = Op(kind, self.host, length)
        self.pending.append(op)
        return op

    def _run(self, released: float | None) -> None:
        for op in self.pending:
            begin = max(self.stream, op.enqueued)
            op.end = begin + op.length
            if op.kind == "hold" and released is not None and released <= op.end:
                op.end = max(begin, released)
            elif op.kind == "hold":
                self.late = True
            self.stream = op.end
        self.pending.clear()


class GuessingGpu(FakeGpu):
    """Holds for a guessed time, as torch's own sleep does."""

    length = 200e-6

    def hold(self) -> None:
        self.holds += 1
        self._push("kernel", self.length)
        self.until = max(self.stream, self.host) + self.length

    def release(self) -> None:
        self.late = self.host > self.until
        self._run(self.host)

    def lengthen(self) -> bool:
        self.length *= 2
        return self.length < 2 * TIMEOUT


class GpuWork(Call):
    """A call that does `work`, after `preparation` where it is fresh."""

    def __init__(self, work: Callable[[], object], preparation: Callable[[], object] | None = None) -> None:
        self.work, self.preparation = work, preparation
        self.fresh = preparation is not None
        self.calls = 0

    def prepare(self) -> None:
        if self.preparation:
            self.preparation()

    def __call__(self) -> None:
        self.calls += 1
        self.work()
