"""How far an answer may be from the right one, and whether one is further."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from bench.reference import Answer, distance, far_off, relative_error, scale_of

# Largest relative Frobenius error that passes. Sums of rounded products in the dtype itself stay under these on all
# built-in layers; TF32 (about 3e-4), a wrong element or a lower-precision accumulation do not. Where rounding takes the
# reference itself further off, worked out in the dtype (a ReLU or a maximum that decides otherwise), it may be ROUNDED
# times as far, up to MOST bounds. A gradient whose error is NOTHING beside the layer's others may be as far off as that
# goes, and is measured by them: of equal numbers through a softmax that works in float32 it is all rounding.
BOUNDS = {"float64": 1e-10, "float32": 5e-5, "float16": 5e-3, "bfloat16": 4e-2}
ROUNDED, MOST, NOTHING, FEW = 2, 10, 1e-6, 3
TF32_BOUND = 2e-3
# Where all elements of an output gradient are equal, rounding errors add up instead of cancelling: oneDNN's float32
# bias gradient over 2^18 equal values is off by 9e-4. What is looked for there (strides ignored, ...) is off by 1.
CONSTANT_BOUND = 2e-2


class Wrong(Exception):
    """The variant is incorrect; the text says how. `error` is the relative error where one could be had."""

    def __init__(self, message: str, error: float | None = None) -> None:
        super().__init__(message)
        self.error = error


def bound_for(dtype: str, *, tf32: bool) -> float:
    """The largest relative error that passes for a dtype; integers are exact."""
    return TF32_BOUND if tf32 and dtype == "float32" else BOUNDS.get(dtype, 0.0)


def compare_output(output: Tensor, answer: Answer, what: str, bound: float) -> float:
    """The relative error. Raises Wrong.

    One norm over a large output hides a few elements that are altogether wrong, such as a tail that a kernel forgot in
    half precision, and integers that are all off by one. There may be as many as where rounding decides eager's, and
    FEW more where it decides at all.
    """
    wanted = answer.exact["output"]
    error = _compare(output, wanted, what, bound, rounding=partial(answer.rounding, "output"))
    if found := far_off(output, wanted):
        own = answer.far_off("output")
        decides = own > 0 or not wanted.is_floating_point()
        if found > (ROUNDED * own + FEW if decides else 0):
            raise Wrong(f"{what}: {found} of {wanted.numel()} elements are altogether wrong", error)
    return error


def compare_gradients(
    got: Mapping[str, Tensor | None], answer: Answer, grad_output: Tensor, when: str, bound: float
) -> float:
    """The largest relative error. None is the gradient of what the output does not depend on: zero. Raises Wrong."""
    scale, worst = scale_of(answer.exact, grad_output), 0.0
    for name, gradient in got.items():
        wanted, what = answer.exact[name], f"gradient of {name}{when}"
        gradient = torch.zeros_like(wanted) if gradient is None else gradient
        worst = max(worst, _compare(gradient, wanted, what, bound, scale, partial(answer.rounding, name, scale)))
    return worst


def compare_buffer(got: Tensor, wanted: Tensor, name: str, bound: float) -> float:
    """The relative error. Raises Wrong."""
    return _compare(got, wanted, f"buffer {name} after a call", bound)


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
        # Of integers it is counted how many differ: places of maxima may be far apart, and that says nothing.
        bound = max(bound, min(allowed, MOST * bound if wanted.is_floating_point() else allowed))
    if not error <= bound:
        shown = f"{error:.2g} over {bound:g}" if error == error else f"NaN: {_nans(got)}, {_nans(wanted)} wanted"
        raise Wrong(f"{what}: relative error {shown}", error if error < float("inf") else None)
    return error


def _nans(x: Tensor) -> str:
    return f"{int(x.isnan().sum())} of {x.numel()} are NaN"
