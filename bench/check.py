"""Is a variant right? Outputs and every gradient against a float64 reference, before anything is timed.

A speed without a passed check is no result. What is tried, and why, is in `_trials`; what counts as wrong, in `Wrong`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bench.model import Direction
from bench.task import NoGradient, Task
from layers import Inputs, Layer
from layers.variants import SHAPE_BOUND, STRIDE_BOUND, Made, draw

# Largest relative Frobenius error that passes. Sums of rounded products in the dtype itself stay under these on all
# built-in layers; TF32 (about 3e-4), a wrong element or a lower-precision accumulation do not.
BOUNDS = {"float64": 1e-10, "float32": 5e-5, "float16": 5e-3, "bfloat16": 4e-2}
TF32_BOUND = 2e-3
# Where all elements of an output gradient are equal, rounding errors add up instead of cancelling: oneDNN's float32
# bias gradient over 2^18 equal values is off by 9e-4. What is looked for there (strides ignored, ...) is off by 1.
CONSTANT_BOUND = 2e-2
OPERATORS = frozenset({"custom_op", "custom_op_py", "stable_abi"})  # variants that opcheck can look into
OPS_OF_TORCH = frozenset({"aten", "prim", "prims", "profiler", "inductor", "c10d", "_c10d_functional", "higher_order"})


class Wrong(Exception):
    """The variant is incorrect; the text says how. `error` is the relative error where one could be had."""

    def __init__(self, message: str, error: float | None = None) -> None:
        super().__init__(message)
        self.error = error


@dataclass(frozen=True)
class Reference:
    """The right answer for one layer and one set of weights, in float64 on the device."""

    layer: Layer
    params: dict[str, Any]
    state: dict[str, Tensor]

    @classmethod
    def of(cls, layer: Layer, params: dict[str, Any], made: Made, device: torch.device) -> Reference:
        return cls(layer, params, {name: value.to(device) for name, value in made.state.items()})

    def output(self, inputs: Sequence[Tensor]) -> Tensor:
        return self.with_gradients(inputs, None)["output"]

    def with_gradients(self, inputs: Sequence[Tensor], grad_output: Tensor | None) -> dict[str, Tensor]:
        """`output` and, given the output's gradient, every gradient by the names of Task.leaves."""
        wide = [_wide(x).requires_grad_(x.is_floating_point()) for x in inputs]
        state = {name: _wide(value).requires_grad_(value.is_floating_point()) for name, value in self.state.items()}
        with torch.enable_grad():
            output = self._function()(state, *wide, **self.params)
        results = {"output": output.detach()}
        if grad_output is not None:
            leaves = {f"input {i}": x for i, x in enumerate(wide)} | state
            leaves = {name: leaf for name, leaf in leaves.items() if leaf.requires_grad}
            gradients = torch.autograd.grad(output, list(leaves.values()), _wide(grad_output), allow_unused=True)
            # Unused means that the output does not depend on it: a gradient of zero.
            results |= {
                name: torch.zeros_like(leaf) if gradient is None else gradient
                for (name, leaf), gradient in zip(leaves.items(), gradients, strict=True)
            }
        return results

    def _function(self) -> Callable[..., Tensor]:
        if self.layer.reference is not None:
            return self.layer.reference
        module = self.layer.versions["eager"](**self.params).double()

        def eager_in_float64(state: dict[str, Tensor], *inputs: Tensor, **_: Any) -> Tensor:
            result: Tensor = torch.func.functional_call(module.to(inputs[0].device), state, inputs)
            return result

        return eager_in_float64


def bound_for(dtype: str, *, tf32: bool) -> float:
    """The largest relative error that passes for a dtype."""
    return TF32_BOUND if tf32 and dtype == "float32" else BOUNDS[dtype]


def check(made: Made, reference: Reference, *, variant: str, dtype: str, bound: float, gradients: bool) -> float:
    """Try the variant on many inputs and return the largest relative error seen.

    Raises Wrong, NoGradient when gradients are wanted and there is no path to them, and whatever the layer raises.
    """
    worst = 0.0
    for label, inputs in _trials(reference, made, variant, dtype):
        worst = max(worst, _try(made, reference, label, inputs, bound, gradients))
    _keeps_its_output(made)
    if variant in OPERATORS:
        _opcheck(made)
    return worst


def check_last(task: Task, reference: Reference, direction: Direction, bound: float) -> None:
    """Check what the last timed call left: a layer can be right at first and wrong later. Raises Wrong."""
    output = task.output
    assert output is not None  # a timed task has been called
    grad_output = task.grad_output if direction is Direction.BACKWARD else torch.full_like(output, 1 / output.numel())
    # float16 cannot hold 1/numel of a large output: its training gradients are rounding noise, rightly so.
    gradients = direction.needs_gradient and not (
        direction is Direction.FORWARD_BACKWARD and output.dtype is torch.float16
    )
    wanted = reference.with_gradients(task.inputs, grad_output if gradients else None)
    _compare(output, wanted["output"], "output after timing", bound)
    if gradients:
        for name, leaf in task.leaves().items():
            if leaf.grad is None:
                raise Wrong(f"no gradient of {name} after timing")
            allowed = bound if direction is Direction.BACKWARD else max(bound, CONSTANT_BOUND)
            _compare(leaf.grad, wanted[name], f"gradient of {name} after timing", allowed)


