"""Is a variant right? Outputs and every gradient against a float64 reference, before anything is timed.

A speed without a passed check is no result. What is tried, and why, is in `_trials`; what counts as wrong, in `Wrong`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bench.model import Direction
from bench.reference import Answer, Reference, distance, relative_error, scale_of, tensor_of
from bench.task import NoGradient, Task, require_gradient, restore
from layers import Inputs
from layers.variants import SHAPE_BOUND, STRIDE_BOUND, Made, draw

# Largest relative Frobenius error that passes. Sums of rounded products in the dtype itself stay under these on all
# built-in layers; TF32 (about 3e-4), a wrong element or a lower-precision accumulation do not. Where rounding takes the
# reference itself further off, worked out in the dtype (a ReLU or a maximum that decides otherwise), it may be ROUNDED
# times as far, up to MOST bounds. A gradient whose error is NOTHING beside the layer's others may be as far off as that
# goes, and is measured by them: of equal numbers through a softmax that works in float32 it is all rounding.
BOUNDS = {"float64": 1e-10, "float32": 5e-5, "float16": 5e-3, "bfloat16": 4e-2}
ROUNDED, MOST, NOTHING = 2, 10, 1e-6
TF32_BOUND = 2e-3
# Where all elements of an output gradient are equal, rounding errors add up instead of cancelling: oneDNN's float32
# bias gradient over 2^18 equal values is off by 9e-4. What is looked for there (strides ignored, ...) is off by 1.
CONSTANT_BOUND = 2e-2
SLOPE_BOUND = 0.01  # of a gradient against finite differences
OPERATORS = frozenset({"custom_op", "custom_op_py", "stable_abi"})  # variants that opcheck can look into
OPS_OF_TORCH = frozenset({"aten", "prim", "prims", "profiler", "inductor", "c10d", "_c10d_functional", "higher_order"})


class Wrong(Exception):
    """The variant is incorrect; the text says how. `error` is the relative error where one could be had."""

    def __init__(self, message: str, error: float | None = None) -> None:
        super().__init__(message)
        self.error = error


def bound_for(dtype: str, *, tf32: bool) -> float:
    """The largest relative error that passes for a dtype; integers are exact."""
    return TF32_BOUND if tf32 and dtype == "float32" else BOUNDS.get(dtype, 0.0)


def check(made: Made, reference: Reference, *, variant: str, dtype: str, bound: float, gradients: bool) -> float:
    """Try the variant on many inputs and return the largest relative error seen.

    Raises Wrong, NoGradient when gradients are wanted and there is no path to them, and whatever the layer raises.
    """
    worst = 0.0
    expected = reference.output_dtype(made.inputs)
    second = _second_draw(made, reference, dtype)
    for label, inputs in _trials(reference, made, second, variant, dtype):
        try:
            worst = max(worst, _try(made, reference, label, inputs, expected, bound, gradients))
        except Exception as error:
            if not isinstance(error, Wrong | NoGradient):
                error.add_note(f"when the check tried {label}")
            raise
    _keeps_its_output(made, second)
    worst = max(worst, _reads_its_inputs(made, reference, second, bound), _updates_its_buffers(made, reference, bound))
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
    _compare_output(output, answer, "output after timing", bound)
    if gradients:
        assert grad_output is not None  # a backward pass started from it
        allowed = bound if direction is Direction.BACKWARD else max(bound, CONSTANT_BOUND)
        got = {name: leaf.grad for name, leaf in task.leaves().items()}
        _compare_gradients(got, answer, grad_output, " after timing", allowed)


def eager_warnings(reference: Reference, inputs: Inputs, gradients: bool) -> tuple[str, ...]:
    """What is amiss with eager as the reference: it has no float64, or its gradients are not its slope."""
    dtype = reference.output(inputs).dtype
    if dtype.is_floating_point and dtype is not torch.float64:
        kind = str(dtype).removeprefix("torch.")
        told = f"gives {kind} whatever it is given, so without a `reference` its errors are no distances from float64"
        return (told,)
    off = reference.slope_error(inputs, SLOPE_BOUND) if gradients else 0.0
    if off <= SLOPE_BOUND:
        return ()
    told = f"its gradients are at least {100 * off:.0f} % off its finite differences, and without a `reference`"
    return (f"{told} eager is compared with nothing but itself: wrong, unless meant so (a straight-through estimator)",)


def _second_draw(made: Made, reference: Reference, dtype: str) -> Inputs:
    device = made.inputs[0].device
    return draw(reference.layer.inputs, reference.params, seed=1, dtype=getattr(torch, dtype), device=device)


def _trials(reference: Reference, made: Made, second: Inputs, variant: str, dtype: str) -> Iterator[tuple[str, Inputs]]:
    """Inputs that tell a right layer from one that is right by luck: other values, other signs (a trace bakes in its
    branch; not where the reference has no answer), other strides, and the layer's own draws. A variant bound to a shape
    or to strides by its nature is not tried on others: that is a question of portability, and for a compiled one
    costs a compilation each."""
    layer, params, device = reference.layer, reference.params, made.inputs[0].device
    kind = getattr(torch, dtype)
    shapes = [x.shape for x in made.inputs]
    yield "the timed inputs", made.inputs
    again = _second_draw(made, reference, dtype)
    if any(not torch.equal(*pair) for pair in zip(second, again, strict=True)):
        raise ValueError(
            "`inputs` gives other values each time for the same generator, so variants would not be timed on the same "
            "ones: draw with torch.randn(..., generator=generator)"
        )
    yield "a second draw", second
    negated = tuple(-x if x.is_floating_point() else x for x in second)
    if reference.takes(negated):
        yield "negated inputs", negated
    if variant not in STRIDE_BOUND:
        yield "non-contiguous inputs", tuple(non_contiguous(x) for x in second)
    for number, factory in enumerate(layer.draws):
        inputs = draw(factory, params, seed=2 + number, dtype=kind, device=device)
        if variant not in SHAPE_BOUND or [x.shape for x in inputs] == shapes:
            yield f"extra draw {number}", inputs


def _try(
    made: Made,
    reference: Reference,
    label: str,
    inputs: Inputs,
    expected: torch.dtype,
    bound: float,
    gradients: bool,
) -> float:
    before = _copies(inputs)
    with torch.set_grad_enabled(gradients):
        output = _call(made, _leaves(inputs, gradients))
    if output.dtype != expected:
        raise Wrong(f"output is {output.dtype} where eager's is {expected}".replace("torch.", ""))
    for number, (x, copy) in enumerate(zip(inputs, before, strict=True)):
        if not torch.equal(x, copy):
            raise Wrong(f"modifies its input {number}")
    grad_outputs: list[tuple[str, Tensor, float]] = []
    if gradients:
        require_gradient(output)
        noise = torch.randn(output.shape, generator=torch.Generator().manual_seed(3)).to(output.device, output.dtype)
        grad_outputs = [("", noise, bound)]
        if label == "the timed inputs":
            # A backward that ignores strides is right until somebody calls .sum() or .t() behind it.
            equal = noise.flatten()[:1].sum().expand(output.shape)
            grad_outputs.append((", expanded output gradient", equal, max(bound, CONSTANT_BOUND)))
            grad_outputs.append((", non-contiguous output gradient", non_contiguous(noise), bound))
    try:
        worst = _compare_output(output, reference.answer(inputs), f"output, {label}", bound)
    except Wrong as wrong:
        raise Wrong(f"{wrong}{_if_random(made, inputs, bound)}", wrong.error) from None
    for suffix, grad_output, allowed in grad_outputs:
        error = _try_gradients(made, reference, label + suffix, inputs, grad_output, allowed)
        worst = max(worst, error if allowed == bound else 0.0)
    if worst > bound and (why := _if_random(made, inputs, bound)):  # that is no rounding
        raise Wrong(f"output, {label}: relative error {worst:.2g} over {bound:g}{why}", worst)
    return worst


def _try_gradients(
    made: Made, reference: Reference, label: str, inputs: Inputs, grad_output: Tensor, bound: float
) -> float:
    leaves = _leaves(inputs, True)
    output = _call(made, leaves)
    named = {f"input {i}": x for i, x in enumerate(leaves) if x.requires_grad}
    named |= {name: p for name, p in made.module.named_parameters() if p.requires_grad}
    found = torch.autograd.grad(output, list(named.values()), grad_output, allow_unused=True)
    answer = reference.answer(inputs, grad_output)
    if all(one is None for one in found) and any(answer.exact[name].any() for name in named):
        raise NoGradient("no gradient path: none arrives at any input or weight; an operator without a backward?")
    return _compare_gradients(dict(zip(named, found, strict=True)), answer, grad_output, f", {label}", bound)


def _compare_gradients(
    got: Mapping[str, Tensor | None], answer: Answer, grad_output: Tensor, when: str, bound: float
) -> float:
    """The largest error. None is the gradient of what the output does not depend on: zero."""
    scale, worst = scale_of(answer.exact, grad_output), 0.0
    for name, gradient in got.items():
        wanted, what = answer.exact[name], f"gradient of {name}{when}"
        gradient = torch.zeros_like(wanted) if gradient is None else gradient
        worst = max(worst, _compare(gradient, wanted, what, bound, scale, partial(answer.rounding, name, scale)))
    return worst


def _compare_output(output: Tensor, answer: Answer, what: str, bound: float) -> float:
    return _compare(output, answer.exact["output"], what, bound, rounding=partial(answer.rounding, "output"))


def _if_random(made: Made, inputs: Inputs, bound: float) -> str:
    with torch.no_grad():
        first, second = (_call(made, inputs).clone() for _ in range(2))
    same = (
        torch.equal(first.isnan(), second.isnan()) and relative_error(second.nan_to_num(), first.nan_to_num()) <= bound
    )
    remedy = "only one that gives the same answer twice can be checked: make it with p=0, or measure inference alone"
    return "" if same else f"; two calls on the same inputs differ: is the layer random (dropout)? {remedy}"


def _compare(
    got: Tensor,
    wanted: Tensor,
    what: str,
    bound: float,
    scale: float = 0.0,
    rounding: Callable[[], float] = float,  # asked only beyond the bound, for it takes a call of the reference
) -> float:
    if got.shape != wanted.shape:
        raise Wrong(f"{what}: shape {tuple(got.shape)} where the reference has {tuple(wanted.shape)}")
    error = relative_error(got, wanted, scale)
    if not error <= bound:  # so that NaN never passes
        allowed, beside = ROUNDED * rounding(), distance(got, wanted)
        if error <= allowed and beside <= NOTHING * scale:
            return beside / scale
        bound = max(bound, min(allowed, MOST * bound))
    if not error <= bound:
        shown = f"{error:.2g} over {bound:g}" if error == error else f"NaN: {_nans(got)}, {_nans(wanted)} wanted"
        raise Wrong(f"{what}: relative error {shown}", error if error < float("inf") else None)
    return error


def _nans(x: Tensor) -> str:
    return f"{int(x.isnan().sum())} of {x.numel()} are NaN"


def non_contiguous(x: Tensor) -> Tensor:
    """The same values with other strides: every second element of a wider last dimension, transposed in memory."""
    if not x.dim():
        return x
    wide = torch.empty(*x.shape[:-1], 2 * x.shape[-1], dtype=x.dtype, device=x.device)
    strided = wide.transpose(0, -1).contiguous().transpose(0, -1)[..., ::2] if x.dim() > 1 else wide[::2]
    return strided.copy_(x)


def _call(made: Made, inputs: Sequence[Tensor]) -> Tensor:
    restore(made)
    return tensor_of(made.call(*inputs), made)


def _leaves(inputs: Inputs, gradients: bool) -> Inputs:
    return tuple(x.detach().requires_grad_(gradients and x.is_floating_point()) for x in inputs)


def _keeps_its_output(made: Made, others: Inputs) -> None:
    """A result that the next call overwrites (a static CUDA-graph buffer) is a trap for whoever keeps it."""
    with torch.no_grad():
        restore(made)
        first = made.call(*made.inputs)  # whole: an `output` may copy
        kept = tensor_of(first, made).clone()
        _call(made, others)
    if not torch.equal(tensor_of(first, made), kept):
        raise Wrong("overwrites its earlier output when called again")


def _reads_its_inputs(made: Made, reference: Reference, others: Inputs, bound: float) -> float:
    """In every call, and not what it remembers of them: new values where the last ones lay are answered anew, and the
    same inputs once more by another tensor. What copies of them are answered with, too, depends on no values."""
    inputs = _copies(made.inputs)
    with torch.no_grad():
        first, again = (_call(made, inputs) for _ in range(2))
        if _share(first, again) and not any(_share(first, x) for x in (*inputs, _call(made, _copies(inputs)))):
            raise Wrong("remembers its answer: the second of two calls on the same tensors returns the first's")
        if [x.shape for x in others] != [x.shape for x in inputs]:
            return 0.0
        for x, other in zip(inputs, others, strict=True):
            x.copy_(other)
        return _compare_output(
            _call(made, inputs), reference.answer(inputs), "output, new values in the same inputs", bound
        )


def _copies(inputs: Inputs) -> Inputs:
    return tuple(x.clone() for x in inputs)


def _share(a: Tensor, b: Tensor) -> bool:
    """Whether they lie in the same memory."""
    return a.numel() > 0 and a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def _updates_its_buffers(made: Made, reference: Reference, bound: float) -> float:
    """As the reference does, in training mode: a batch norm without its running statistics is faster, and wrong."""
    if not made.module.training or not isinstance(made.call, torch.nn.Module):
        return 0.0
    wanted = reference.changes(made.inputs)
    with torch.no_grad():
        _call(made, made.inputs)
    got = {name: buffer for name, buffer in made.module.named_buffers() if name in wanted}
    return max((_compare(got[name], wanted[name], f"buffer {name} after a call", bound) for name in got), default=0.0)


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
