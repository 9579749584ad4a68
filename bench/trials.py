"""The inputs on which a version is checked: the timed ones, and others that tell what is right only by luck."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from bench.reference import Reference, identical
from layers import Inputs
from layers.variants import SHAPE_BOUND, STRIDE_BOUND, Made, draw


def second_draw(reference: Reference, dtype: str, device: torch.device) -> Inputs:
    """Other values than the timed ones, of the same shapes unless the layer draws those too."""
    layer, params = reference.layer, reference.params
    return draw(layer.inputs, params, seed=1, dtype=getattr(torch, dtype), device=device)


def trials(made: Made, reference: Reference, second: Inputs, variant: str, dtype: str) -> Iterator[tuple[str, Inputs]]:
    """Label and inputs: other values, other signs (a trace bakes in its branch; not of what has no negative values, nor
    where the reference has no answer), other strides (where eager takes them), and the layer's own draws. A variant
    bound to a shape or to strides by its nature is not tried on others: that is a question of portability, and for a
    compiled one costs a compilation each."""
    layer, device = reference.layer, made.inputs[0].device
    shapes = [x.shape for x in made.inputs]
    yield "the timed inputs", made.inputs
    if not all(map(identical, second, second_draw(reference, dtype, device))):
        raise ValueError(
            "`inputs` gives other values each time for the same generator, so variants would not be timed on the same "
            "ones: draw with torch.randn(..., generator=generator)"
        )
    yield "a second draw", second
    negated = tuple(-x if x.is_floating_point() and bool((x < 0).any()) else x for x in second)
    if reference.takes(negated):
        yield "negated inputs", negated
    if variant not in STRIDE_BOUND and takes_strides(reference, second):
        yield "non-contiguous inputs", tuple(non_contiguous(x) for x in second)
    for number, factory in enumerate(layer.draws):
        inputs = draw(factory, reference.params, seed=2 + number, dtype=getattr(torch, dtype), device=device)
        if variant not in SHAPE_BOUND or [x.shape for x in inputs] == shapes:
            yield f"extra draw {number}", inputs


def takes_strides(reference: Reference, inputs: Inputs) -> bool:
    """Whether eager does: one with a `view` in it may not."""
    return reference.eager(tuple(non_contiguous(x) for x in copies(inputs))) is not None


def non_contiguous(x: Tensor) -> Tensor:
    """The same values with other strides: every second element of a wider last dimension, transposed in memory."""
    if not x.dim():
        return x
    wide = torch.empty(*x.shape[:-1], 2 * x.shape[-1], dtype=x.dtype, device=x.device)
    strided = wide.transpose(0, -1).contiguous().transpose(0, -1)[..., ::2] if x.dim() > 1 else wide[::2]
    return strided.copy_(x)


def copies(inputs: Inputs) -> Inputs:
    """Of the same values, in memory of their own."""
    return tuple(x.clone() for x in inputs)


def leaves(inputs: Inputs, gradients: bool) -> Inputs:
    """The same tensors, of which those that can have a gradient want one, if any is wanted."""
    return tuple(x.detach().requires_grad_(gradients and x.is_floating_point()) for x in inputs)
