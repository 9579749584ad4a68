"""The right answer: what a layer must give, and how far something else is from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from layers import Layer
from layers.variants import Made

# Of finite differences, in float64. Two that disagree cross a kink, or are drowned by the rounding of a layer that
# computes in float32 whatever it is given: the second pair is for that.
STEPS = (1e-6, 1e-8), (1e-3, 3e-4)
# An element that is off by more than this share of itself and the root mean square of all is altogether wrong.
FAR = 0.25
NEIGHBOURS = 3  # of the inputs, on which rounding is looked at too
GROUPS = 4  # of leaves whose slopes are looked at apart
# A gradient that is this small beside what it is summed from is zero, but for the rounding of float64.
NOTHING = 1e-11


class ReferenceFailed(Exception):
    """There is no right answer to compare with; the text says whose fault and what helps."""


@dataclass(frozen=True)
class Answer:
    """What is wanted: `output` and, where they were asked for, every gradient by the names of Task.leaves."""

    exact: dict[str, Tensor]
    # Exact answers on the inputs and on neighbours of them, each with what the case's own dtype makes of it: what
    # rounding decides is a matter of luck. None where the reference does not take the dtype.
    samples: Callable[[], Sequence[tuple[dict[str, Tensor], dict[str, Tensor]]]]

    def rounding(self, name: str, scale: float = 0.0) -> float:
        """How far the dtype alone takes the reference from its exact answer."""
        found = (relative_error(rounded[name], exact[name], scale) for exact, rounded in self.samples())
        return max(found, default=0.0)

    def far_off(self, name: str) -> int:
        """How many elements the dtype alone makes altogether different."""
        return max((far_off(rounded[name], exact[name]) for exact, rounded in self.samples()), default=0)


@dataclass(frozen=True)
class Reference:
    """The right answer for one layer and one set of weights, on the device.

    trained   of each name of a parameter that eager trains, or the version, the first name of the same parameter: tied
              weights are one
    training  whether the module is in training mode, in which dropout and batch norm do something else
    seed      of the weights
    kind      the floating dtype of the case
    dtype     that it is worked out in
    """

    layer: Layer
    params: dict[str, Any]
    state: dict[str, Tensor]
    trained: Mapping[str, str]
    training: bool
    seed: int
    kind: torch.dtype
    dtype: torch.dtype = torch.float64

    @classmethod
    def of(cls, layer: Layer, params: dict[str, Any], made: Made, device: torch.device) -> Reference:
        state = {name: value.to(device) for name, value in made.state.items()}
        kinds = (one.dtype for one in (*made.inputs, *made.module.state_dict().values()) if one.is_floating_point())
        kind = next(kinds, torch.float64)
        one = cls(layer, params, state, {}, made.module.training, getattr(made, "seed", 0), kind)
        return replace(one, trained=_trained(made.module) | _trained(one._eager()))

    def answer(self, inputs: Sequence[Tensor], grad_output: Tensor | None = None) -> Answer:
        exact = self.with_gradients(inputs, grad_output)

        @cache
        def samples() -> list[tuple[dict[str, Tensor], dict[str, Tensor]]]:
            if self.kind is self.dtype:
                return []
            near = [self._near(inputs, seed) for seed in range(NEIGHBOURS)]
            rounding = self._in_kind()
            try:
                found = [(exact, rounding.with_gradients(inputs, grad_output))]
                return found + [
                    (self.with_gradients(x, grad_output), rounding.with_gradients(x, grad_output)) for x in near
                ]
            except Exception:  # nobody promised that a reference takes the dtype
                return []

        return Answer(exact, samples)

    def _near(self, inputs: Sequence[Tensor], seed: int) -> list[Tensor]:
        """Inputs that differ from these by rounding."""
        generator, little = torch.Generator().manual_seed(seed), torch.finfo(self.kind).eps
        return [x * (1 + little * _noise(x, generator).to(x.dtype)) if x.is_floating_point() else x for x in inputs]

    def eager(self, inputs: Sequence[Tensor]) -> Tensor | None:
        """What eager gives in the case's dtype, with weights of its own, for inputs which it may change; None where it
        takes none such."""
        try:
            with torch.no_grad():
                return tensor_of(self._in_kind()._eager().to(inputs[0].device)(*inputs), self.layer)
        except Exception:
            return None

    def _in_kind(self) -> Reference:
        return replace(self, dtype=self.kind)

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
        leaves = self._leaves(inputs)
        output = self._run(inputs, leaves, self._buffers())
        results = {"output": output.detach()}
        if grad_output is not None:
            results |= _gradients(output, leaves, grad_output.detach().to(output.dtype))
        return results

    def changes(self, inputs: Sequence[Tensor]) -> dict[str, Tensor] | None:
        """What a call of eager changes of its state, in place or by putting others there, as it leaves it: the running
        mean of a batch norm. None where eager has no float64 to tell of it."""
        module = self._eager().to(inputs[0].device)
        try:
            module.load_state_dict(self.state, strict=False)  # a call may have registered more
            with torch.no_grad():
                module(*map(self._cast, inputs))
        except Exception:
            if self.layer.reference is None:
                raise
            return None
        before, after = {name: self._cast(value) for name, value in self.state.items()}, module.state_dict()
        return {name: after[name] for name in before if name in after and not identical(after[name], before[name])}

    def slope_error(self, inputs: Sequence[Tensor], enough: float) -> float:
        """How far its own gradients are from finite differences, relative to the larger of the two: of the worst group
        of leaves the least of three random directions, or the first that is `enough`; 0 where no two steps agree on
        the slope. Eager without a `reference` is compared with nothing else."""
        leaves = self._leaves(inputs)
        output = self._run(inputs, leaves, self._buffers())
        if output.is_complex() or not output.requires_grad:
            return 0.0  # whose slope is another matter
        generator = torch.Generator().manual_seed(4)
        pull = _noise(output, generator)
        gradients = _gradients(output, leaves, pull.to(output.dtype))
        # Of what cancels out to nothing, the rounding is no difference.
        nothing = 1e-6 * float((output.detach() * pull).abs().sum())

        def off(ways: Mapping[str, Tensor]) -> float | None:
            slope = sum(float((gradients[name] * way).sum()) for name, way in ways.items())
            for pair in STEPS:
                found, again = (self._slope(inputs, leaves, ways, pull, step) for step in pair)
                largest = max(abs(slope), abs(found))
                if largest <= nothing:
                    return 0.0
                if abs(found - again) <= enough / 2 * largest:
                    return abs(slope - found) / largest
            return None

        def least(names: Sequence[str]) -> float:
            told: list[float] = []
            for _ in range(3):
                far = off({name: _noise(leaves[name], generator) for name in names})
                if far is not None:
                    told.append(far)
                    if far <= enough:
                        break
            return min(told, default=0.0)

        # Apart, for beside a large weight's slope a bias's is not seen.
        names = sorted(leaves, key=lambda name: leaves[name].numel())
        size = -(-len(names) // GROUPS)
        return max((least(names[at : at + size]) for at in range(0, len(names), size)), default=0.0)

    def _slope(
        self,
        inputs: Sequence[Tensor],
        leaves: Mapping[str, Tensor],
        ways: Mapping[str, Tensor],
        pull: Tensor,
        step: float,
    ) -> float:
        """Of the output, weighted by `pull` and summed, along `ways`: by finite differences."""
        ends = []
        for by in (step, -step):
            moved = {name: leaf.detach() + by * ways.get(name, 0) for name, leaf in leaves.items()}
            moved = {name: leaf.requires_grad_() for name, leaf in moved.items()}
            ends.append(self._run(inputs, moved, self._buffers()).detach().double())
        return float(((ends[0] - ends[1]) * pull).sum()) / (2 * step)

    def _leaves(self, inputs: Sequence[Tensor]) -> dict[str, Tensor]:
        floating = {f"input {i}": self._cast(x) for i, x in enumerate(inputs) if x.is_floating_point()}
        weights = {name: self._cast(self.state[name]) for name in dict.fromkeys(self.trained.values())}
        return {name: leaf.requires_grad_() for name, leaf in (floating | weights).items()}

    def _buffers(self) -> dict[str, Tensor]:
        """Copies, since a call may change them."""
        return {name: self._cast(value).clone() for name, value in self.state.items() if name not in self.trained}

    def _cast(self, tensor: Tensor) -> Tensor:
        return tensor.detach().to(self.dtype) if tensor.is_floating_point() else tensor.detach()

    def _run(self, inputs: Sequence[Tensor], leaves: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> Tensor:
        given = [leaves.get(f"input {i}", x) for i, x in enumerate(inputs)]
        state = {**buffers, **{name: leaves[first] for name, first in self.trained.items()}}
        own = self.layer.reference is not None
        precision = str(self.dtype).removeprefix("torch.")
        whose = "the layer's reference" if own else f"the {precision} reference, which is made from eager,"
        try:
            with torch.enable_grad():
                output: Any = self._function()(state, *given, **self.params)
        except Exception as error:
            remedy = "it is called as reference(state, *inputs, **params)" if own else "give the layer a `reference`"
            raise ReferenceFailed(f"{whose} failed: {type(error).__name__}: {error}; {remedy}") from error
        try:
            return (required if own else tensor_of)(output, self.layer, whose)
        except TypeError as error:
            raise ReferenceFailed(str(error)) from None

    def _function(self) -> Callable[..., Any]:
        if self.layer.reference is not None:
            return self.layer.reference
        module = self._eager()

        def eager(state: dict[str, Tensor], *inputs: Tensor, **_: Any) -> Any:
            return torch.func.functional_call(module.to(inputs[0].device), state, inputs)

        return eager

    def _eager(self) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(self.seed)  # for what is in no state_dict
            return self.layer.versions["eager"](**self.params).to(self.dtype).train(self.training)


def tensor_of(result: Any, of: Layer | Made, whose: str = "the layer") -> Tensor:
    """The tensor in what a layer returned: by its `output`, if it has one. TypeError where that is none."""
    output = getattr(of, "output", None)  # those of a gate's older revision have none
    return required(output(result) if output and result is not None else result, of, whose)


def required(found: Any, of: Layer | Made, whose: str = "the layer") -> Tensor:
    """It, if it is a tensor; else TypeError, which says what to do."""
    if isinstance(found, Tensor):
        return found
    remedy = "give the layer an `output`, as `lambda result: result[0]`, to say which one is meant"
    if getattr(of, "output", None):
        remedy = "its `output` must say which one is meant"
    if found is None:
        remedy = "does its forward return it?"
    raise TypeError(f"{whose} returned {type(found).__name__}, not a tensor ({remedy})")


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
    difference, size = distance(got, wanted), _size(wanted)
    if difference == 0:
        return 0.0
    if size <= NOTHING * scale:
        size = scale
    return difference / size if size else float("inf")


def distance(got: Tensor, wanted: Tensor) -> float:
    """The Frobenius norm of the difference; equal infinities do not differ."""
    return float(torch.linalg.vector_norm(_difference(got, wanted)))


def far_off(got: Tensor, wanted: Tensor) -> int:
    """How many elements are altogether wrong; of integers, those that differ."""
    if not wanted.is_floating_point():
        return int((_difference(got, wanted) != 0).sum())
    typical = _size(wanted) / max(1, wanted.numel()) ** 0.5
    return int((_difference(got, wanted).abs() > FAR * (wider(wanted).abs() + typical)).sum())


def identical(one: Tensor, other: Tensor) -> bool:
    """Equal in shape and in every element, NaN being equal to itself."""
    if one.shape != other.shape:
        return False
    return torch.equal(one, other) or bool(((one == other) | (one.isnan() & other.isnan())).all())


def _difference(got: Tensor, wanted: Tensor) -> Tensor:
    got, wanted = wider(got), wider(wanted)
    difference = _number(got - wanted)
    return difference if difference.isfinite().all() else difference.masked_fill_(got == wanted, 0)


def _size(tensor: Tensor) -> float:
    """Of what is finite in it, the Frobenius norm."""
    number = _number(tensor)
    return float(torch.linalg.vector_norm(number.masked_fill(number.isinf(), 0)))


def wider(tensor: Tensor) -> Tensor:
    """Without its graph, dense, in float64 if it is floating-point; integers and booleans as what has differences."""
    tensor = _dense(tensor.detach())
    if tensor.is_floating_point():
        return tensor.double()
    return tensor if tensor.is_complex() else tensor.long()


def _trained(module: nn.Module) -> dict[str, str]:
    first: dict[Tensor, str] = {}
    parameters = module.named_parameters(remove_duplicate=False)
    return {name: first.setdefault(one, name) for name, one in parameters if one.requires_grad}


def _gradients(output: Tensor, leaves: Mapping[str, Tensor], grad_output: Tensor) -> dict[str, Tensor]:
    """Zero where the output does not depend on a leaf."""
    found = torch.autograd.grad(output, list(leaves.values()), grad_output, allow_unused=True)
    pairs = zip(leaves.items(), found, strict=True)
    return {name: torch.zeros_like(leaf) if one is None else _dense(one) for (name, leaf), one in pairs}


def _dense(tensor: Tensor) -> Tensor:
    return tensor.to_dense() if tensor.is_sparse else tensor


def _noise(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like.device)


def _number(tensor: Tensor) -> Tensor:
    return tensor if tensor.is_complex() else tensor.double()
