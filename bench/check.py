"""Is a variant right? Outputs and every gradient against a float64 reference, before anything is timed.

A speed without a passed check is no result. On which inputs is in bench/trials.py, how far off is wrong in
bench/bounds.py; what else is asked of a version, in the methods of `_Check`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bench.bounds import CONSTANT_BOUND, Wrong, compare_buffer, compare_gradients, compare_output
from bench.model import Direction
from bench.reference import Reference, identical, relative_error, tensor_of
from bench.task import NoGradient, Task, held, require_gradient, restore
from bench.trials import copies, leaves, non_contiguous, second_draw, takes_strides, trials
from layers import Inputs
from layers.program import Program
from layers.variants import Made

SLOPE_BOUND = 0.01  # of a gradient against finite differences
OPERATORS = frozenset({"custom_op", "custom_op_py", "stable_abi"})  # variants that opcheck can look into
# The graph of their first call is gone once there is a second: torch says so of make_graphed_callables.
ONE_GRAPH = frozenset({"eager_graph", "native_graph", "custom_op_graph", "script_cpp", "aoti_cpp"})
OPS_OF_TORCH = frozenset({"aten", "prim", "prims", "profiler", "inductor", "c10d", "_c10d_functional", "higher_order"})


def check(
    made: Made,
    reference: Reference,
    *,
    variant: str,
    dtype: str,
    bound: float,
    direction: Direction,
    input_gradients: bool = True,
) -> float:
    """Try the variant on many inputs and return the largest relative error seen.

    Raises Wrong, NoGradient when gradients are wanted and there is no path to them, and whatever the layer raises.
    """
    second = second_draw(reference, dtype, made.inputs[0].device)
    found = reference.eager(copies(made.inputs))
    kind = reference.kind if found is None else found.dtype  # where eager takes no inputs of the case's dtype, that
    one = _Check(made, reference, variant, second, kind, bound, direction.needs_gradient, input_gradients)
    with torch.set_grad_enabled(direction is not Direction.INFERENCE):  # as it will be timed
        worst = max(one.on(label, inputs) for label, inputs in trials(made, reference, second, variant, dtype))
        one.keeps_its_output()
        worst = max(worst, one.reads_its_inputs(), one.reads_its_weights(), one.leaves_its_state())
    if variant in OPERATORS:
        _opcheck(made)
    return worst


def check_last(task: Task, reference: Reference, direction: Direction, bound: float) -> None:
    """Check what the last timed call left: a layer can be right at first and wrong later. Raises Wrong."""
    task.restart()
    output = task.output
    assert output is not None  # a timed task has been called
    grad_output = task.grad_output
    if direction is not Direction.BACKWARD:
        grad_output = torch.full_like(output, 1 / max(1, output.numel()))
    # float16 cannot hold 1/numel of a large output: its training gradients are rounding noise, rightly so.
    gradients = direction.needs_gradient and not (
        direction is Direction.FORWARD_BACKWARD and output.dtype is torch.float16
    )
    answer = reference.answer(task.inputs, grad_output if gradients else None)
    compare_output(output, answer, "output after timing", bound)
    if gradients:
        assert grad_output is not None  # a backward pass started from it
        allowed = bound if direction is Direction.BACKWARD else max(bound, CONSTANT_BOUND)
        got = {name: leaf.grad for name, leaf in task.leaves().items()}
        compare_gradients(got, answer, grad_output, " after timing", allowed)


def eager_warnings(reference: Reference, inputs: Inputs, gradients: bool) -> tuple[str, ...]:
    """What is amiss with eager: it takes no strides, has no float64, or its gradients are not its slope."""
    told = []
    if not takes_strides(reference, inputs):
        told.append("takes no non-contiguous inputs (a `view` in it?), so no version was tried on such")
    if reference.layer.reference is not None:
        return tuple(told)
    dtype = reference.output(inputs).dtype
    if dtype.is_floating_point and dtype is not torch.float64:
        kind = str(dtype).removeprefix("torch.")
        told.append(
            f"gives {kind} whatever it is given, so without a `reference` its errors are no distances from float64"
        )
    elif gradients and (off := reference.slope_error(inputs, SLOPE_BOUND)) > SLOPE_BOUND:
        told.append(
            f"its gradients are at least {100 * off:.0f} % off its finite differences, and without a `reference` eager "
            "is compared with nothing but itself: wrong, unless meant so (a straight-through estimator, an "
            "embedding's padding_idx)"
        )
    return tuple(told)


def shares_its_input(made: Made, reference: Reference) -> bool:
    """Whether it gives back the memory of an input, or a part of it, where eager gives memory of its own."""
    given = copies(made.inputs)
    with torch.no_grad():
        found = tensor_of(made.call(*given), made)
        if not any(_share(found, x) for x in given):
            return False
        eagers = reference.eager(given)
    return eagers is not None and not any(_share(eagers, x) for x in given)


@dataclass(frozen=True)
class _Check:
    made: Made
    reference: Reference
    variant: str
    second: Inputs  # other values than the timed ones
    kind: torch.dtype  # of eager's output
    bound: float
    gradients: bool
    input_gradients: bool

    def on(self, label: str, inputs: Inputs) -> float:
        """The largest error on these inputs."""
        try:
            return self._on(label, inputs)
        except Exception as error:
            if not isinstance(error, Wrong | NoGradient):
                error.add_note(f"when the check tried {label}")
            raise

    def _on(self, label: str, inputs: Inputs) -> float:
        before = copies(inputs)
        output = self._call(self._leaves(inputs))
        if output.dtype != self.kind:
            raise Wrong(f"output is {output.dtype} where eager's is {self.kind}".replace("torch.", ""))
        _unchanged(inputs, before)
        try:
            worst = compare_output(output, self.reference.answer(inputs), f"output, {label}", self.bound)
        except Wrong as wrong:
            raise Wrong(f"{wrong}{self._if_random(inputs)}", wrong.error) from None
        if self.gradients:
            require_gradient(output)
            worst = max(worst, self._gradients_on(label, inputs, output))
        if worst > self.bound and (why := self._if_random(inputs)):  # that is no rounding
            raise Wrong(f"output, {label}: relative error {worst:.2g} over {self.bound:g}{why}", worst)
        return worst

    def _gradients_on(self, label: str, inputs: Inputs, like: Tensor) -> float:
        noise = torch.randn(like.shape, generator=torch.Generator().manual_seed(3)).to(like.device, like.dtype)
        worst = self._gradients(label, inputs, noise, self.bound)
        if label == "the timed inputs":
            # A backward that ignores strides is right until somebody calls .sum() or .t() behind it.
            equal = noise.flatten()[:1].sum().expand(like.shape)
            self._gradients(f"{label}, expanded output gradient", inputs, equal, max(self.bound, CONSTANT_BOUND))
            strided = non_contiguous(noise)
            worst = max(worst, self._gradients(f"{label}, non-contiguous output gradient", inputs, strided, self.bound))
        return worst

    def _gradients(self, label: str, inputs: Inputs, grad_output: Tensor, bound: float) -> float:
        given = self._leaves(inputs)
        output = self._call(given)
        # A layer may be called again before the first call's backward pass, unless calls change what that needs.
        alone = self.variant in ONE_GRAPH or held(self.made)
        between = None if alone else self.made.call(*self._leaves(self.second))
        named = {f"input {i}": x for i, x in enumerate(given) if x.requires_grad}
        named |= {name: p for name, p in self.made.module.named_parameters() if p.requires_grad}
        before, kept = copies(inputs), grad_output.clone()
        found = torch.autograd.grad(output, list(named.values()), grad_output, allow_unused=True)
        del between
        _unchanged(inputs, before, " in its backward pass")
        if not identical(grad_output, kept):
            raise Wrong("modifies its output gradient in its backward pass")
        answer = self.reference.answer(inputs, grad_output)
        if all(one is None for one in found) and any(answer.exact[name].any() for name in named):
            raise NoGradient("no gradient path: none arrives at any input or weight; an operator without a backward?")
        if untrained := [name for name in self.reference.trained.values() if name not in named]:
            raise Wrong(f"does not train {untrained[0]}, which eager does: it has no gradient")
        return compare_gradients(dict(zip(named, found, strict=True)), answer, grad_output, f", {label}", bound)

    def keeps_its_output(self) -> None:
        """A result that a later call overwrites (a static CUDA-graph buffer) is a trap for whoever keeps it."""
        restore(self.made)
        first = self.made.call(*self.made.inputs)  # whole: an `output` may copy
        kept = tensor_of(first, self.made).clone()
        for _ in range(3):  # it may have several that it uses in turns
            self._call(self.second)
        if not identical(tensor_of(first, self.made), kept):
            raise Wrong("overwrites its earlier output when called again")

    def reads_its_inputs(self) -> float:
        """In every call, and not what it remembers of them: new values where the last ones lay are answered anew, and
        the same inputs once more by another tensor. What copies of them are answered with, too, depends on no values.
        """
        inputs = copies(self.made.inputs)
        first, again = (self._call(inputs) for _ in range(2))
        if _share(first, again) and not any(_share(first, x) for x in (*inputs, self._call(copies(inputs)))):
            raise Wrong("remembers its answer: the second of two calls on the same tensors returns the first's")
        if [x.shape for x in self.second] != [x.shape for x in inputs]:
            return 0.0
        for x, other in zip(inputs, self.second, strict=True):
            x.copy_(other)
        answer = self.reference.answer(inputs)
        return compare_output(self._call(inputs), answer, "output, new values in the same inputs", self.bound)

    def reads_its_weights(self) -> float:
        """In every call of a training step, for the last one has changed them."""
        if not self.gradients or isinstance(self.made.call, Program):
            return 0.0
        trained = {name: p for name, p in self.made.module.named_parameters() if p.requires_grad}
        of_all = self.reference.state.items()
        halved = {name: value / 2 if name in self.reference.trained else value for name, value in of_all}
        kept = {name: p.detach().clone() for name, p in trained.items()}
        with torch.no_grad():
            for p in trained.values():
                p.mul_(0.5)
        try:
            answer = replace(self.reference, state=halved).answer(self.made.inputs)
            return compare_output(self._call(self.made.inputs), answer, "output, other weights in place", self.bound)
        finally:
            with torch.no_grad():
                for name, p in trained.items():
                    p.copy_(kept[name])

    def leaves_its_state(self) -> float:
        """As eager does: a batch norm without its running statistics is faster, and wrong, and so is a weight that is
        not what it was."""
        if not isinstance(self.made.call, torch.nn.Module):
            return 0.0
        wanted = self.reference.changes(self.made.inputs)
        if wanted is None:
            return 0.0
        self._call(self.made.inputs)
        worst = 0.0
        for name, one in self._state().items():
            if name in wanted:
                worst = max(worst, compare_buffer(one.detach(), wanted[name], name, self.bound))
            elif not identical(one.detach(), self.made.state[name].to(one)):  # as the earliest call may have left it
                raise Wrong(f"changes {name}, which eager leaves as it is")
        return worst

    def _state(self) -> dict[str, Tensor]:
        module = self.made.module
        named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        return {name: one for name, one in named.items() if name in self.made.state}

    def _call(self, inputs: Sequence[Tensor]) -> Tensor:
        restore(self.made)
        return tensor_of(self.made.call(*inputs), self.made)

    def _leaves(self, inputs: Inputs) -> Inputs:
        return leaves(inputs, self.gradients and self.input_gradients)

    def _if_random(self, inputs: Inputs) -> str:
        with torch.no_grad():
            first, second = (self._call(inputs).clone() for _ in range(2))
        same = (
            torch.equal(first.isnan(), second.isnan())
            and relative_error(second.nan_to_num(), first.nan_to_num()) <= self.bound
        )
        if same:
            return ""
        why = "does it leave a part of its output unwritten (torch.empty), or is the layer random (dropout)?"
        remedy = "only one that gives the same answer twice can be checked: make it with p=0"
        or_else = ", or measure inference alone" if self.made.module.training else ""
        return f"; two calls on the same inputs differ: {why} {remedy}{or_else}"


def _unchanged(inputs: Inputs, before: Inputs, when: str = "") -> None:
    for number, (x, copy) in enumerate(zip(inputs, before, strict=True)):
        if not identical(x, copy):
            raise Wrong(f"modifies its input {number}{when}")


def _share(a: Tensor, b: Tensor) -> bool:
    """Whether they lie in the same memory."""
    return a.numel() > 0 and a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def _opcheck(made: Made) -> None:
    """Put every custom operator that the variant calls through torch.library.opcheck, on the arguments it got."""
    with torch.no_grad(), _CustomCalls() as mode:
        made.call(*made.inputs)
    for op, args, kwargs in mode.calls:
        try:
            torch.library.opcheck(op, args, kwargs, test_utils=("test_schema", "test_faketensor"))
        except Exception as error:  # OpCheckError, or what the operator raises
            raise Wrong(f"opcheck of {op}: {str(error).strip().splitlines()[0]}") from error


class _CustomCalls(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace not in OPS_OF_TORCH:
            self.calls.append((func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))
