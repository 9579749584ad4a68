"""What one call does in each direction, on a made variant: the thing that timers time and the check checks."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from bench.machine import memory
from bench.measure import Placeable
from bench.model import Direction
from bench.reference import identical, required, tensor_of
from layers.variants import Made

BALLAST = 16 << 20  # bytes: most that is put before an input
LITTLE = 16 << 10  # bytes: of an output that is no longer, several places in turns all stay in the first cache


class NoGradient(Exception):
    """The direction needs a backward pass and the output has none to give."""


class Task(Placeable):
    """One direction of one made variant.

    `fresh` directions need prepare() before every call: a backward pass consumes its graph, and gradients that
    are not cleared accumulate, which costs time and changes results.
    """

    def __init__(self, made: Made, direction: Direction, *, input_gradients: bool = True) -> None:
        self._made, self._direction = made, direction
        # A layer without parameters has only its inputs to differentiate.
        self.input_gradients = input_gradients or not any(p.requires_grad for p in made.module.parameters())
        self._grad_output: Tensor | None = None
        self._ballast: list[Tensor] = []
        self.process: int | str = "self"  # that makes the calls, by its name in /proc
        self.fresh = direction.needs_gradient
        self.returned: Any = None  # by the latest call
        self._call = made.call if not self.fresh else _one_tensor(made)  # a backward pass needs it
        # Unbound: a method of its own would keep a task and its layer alive until the collector comes by.
        works = {Direction.BACKWARD: Task._backward, Direction.FORWARD_BACKWARD: Task._step}
        self._work = works.get(direction, Task._forward)
        self.inputs: tuple[Tensor, ...] = ()
        self._cleared: list[Tensor] = []
        self._take(made.inputs)

    def __call__(self) -> None:
        self._work(self)

    def repeat(self, times: int) -> None:
        if self.fresh:
            super().repeat(times)
            return
        call, inputs, self.returned = self._call, self.inputs, None
        returned = None
        for _ in range(times):
            returned = None  # freed first: the next may lie where this one lay
            returned = call(*inputs)  # by no method of ours, nor kept in an attribute: 100 to 200 ns each time
        self.returned = returned

    @property
    def output(self) -> Tensor | None:
        """The tensor in what the latest call returned; None before one. TypeError where there is none in it."""
        if self.returned is None:
            return None
        return (required if self.fresh else tensor_of)(self.returned, self._made)

    @property
    def tensors(self) -> list[Tensor]:
        """All that the latest call returned."""
        return [leaf for leaf in tree_leaves(self.returned) if isinstance(leaf, Tensor)]

    def prepare(self) -> None:
        if not self.fresh:
            return
        self.clear()
        if self._direction is Direction.BACKWARD:
            self._begin()

    def clear(self) -> None:
        """Let go of what the last call left: its output with its graph, and gradients."""
        self.returned = None
        for leaf in self._cleared:
            leaf.grad = None

    def place(self, rng: random.Random) -> None:
        """Copy the inputs to random 64-byte-aligned places, with blocks of random size, up to their own, allocated
        before them so that the outputs land elsewhere too. Leaves values, strides and requires_grad alone."""
        self.returned = None  # its graph may hold the old inputs
        self.inputs, self._cleared, self._ballast = (), [], []  # freed before others are taken
        self._ballast = [
            torch.empty(
                64 * rng.randrange(1, 65 + min(tensor.nbytes, BALLAST) // 64), dtype=torch.uint8, device=tensor.device
            )
            for tensor in self._made.inputs
        ]
        self._take(tuple(placed(tensor, rng.randrange(64)) for tensor in self._made.inputs))

    def touch(self) -> int:
        """See measure.Placeable. 0 too where a caching allocator sees to it or the place does not matter, and of a
        backward pass: what that takes and frees hardly ever comes back to where it was, wherever it is tried."""
        self.prepare()
        self()
        if self.fresh or not (tensors := self.tensors):
            return 0
        output = tensors[0]
        if not output.is_cpu or output.layout is not torch.strided:
            return 0
        return output.data_ptr() if output.nbytes > LITTLE else 0

    def now(self) -> float:
        """The clock, in seconds, that says how long a window lasts."""
        return time.perf_counter()

    def page_faults(self) -> int:
        """Of the process that makes the calls, so far."""
        return memory.page_faults()

    def collect(self) -> None:
        """Bring over the output and the gradients of the last call: here they are at home."""

    def restart(self) -> None:
        """Where calls change buffers, on which their answers may depend: call once more, with those of the start."""
        if restore(self._made):
            self.prepare()
            with self.grad_mode():
                self()

    @contextmanager
    def grad_mode(self) -> Iterator[None]:
        """Entered once around many calls: entering it for each would be timed."""
        self._cleared = list(self.leaves().values())  # a layer's first call may have put other parameters there
        with torch.set_grad_enabled(self._direction is not Direction.INFERENCE):
            yield

    def leaves(self) -> dict[str, Tensor]:
        """Everything that gets a gradient, by name: `input 0`, `weight`, ..."""
        named: dict[str, Tensor] = {f"input {i}": x for i, x in enumerate(self.inputs) if x.requires_grad}
        named.update({name: p for name, p in self._made.module.named_parameters() if p.requires_grad})
        return named

    @property
    def grad_output(self) -> Tensor | None:
        """The gradient that `backward` starts from; None before the first call."""
        return self._grad_output

    def _take(self, inputs: tuple[Tensor, ...]) -> None:
        """Make calls on these from now on."""
        wanted = self._direction is not Direction.INFERENCE and self.input_gradients
        self.inputs = tuple(x.detach().requires_grad_(wanted and x.is_floating_point()) for x in inputs)
        # Listed once: a training step that follows on the many lines of Python that find them is 2 us slower.
        self._cleared = list(self.leaves().values())

    def _forward(self) -> None:
        self.returned = None  # freed first, as in `repeat`
        self.returned = self._call(*self.inputs)

    def _backward(self) -> None:
        torch.autograd.backward(self.returned, self._grad_output)

    def _step(self) -> None:
        self.returned = output = self._call(*self.inputs)
        try:
            output.mean().backward()
        except Exception:  # asked only now: it would be timed
            require_gradient(required(self.returned, self._made))
            raise

    def _begin(self) -> None:
        """Go forward, and have a gradient to go back from: the same each time."""
        self._forward()
        output = required(self.returned, self._made)
        require_gradient(output)
        if self._grad_output is None:
            drawn = torch.randn(output.shape, generator=torch.Generator().manual_seed(0))
            self._grad_output = drawn.to(output.device, output.dtype)


def require_gradient(output: Tensor) -> None:
    """Raises NoGradient, with what to do, where a backward pass cannot start from it."""
    if not output.requires_grad:
        raise NoGradient(
            "no gradient path: the output does not require a gradient (direction: inference or forward needs none)"
        )


def _one_tensor(made: Made) -> Callable[..., Any]:
    """Calls of which the layer's `output` is a part."""
    call, output = made.call, getattr(made, "output", None)  # a gate's older revision has none
    return call if output is None else lambda *inputs: output(call(*inputs))


