"""A case whose calls are made, and timed, by a program of its own: see layers/program.py."""

from __future__ import annotations

import random

from torch import Tensor

from bench.clocks.timer import Call
from bench.model import Direction, Policy
from bench.task import Task
from layers import Unavailable
from layers.program import Program
from layers.variants import Made


class RemoteTask(Task):
    """The task in the program. `output` and gradients are there once `collect` has brought them over."""

    def __init__(self, made: Made, direction: Direction, policy: Policy) -> None:
        super().__init__(made, direction, input_gradients=policy.input_gradients)
        assert isinstance(made.call, Program)
        self.fresh = False  # the program itself prepares each call
        self._program = made.call
        self.process = getattr(made.call, "pid", "self")  # an arm's layers may be older than this
        self._elapsed = 0.0
        if direction is not Direction.INFERENCE and not self._program.trains:
            raise Unavailable("AOTInductor compiles inference only: its output has no graph")
        if policy.cache == "cold":
            raise Unavailable("the C++ program times with warm caches only")
        self._program.policy(
            allocator=policy.allocator,
            tf32=policy.tf32,
            cudnn_benchmark=policy.cudnn_benchmark,
            deterministic=policy.deterministic,
        )

    def __call__(self) -> None:
        self.window(1)

    def repeat(self, times: int) -> None:
        self.window(times)

    def prepare(self) -> None:
        """Nothing: the program prepares."""

    def place(self, rng: random.Random) -> None:
        """Move the inputs in the program, as Task does it here."""
        self._program.place(rng.getrandbits(63))

    def touch(self) -> int:
        """See measure.Placeable; the address is one of the program's."""
        self._hold()
        if hasattr(self._program, "touch"):
            return self._program.touch()
        self._program.window(1)  # an arm's layers may be older than this
        return 0

    def window(self, calls: int) -> float:
        """Seconds a call, by the program's clock."""
        self._hold()
        seconds = self._program.window(calls)
        self._elapsed += seconds * calls
        return seconds

    def now(self) -> float:
        """A clock that stands still outside windows: how long one lasts must not depend on the wait for its answer."""
        return self._elapsed

    def page_faults(self) -> int:
        """Of the program, up to its last answer."""
        return self._program.page_faults

    def collect(self) -> None:
        """Bring over what the last call left."""
        self.returned, gradients, _ = self._program.results()
        for name, leaf in self.leaves().items():
            leaf.grad = gradients.get(name)

    def restart(self) -> None:
        """Nothing: the program's buffers are its own."""

    def _hold(self) -> None:
        if self._program.held is not self.inputs:  # the check uses the same program
            self._program.set(self._direction.value, self.inputs, self._first_gradient())

    def _first_gradient(self) -> Tensor | None:
        if self._direction is not Direction.BACKWARD:
            return None
        self._begin()
        return self._grad_output


class RemoteTimer:
    """Host wall time in the program: its steady clock around the calls, no pipe and no Python between them."""

    metric = "latency"
    clock = "host"
    about = "host wall time of one call, device synchronised"
    doubts: tuple[str, ...] = ()

    def window(self, call: Call, calls: int) -> float:
        assert isinstance(call, RemoteTask)
        return call.window(calls)