def _trials(reference: Reference, made: Made, variant: str, dtype: str) -> Iterator[tuple[str, Inputs]]:
    """Inputs that tell a right layer from one that is right by luck: other values, other signs (a trace bakes in its
    branch), other strides, and the layer's own draws. A variant bound to a shape or to strides by its nature is
    not tried on others: that is a question of portability, and for a compiled one costs a compilation each."""
    layer, params, device = reference.layer, reference.params, made.inputs[0].device
    kind = getattr(torch, dtype)
    shapes = [x.shape for x in made.inputs]
    yield "the timed inputs", made.inputs
    second = draw(layer.inputs, params, seed=1, dtype=kind, device=device)
    yield "a second draw", second
    yield "negated inputs", tuple(-x if x.is_floating_point() else x for x in second)
    if variant not in STRIDE_BOUND:
        yield "non-contiguous inputs", tuple(non_contiguous(x) for x in second)
    for number, factory in enumerate(layer.draws):
        inputs = draw(factory, params, seed=2 + number, dtype=kind, device=device)
        if variant not in SHAPE_BOUND or [x.shape for x in inputs] == shapes:
            yield f"extra draw {number}", inputs


def _try(made: Made, reference: Reference, label: str, inputs: Inputs, bound: float, gradients: bool) -> float:
    before = [x.clone() for x in inputs]
    with torch.set_grad_enabled(gradients):
        output = _call(made, _leaves(inputs, gradients))
    for number, (x, copy) in enumerate(zip(inputs, before, strict=True)):
        if not torch.equal(x, copy):
            raise Wrong(f"modifies its input {number}")
    grad_outputs: list[tuple[str, Tensor, float]] = []
    if gradients:
        if not output.requires_grad:
            raise NoGradient("no gradient path: the output does not require a gradient")
        noise = torch.randn(output.shape, generator=torch.Generator().manual_seed(3)).to(output.device, output.dtype)
        grad_outputs = [("", noise, bound)]
        if label == "the timed inputs":
            # A backward that ignores strides is right until somebody calls .sum() or .t() behind it.
            equal = noise.flatten()[:1].sum().expand(output.shape)
            grad_outputs.append((", expanded output gradient", equal, max(bound, CONSTANT_BOUND)))
            grad_outputs.append((", non-contiguous output gradient", non_contiguous(noise), bound))
    worst = _compare(output, reference.output(inputs), f"output, {label}", bound)
    for suffix, grad_output, allowed in grad_outputs:
        error = _try_gradients(made, reference, label + suffix, inputs, grad_output, allowed)
        worst = max(worst, error if allowed == bound else 0.0)
    return worst


def _try_gradients(
    made: Made, reference: Reference, label: str, inputs: Inputs, grad_output: Tensor, bound: float
) -> float:
    leaves = _leaves(inputs, True)
    output = _call(made, leaves)
    named = {f"input {i}": x for i, x in enumerate(leaves) if x.requires_grad}
    named |= {name: p for name, p in made.module.named_parameters() if p.requires_grad}
    got = torch.autograd.grad(output, list(named.values()), grad_output, allow_unused=True)
    wanted = reference.with_gradients(inputs, grad_output)
    worst = 0.0
    for (name, leaf), gradient in zip(named.items(), got, strict=True):
        gradient = torch.zeros_like(leaf) if gradient is None else gradient
        worst = max(worst, _compare(gradient, wanted[name], f"gradient of {name}, {label}", bound))
    return worst


def _compare(got: Tensor, wanted: Tensor, what: str, bound: float) -> float:
    if got.shape != wanted.shape:
        raise Wrong(f"{what}: shape {tuple(got.shape)} where the reference has {tuple(wanted.shape)}")
    error = relative_error(got, wanted)
    if not error <= bound:  # so that NaN never passes
        shown = f"{error:.2g}" if error == error else "NaN"
        raise Wrong(f"{what}: relative error {shown} over {bound:g}", error if error < float("inf") else None)
    return error


def relative_error(got: Tensor, wanted: Tensor) -> float:
    """Relative Frobenius norm of the difference; 0 where both are zero or empty."""
    if not wanted.numel():
        return 0.0
    difference = torch.linalg.vector_norm(_wide(got) - wanted).item()
    size = torch.linalg.vector_norm(wanted).item()
    if difference == 0:
        return 0.0
    return difference / size if size else float("inf")


def non_contiguous(x: Tensor) -> Tensor:
    """The same values with other strides: every second element of a wider last dimension, transposed in memory."""
    if not x.dim():
        return x
    wide = torch.empty(*x.shape[:-1], 2 * x.shape[-1], dtype=x.dtype, device=x.device)
    strided = wide.transpose(0, -1).contiguous().transpose(0, -1)[..., ::2] if x.dim() > 1 else wide[::2]
    return strided.copy_(x)


def _call(made: Made, inputs: Sequence[Tensor]) -> Tensor:
    output: Any = made.call(*inputs)
    if not isinstance(output, Tensor):
        raise TypeError(f"the layer returned {type(output).__name__}, not a tensor")
    expected = next((x.dtype for x in inputs if x.is_floating_point()), output.dtype)
    if output.dtype != expected:
        raise Wrong(f"output is {output.dtype} for {expected} inputs".replace("torch.", ""))
    return output


def _leaves(inputs: Inputs, gradients: bool) -> Inputs:
    return tuple(x.detach().requires_grad_(gradients and x.is_floating_point()) for x in inputs)


def _keeps_its_output(made: Made) -> None:
    """A result that the next call overwrites (a static CUDA-graph buffer) is a trap for whoever keeps it."""
    with torch.no_grad():
        first = _call(made, made.inputs)
        kept = first.clone()
        _call(made, tuple(-x if x.is_floating_point() else x for x in made.inputs))
    if not torch.equal(first, kept):
        raise Wrong("overwrites its earlier output when called again")


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


def _wide(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    return tensor.double() if tensor.is_floating_point() else tensor
