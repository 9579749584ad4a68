"""What docs/layers.md asks of versions beyond the right numbers on the timed inputs, and what it does not ask."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.bounds import BOUNDS, Wrong
from bench.check import check, eager_warnings, shares_its_input
from bench.model import Case, Direction, Policy
from bench.reference import Reference, identical
from bench.session import set_process_state
from layers import Inputs, Layer
from layers.variants import make

CPU = torch.device("cpu")
N = 16


def one(generator: torch.Generator, n: int) -> Inputs:
    return (torch.randn(8, n, generator=generator),)


def layer(eager: Any, version: Any = None, inputs: Any = one) -> Layer:
    versions = {"eager": eager, "native": version} if version else {"eager": eager}
    return Layer("asked", versions, inputs, defaults={"n": N})


def examine(
    asked: Layer, direction: Direction, dtype: str = "float32", variant: str = "", n: int = N, **options: Any
) -> float:
    """Of its last version, unless another one is named."""
    variant, training = variant or list(asked.versions)[-1], direction is not Direction.INFERENCE
    kind = getattr(torch, dtype)
    made = make(asked, variant, {"n": n}, dtype=kind, device=CPU, seed=0, training=training)
    reference = Reference.of(asked, {"n": n}, made, CPU)
    bound = BOUNDS[dtype]
    return check(made, reference, variant=variant, dtype=dtype, bound=bound, direction=direction, **options)


def applied_to(function: Any, *given: Tensor) -> Tensor:
    return cast(Tensor, function.apply(*given))


class Linear(nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n, n) / n**0.5)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


class Relu(nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x)


# Wrong ones


class ConstantWhereGradientsAreRecorded(Linear):
    kept: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return x @ self.weight
        if self.kept is None:
            self.kept = x @ self.weight
        return self.kept


class Untrained(nn.Module):
    weight: Tensor

    def __init__(self, n: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randn(n, n))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


class Frozen(Linear):
    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.weight.requires_grad_(False)


class PackedProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, pack: Tensor) -> Tensor:
        ctx.save_for_backward(x, pack)
        return x @ pack

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        x, pack = ctx.saved_tensors
        return gradients[0] @ pack.T, x.T @ gradients[0], None


class Packs(Linear):
    """Its weight, once: right until the first step of an optimiser."""

    pack: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.pack is None:
            self.pack = self.weight.detach().clone()
        return applied_to(PackedProduct, x, self.weight, self.pack)


class WritesItsGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return F.relu(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0].contiguous().masked_fill_(ctx.saved_tensors[0] <= 0, 0)


class WritesItsInput(WritesItsGradient):
    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (x,) = ctx.saved_tensors
        x.data.clamp_(min=0)
        return gradients[0] * (x > 0)


class OneWorkspace(torch.autograd.Function):
    mask: Tensor

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        if getattr(OneWorkspace, "mask", x[:0]).shape != x.shape:
            OneWorkspace.mask = torch.empty_like(x)
        ctx.mask = torch.sign(x, out=OneWorkspace.mask)
        return F.relu(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] * (ctx.mask > 0)


def applied(function: Any) -> type[nn.Module]:
    class Version(Relu):
        def forward(self, x: Tensor) -> Tensor:
            return applied_to(function, x)

    return Version


class Scaled(nn.Module):
    scale: Tensor

    def __init__(self, n: int) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(n))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


class Fades(Scaled):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        self.scale.mul_(0.5)
        return y


class Normalised(Linear):
    def forward(self, x: Tensor) -> Tensor:
        weight: Tensor = self.weight / self.weight.norm()
        return x @ weight


class Normalises(Linear):
    def forward(self, x: Tensor) -> Tensor:
        self.weight.data.div_(self.weight.norm())
        return x @ self.weight


class Ring(Relu):
    """Two outputs, in turns."""

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.outputs: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        if len(self.outputs) < 2 or self.outputs[0].shape != x.shape:
            self.outputs = [*self.outputs[-1:], torch.empty_like(x)]
        self.outputs.reverse()
        return self.outputs[0].copy_(F.relu(x))


WRONG = {
    "does not train weight": (Linear, Untrained, Direction.BACKWARD),
    "does not train weight, which": (Linear, Frozen, Direction.FORWARD_BACKWARD),
    "output, other weights in place": (Linear, Packs, Direction.FORWARD_BACKWARD),
    "output, a second draw": (Linear, ConstantWhereGradientsAreRecorded, Direction.FORWARD),
    "modifies its output gradient in its backward pass": (Relu, applied(WritesItsGradient), Direction.BACKWARD),
    "modifies its input 0 in its backward pass": (Relu, applied(WritesItsInput), Direction.BACKWARD),
    "gradient of input 0, the timed inputs": (Relu, applied(OneWorkspace), Direction.BACKWARD),
    "changes scale, which eager leaves as it is": (Scaled, Fades, Direction.INFERENCE),
    "changes weight, which eager leaves as it is": (Normalised, Normalises, Direction.INFERENCE),
    "overwrites its earlier output": (Relu, Ring, Direction.INFERENCE),
}


@pytest.mark.parametrize("words", WRONG)
def test_what_harms_the_rest_of_a_network_is_incorrect(words: str) -> None:
    eager, version, direction = WRONG[words]
    assert examine(layer(eager), direction) <= BOUNDS["float32"]
    with pytest.raises(Wrong, match=words):
        examine(layer(eager, version), direction)


class Doubled(Relu):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2


class ForgetsItsTail(Relu):
    def forward(self, x: Tensor) -> Tensor:
        y = x * 2
        y.view(-1)[y.numel() // 64 * 64 :] = 0
        return y


class Places(Relu):
    right = False

    def forward(self, x: Tensor) -> Tensor:
        borders = torch.linspace(-4, 4, 100_000, dtype=x.dtype)
        return torch.searchsorted(borders, x.contiguous()) + int(self.right)


class OneFurther(Places):
    right = True


@pytest.mark.parametrize(
    ("eager", "version", "dtype"), [(Doubled, ForgetsItsTail, "bfloat16"), (Places, OneFurther, "float32")]
)
def test_a_few_elements_that_are_altogether_wrong_do_not_hide_in_the_norm(
    eager: type[nn.Module], version: type[nn.Module], dtype: str
) -> None:
    assert examine(layer(eager), Direction.INFERENCE, dtype, n=1001) <= BOUNDS[dtype]
    with pytest.raises(Wrong, match="elements are altogether wrong"):
        examine(layer(eager, version), Direction.INFERENCE, dtype, n=1001)


class ForgetsTheBias(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, bias)
        return x @ weight + bias

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        x, weight, bias = ctx.saved_tensors
        return gradients[0] @ weight.T, x.T @ gradients[0], torch.zeros_like(bias)


class Biased(Linear):
    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.bias = nn.Parameter(torch.randn(n))

    def forward(self, x: Tensor) -> Tensor:
        return applied_to(ForgetsTheBias, x, self.weight, self.bias)


@pytest.mark.parametrize("seed", range(5))
def test_the_slope_of_a_small_weight_is_seen_beside_a_large_one(seed: int) -> None:
    asked = layer(Biased)
    made = make(asked, "eager", {"n": 256}, dtype=torch.float32, device=CPU, seed=seed)
    (warning,) = eager_warnings(Reference.of(asked, {"n": 256}, made, CPU), made.inputs, gradients=True)
    assert "off its finite differences" in warning


# Right ones


class Caches(Relu):
    """A table that its first call makes, as long as the input is wide."""

    table: Tensor

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.register_buffer("table", torch.empty(0))

    def forward(self, x: Tensor) -> Tensor:
        if self.table.numel() != x.shape[-1]:
            self.table = torch.arange(x.shape[-1], dtype=x.dtype)
        return x * self.table


class Expanded(Scaled):
    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.scale = torch.ones(1).expand(n)


class Momentum(Linear):
    """A frozen copy of its weight that follows it."""

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.copy = nn.Parameter(torch.zeros(n, n), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.copy.mul_(0.9).add_(0.1 * self.weight)
        return x @ self.weight - x @ self.copy.clone()


class NotANumber(Scaled):
    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.register_buffer("unset", torch.full((n,), float("nan")))


class NoNumbers(Relu):
    def forward(self, x: Tensor) -> Tensor:
        return x.nan_to_num(0.5)


class TopFour(Relu):
    def forward(self, x: Tensor) -> Tensor:
        return x.masked_fill(x < x.topk(4).values[..., -1:], float("-inf"))


class Times(nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return x * mask


class Where(Times):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return torch.where(mask > 0, x, 0)


class Flat(Relu):
    def forward(self, x: Tensor) -> Tensor:
        return x.view(-1) * 2


def with_nan(generator: torch.Generator, n: int) -> Inputs:
    x = torch.randn(8, n, generator=generator)
    return (x.masked_fill(x > 1, float("nan")),)


def masked(generator: torch.Generator, n: int) -> Inputs:
    return torch.randn(8, n, generator=generator), (torch.rand(8, n, generator=generator) > 0.5).float()


@pytest.mark.parametrize("direction", [Direction.INFERENCE, Direction.FORWARD])
@pytest.mark.parametrize(
    "asked",
    [
        layer(Caches),
        layer(Expanded),
        layer(Momentum),
        layer(NotANumber),
        layer(NoNumbers, inputs=with_nan),
        layer(TopFour),
        layer(Times, Where, inputs=masked),
        layer(Flat),
    ],
    ids=lambda asked: list(asked.versions.values())[-1].__name__,
)
def test_a_right_version_passes_however_unusual(asked: Layer, direction: Direction) -> None:
    for variant in asked.versions:
        assert examine(asked, direction, variant=variant) <= BOUNDS["float32"]


class Itself(Relu):
    def forward(self, x: Tensor) -> Tensor:
        return x


class Copies(Relu):
    def forward(self, x: Tensor) -> Tensor:
        return x.clone()


@pytest.mark.parametrize(("eager", "shares"), [(Copies, True), (Itself, False)])
def test_what_gives_back_its_inputs_memory_unlike_eager_is_told(eager: type[nn.Module], shares: bool) -> None:
    asked = layer(eager, Itself)
    made = make(asked, "native", {}, dtype=torch.float32, device=CPU, seed=0)
    assert shares_its_input(made, Reference.of(asked, {"n": N}, made, CPU)) is shares


def test_an_eager_that_takes_no_strides_is_told() -> None:
    asked = layer(Flat)
    made = make(asked, "eager", {}, dtype=torch.float32, device=CPU, seed=0)
    (warning,) = eager_warnings(Reference.of(asked, {"n": N}, made, CPU), made.inputs, gradients=False)
    assert "no version was tried on such" in warning


class WithoutInputGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x @ weight

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return None, ctx.saved_tensors[0].T @ gradients[0]


class First(Linear):
    def forward(self, x: Tensor) -> Tensor:
        return applied_to(WithoutInputGradient, x, self.weight)


def test_of_a_first_layer_no_gradient_of_its_input_is_asked() -> None:
    asked = layer(Linear, First)
    assert examine(asked, Direction.BACKWARD, input_gradients=False) <= BOUNDS["float32"]
    with pytest.raises(Wrong, match="gradient of input 0"):
        examine(asked, Direction.BACKWARD)


def test_switches_that_a_layer_has_set_do_not_outlast_its_case() -> None:
    torch.backends.mkldnn.set_flags(False)
    torch.set_flush_denormal(True)
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    set_process_state(
        Case("shift", "eager", (), "float32", "cpu", torch.get_num_threads(), Direction.FORWARD), Policy()
    )
    assert torch.backends.mkldnn.enabled
    assert torch.get_default_dtype() is torch.float32
    assert torch.is_grad_enabled()
    assert (torch.tensor([1e-40]) * 1).item() > 0


def test_identical_means_nan_too() -> None:
    nan = torch.tensor([1.0, float("nan")])
    assert identical(nan, nan.clone())
    assert not identical(nan, torch.tensor([float("nan"), 1.0]))
    assert not identical(nan, nan[:1])
