"""The right answer: what a layer must give, and how far something else is from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from layers import Layer
from layers.variants import Made

# A gradient that is this small beside what it is summed from is zero, but for the rounding of float64.
NOTHING = 1e-11


@dataclass(frozen=True)
class Reference:
    """The right answer for one layer and one set of weights, in float64 on the device.

    trained   of each name of a trained parameter the first name of the same parameter: tied weights are one
    training  whether the module is in training mode, in which dropout and batch norm do something else
    """

    layer: Layer
    params: dict[str, Any]
    state: dict[str, Tensor]
    trained: Mapping[str, str]
    training: bool

    @classmethod
    def of(cls, layer: Layer, params: dict[str, Any], made: Made, device: torch.device) -> Reference:
        first: dict[Tensor, str] = {}
        parameters = made.module.named_parameters(remove_duplicate=False)
        trained = {name: first.setdefault(one, name) for name, one in parameters if one.requires_grad}
        state = {name: value.to(device) for name, value in made.state.items()}
        return cls(layer, params, state, trained, made.module.training)

    def output(self, inputs: Sequence[Tensor]) -> Tensor:
        return self.with_gradients(inputs, None)["output"]

    def takes(self, inputs: Sequence[Tensor]) -> bool:
        """Whether there is a right answer at all: a logarithm has none of negative numbers."""
        try:
            return bool(self.output(inputs).isfinite().all())
        except Exception:  # the layer's own, of whatever type
            return False

    def with_gradients(self, inputs: Sequence[Tensor], grad_output: Tensor | None) -> dict[str, Tensor]:
        """`output` and, given the output's gradient, every gradient by the names of Task.leaves."""
        wide = [wider(x).requires_grad_(x.is_floating_point()) for x in inputs]
        weights = {name: wider(self.state[name]).requires_grad_() for name in dict.fromkeys(self.trained.values())}
        # Buffers may be changed by the call, as the running mean of a batch norm is.
        buffers = {name: wider(value).clone() for name, value in self.state.items() if name not in self.trained}
        state = buffers | {name: weights[first] for name, first in self.trained.items()}
        with torch.enable_grad():
            output = self._function()(state, *wide, **self.params)
        results = {"output": output.detach()}
        if grad_output is not None:
            leaves = {f"input {i}": x for i, x in enumerate(wide) if x.requires_grad} | weights
            gradients = torch.autograd.grad(output, list(leaves.values()), wider(grad_output), allow_unused=True)
            # Unused means that the output does not depend on it: a gradient of zero.
            results |= {
                name: torch.zeros_like(leaf) if gradient is None else gradient
                for (name, leaf), gradient in zip(leaves.items(), gradients, strict=True)
            }
        return results

    def _function(self) -> Callable[..., Tensor]:
        if self.layer.reference is not None:
            return self.layer.reference
        module = self.layer.versions["eager"](**self.params).double().train(self.training)

        def eager_in_float64(state: dict[str, Tensor], *inputs: Tensor, **_: Any) -> Tensor:
            result: Tensor = torch.func.functional_call(module.to(inputs[0].device), state, inputs)
            return result

        return eager_in_float64


def scale_of(gradients: Mapping[str, Tensor], grad_output: Tensor) -> float:
    """The largest norm among a layer's gradients and the one that they are made from."""
    others = [gradient for name, gradient in gradients.items() if name != "output"]
    return max(float(torch.linalg.vector_norm(wider(one))) for one in (*others, grad_output))


def relative_error(got: Tensor, wanted: Tensor, scale: float = 0.0) -> float:
    """Relative Frobenius norm of the difference; 0 where both are zero or empty.

    What is zero but for float64's rounding beside `scale` (a softmax's gradient of equal numbers, that of a bias
    before a normalisation) has no size of its own to compare with: the difference is relative to `scale` then.
    """
    if not wanted.numel():
        return 0.0
    difference = float(torch.linalg.vector_norm(_number(wider(got) - wider(wanted))))
    size = float(torch.linalg.vector_norm(_number(wanted)))
    if difference == 0:
        return 0.0
    if size <= NOTHING * scale:
        size = scale
    return difference / size if size else float("inf")


def wider(tensor: Tensor) -> Tensor:
    """Without its graph, and in float64 if it is floating-point; booleans as numbers."""
    tensor = tensor.detach()
    if tensor.dtype is torch.bool:
        return tensor.to(torch.int8)
    return tensor.double() if tensor.is_floating_point() else tensor


def _number(tensor: Tensor) -> Tensor:
    return tensor if tensor.is_complex() else tensor.double()