def held(made: Made) -> dict[str, Tensor]:
    """What calls may change and a backward pass does not train, by name: buffers, frozen parameters."""
    module = made.module
    frozen = {name: one for name, one in module.named_parameters() if not one.requires_grad}
    return {name: one for name, one in {**frozen, **dict(module.named_buffers())}.items() if name in made.state}


def restore(made: Made) -> bool:
    """Put what it holds back as it was made: what a call leaves there must not change the answer of the next one that
    is checked. Whether there is any."""
    found = held(made)
    with torch.no_grad():
        for name, one in found.items():
            value = made.state[name]
            if one.shape == value.shape and (0 not in one.stride() or one.numel() < 2):
                one.copy_(value)
            elif not identical(one, value.to(one)):  # a call has put another one there
                owner, _, last = name.rpartition(".")
                setattr(made.module.get_submodule(owner), last, value.to(one, copy=True))
    return bool(found)


def placed(tensor: Tensor, lines: int) -> Tensor:
    """A copy that starts `lines` cache lines (of 64 bytes) into an allocation of its own."""
    if any(stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)):
        return tensor.detach().clone()  # expanded: its elements share memory, so it has no layout to keep
    itemsize = tensor.element_size()
    extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    storage = torch.UntypedStorage((max(extent, 1) + 1) * itemsize + 64 * (lines + 1), device=tensor.device)
    # Not a view of a buffer: autograd and dynamo treat views of one base in ways of their own.
    offset = (-storage.data_ptr() % 64 + 64 * lines) // itemsize
    copy = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    copy.set_(storage, offset, tensor.shape, tensor.stride())
    return copy.copy_(tensor.detach())
