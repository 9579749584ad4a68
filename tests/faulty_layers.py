"""Layers with one fault each, as people have shipped them; the check must catch every one, and only those."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from layers import Inputs, Layer


def one(generator: torch.Generator, *, n: int, **_: Any) -> Inputs:
    return (torch.randn(4, n, generator=generator),)


def two(generator: torch.Generator, *, n: int, **_: Any) -> Inputs:
    return (torch.randn(4, n, generator=generator), torch.randn(4, n, generator=generator))


class Double(nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        return x * 2


class Linear(nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n, n))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


class NanLater(Double):
    """Right on the first 40 calls."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * (2 if self.calls <= 40 else float("nan"))


class InPlace(Double):
    def forward(self, x: Tensor) -> Tensor:
        return x.mul_(2)


class NotATensor(Double):
    def forward(self, x: Tensor) -> Tensor:
        return [x * 2]  # type: ignore[return-value]


class Raises(Double):
    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError("the layer's own trouble")


class Detached(Double):
    def forward(self, x: Tensor) -> Tensor:
        return (x * 2).detach()


class OtherDtype(Double):
    def forward(self, x: Tensor) -> Tensor:
        return (x * 2).float()


class Upcasts(nn.Module):
    """As a softmax in mixed precision: float32, whatever comes in."""

    def __init__(self, n: int) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        return x.float().softmax(-1)


class CastsBack(Upcasts):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).to(x.dtype)


class Normed(nn.Module):
    """An RMS norm that computes in float32 and gives what it got."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))

    def forward(self, x: Tensor) -> Tensor:
        y = x.float()
        return self.weight * (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


class Largest(nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        return x.argmax(-1)


class Picky(Double):
    """Refuses what its `inputs` never draw."""

    def forward(self, x: Tensor) -> Tensor:
        if (x <= 0).any():
            raise ValueError("needs positive input")
        return x.log()


class Perceptron(nn.Module):
    """Whose ReLUs decide otherwise here and there in half precision."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(part for _ in range(3) for part in (nn.Linear(n, n), nn.ReLU())))

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.layers(x)
        return output


class Leaky(Perceptron):
    """Its slope is off by three parts in ten where nothing may pass."""

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = nn.functional.leaky_relu(x, 0.3) if isinstance(layer, nn.ReLU) else layer(x)
        return x


class Square(nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        return x * x


class StaticSquare(Square):
    """An even function, whose earlier output a call with the negated input does not change."""

    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "kept"):
            self.kept = torch.empty_like(x)
        return torch.mul(x, x, out=self.kept)


class Rows(nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n, n))

    def forward(self, index: Tensor) -> Tensor:
        return self.weight[index]


class SparseRows(Rows):
    """Whose weight's gradient is sparse."""

    def forward(self, index: Tensor) -> Tensor:
        return nn.functional.embedding(index, self.weight, sparse=True)


class StaticRows(Rows):
    def forward(self, index: Tensor) -> Tensor:
        if not hasattr(self, "kept"):
            self.kept = self.weight.new_empty(len(index), self.weight.shape[1])
        return torch.index_select(self.weight, 0, index, out=self.kept)


class Turns(nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.turn = nn.Parameter(torch.randn(n, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.turn).abs()


class SignOfMean(Double):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.mean() > 0 else x * 3


class StaticOutput(Double):
    """Returns the same buffer every time, as a captured graph does."""

    buffer: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.buffer is None or self.buffer.shape != x.shape:
            self.buffer = torch.empty_like(x, requires_grad=False)
        return torch.mul(x, 2, out=self.buffer) if not x.requires_grad else x * 2


class HoardingLinear(Linear):
    """Keeps every output, under another name."""

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.outputs: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        self.outputs.append(out.detach())
        return out


class KeepsTheLast(Double):
    """Keeps its latest output alone."""

    def forward(self, x: Tensor) -> Tensor:
        self.latest = x * 2
        return self.latest


class Dies(Double):
    def forward(self, x: Tensor) -> Tensor:
        os.kill(os.getpid(), signal.SIGKILL)
        return x


class Sleeps(Double):
    def forward(self, x: Tensor) -> Tensor:
        time.sleep(60)
        return x


class Prints(Double):
    def forward(self, x: Tensor) -> Tensor:
        print("a layer that talks")  # noqa: T201
        return x * 2


class IgnoresStrides(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (grad,) = grads
        # Reads the storage as if it were contiguous: what a kernel does that takes data_ptr() and numel().
        flat = torch.as_strided(
            grad, (min(grad.numel(), grad.untyped_storage().nbytes() // grad.element_size()),), (1,)
        )
        return F.pad(flat, (0, grad.numel() - flat.numel())).view(grad.shape) * 2


class StrideBlind(Double):
    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = IgnoresStrides.apply(x)  # type: ignore[no-untyped-call]
        return result


class Times(nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x * y


class Plus(Times):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


class ByAddress(Double):
    """Remembers its answer by where the input lies, as a careless cache does."""

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.known: dict[int, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        if x.requires_grad:
            return x * 2
        if x.data_ptr() not in self.known or self.known[x.data_ptr()].shape != x.shape:
            self.known = {x.data_ptr(): x * 2}
        return self.known[x.data_ptr()].clone()


class ByTensor(Double):
    """Remembers its answer for the same tensor, as long as nothing was written into it."""

    last: tuple[Any, ...] = ()

    def forward(self, x: Tensor) -> Tensor:
        if not (self.last and self.last[0] is x and self.last[1] == x._version):
            self.last = (x, x._version, x * 2)
        return cast(Tensor, self.last[2])


class Positions(Double):
    """A table that depends on the shape alone."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.arange(x.numel(), dtype=x.dtype).view_as(x)


class KeptPositions(Positions):
    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.tables: dict[Any, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        key = x.shape, x.dtype
        if key not in self.tables:
            self.tables[key] = super().forward(x)
        return self.tables[key]


class Random(Double):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x * 2, 0.5, self.training)


class HardlyRandom(Double):
    """Two calls are closer to one another than ten of bfloat16's bounds."""

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x * 2, 0.03, self.training)


class Softmax(Double):
    """The gradient of a constant is exactly zero, and in float32 rounding alone."""

    def forward(self, x: Tensor) -> Tensor:
        return x.softmax(-1)


class Attention(nn.Module):
    """Of which the bias of the keys has no influence, so a gradient of zero; its two projections share a weight."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(n, n), nn.Linear(n, n)
        self.query.weight = self.key.weight

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = (self.query(x) @ self.key(x).transpose(-1, -2)).softmax(-1) @ x
        return result


class Normalised(nn.Module):
    """Buffers of floats that a call changes, and one of integers."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(n, n), nn.BatchNorm1d(n)
        self.order: Tensor
        self.register_buffer("order", torch.arange(n).flip(0))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.norm(self.linear(x[:, self.order]))
        return result


class Logarithm(Double):
    def forward(self, x: Tensor) -> Tensor:
        return x.log()


class Masked(nn.Module):
    """Its second input gets no gradient, and neither does a weight that is not used."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.ones(n))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return torch.where(mask > 0, x, -x)


class Where(nn.Module):
    """A mask of booleans among the inputs, and one among the buffers."""

    mine: Tensor

    def __init__(self, n: int) -> None:
        super().__init__()
        self.register_buffer("mine", torch.arange(n) % 2 == 0)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return torch.where(mask & self.mine, x, 0)


def chosen(generator: torch.Generator, *, n: int, **_: Any) -> Inputs:
    return (torch.randn(4, n, generator=generator), torch.rand(4, n, generator=generator) > 0.5)


class Several(nn.Module):
    """Attention with its weights."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(n, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        output, weights = self.inner(x, x, x)
        return output, weights


class StaticPair(nn.Module):
    """Two outputs in the same two buffers every time."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.kept: list[Tensor] = []

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if not self.kept or self.kept[0].shape != x.shape:
            self.kept = [torch.empty_like(x, requires_grad=False) for _ in range(2)]
        first, second = (kept.copy_(times * x.detach()) for kept, times in zip(self.kept, (2, 3), strict=True))
        return first, second


class Pair(nn.Module):
    """The same in new ones."""

    def __init__(self, n: int) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return 2 * x.detach(), 3 * x.detach()


class NoReturn(Double):
    def forward(self, x: Tensor) -> Tensor:
        return None  # type: ignore[return-value]


class LateBuffer(Double):
    """Has a buffer from its first call on."""

    mean: Tensor | None

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.register_buffer("mean", None)

    def forward(self, x: Tensor) -> Tensor:
        if self.mean is None:
            self.mean = x.detach().mean(0)
        return x * 2


class Draws(nn.Module):
    """Random numbers that no state_dict holds, and a buffer made of them."""

    drawn: Tensor
    mean: Tensor

    def __init__(self, n: int) -> None:
        super().__init__()
        self.register_buffer("drawn", torch.randn(n), persistent=False)
        self.register_buffer("mean", torch.zeros(n))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.mean.mul_(0.9).add_(x.mean(0) * self.drawn)
        return x * self.drawn


class WrongWeights(Several):
    """Right but for the second of them."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        output, weights = super().forward(x)
        return output, weights * 1.1


class Remembers(Double):
    """What it answers depends on the calls before: an exponential moving average."""

    mean: Tensor

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.register_buffer("mean", torch.zeros(n))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return x - self.mean


class Forgets(Remembers):
    def forward(self, x: Tensor) -> Tensor:
        return x - (0.9 * self.mean + 0.1 * x.mean(0)).detach()


class Assigns(Remembers):
    """As Remembers, with a new tensor each time."""

    def forward(self, x: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return x * 2


class NeverAssigns(Assigns):
    """As fast as can be."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2


class Nan(Double):
    def forward(self, x: Tensor) -> Tensor:
        return x * float("nan")


class WrongSlope(torch.autograd.Function):
    """x * sigmoid(x), whose product rule was forgotten."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad * torch.sigmoid(x)


class Slipped(Double):
    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = WrongSlope.apply(x)  # type: ignore[no-untyped-call]
        return result


class SinglePrecision(Double):
    def forward(self, x: Tensor) -> Tensor:
        return x @ torch.eye(x.shape[-1])


class NoWayBack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> None:
        return None


class NothingArrives(Double):
    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = NoWayBack.apply(x)  # type: ignore[no-untyped-call]
        return result


def index(generator: torch.Generator, *, n: int, **_: Any) -> Inputs:
    return (torch.randint(n, (4,), generator=generator),)


def many(generator: torch.Generator, *, n: int, **_: Any) -> Inputs:
    return (torch.randn(32, n, generator=generator),)


def careless(generator: torch.Generator, *, n: int, **_: Any) -> Inputs:
    return (torch.randn(4, n),)


def positive(generator: torch.Generator, *, n: int, **_: Any) -> Inputs:
    return (torch.rand(4, n, generator=generator) + 0.1,)


def against(right: type[nn.Module], version: type[nn.Module], **extra: Any) -> Layer:
    """A layer whose eager version is right, and whose `native` one is the one under test."""
    return Layer(
        version.__name__, {"eager": right, "native": version}, extra.pop("inputs", one), defaults={"n": 8}, **extra
    )


DOUBLE = against(Double, Double)
LINEAR = against(Linear, Linear)
NAN_LATER = against(Double, NanLater)
IN_PLACE = against(Double, InPlace)
NOT_A_TENSOR = against(Double, NotATensor)
RAISES = against(Double, Raises)
DETACHED = against(Double, Detached)
OTHER_DTYPE = against(Double, OtherDtype)
SIGN_OF_MEAN = Layer("sign_of_mean", {"eager": SignOfMean}, one, defaults={"n": 8})
STATIC_OUTPUT = against(Double, StaticOutput)
HOARDS = against(Linear, HoardingLinear)
KEEPS_THE_LAST = against(Double, KeepsTheLast)
DIES = against(Double, Dies)
SLEEPS = against(Double, Sleeps)
PRINTS = against(Double, Prints)
STRIDE_BLIND = against(Double, StrideBlind)
TIMES_FOR_PLUS = against(Plus, Times, inputs=two)
СЛОЙ_β = against(Double, Double)
BY_ADDRESS = against(Double, ByAddress)
BY_TENSOR = against(Double, ByTensor)
KEPT_POSITIONS = against(Positions, KeptPositions)
FORGETS = against(Remembers, Forgets)
NEVER_ASSIGNS = against(Assigns, NeverAssigns)
SEVERAL = against(Several, WrongWeights)
STATIC_PAIR = replace(against(Pair, StaticPair), output=lambda result: torch.cat(result))
NO_RETURN = against(Double, NoReturn)
SEVERAL_WRONG = replace(SEVERAL, output=lambda result: result[1])
NAN = against(Double, Nan)
SLIPPED = Layer("slipped", {"eager": Slipped}, one, defaults={"n": 8})
SINGLE_PRECISION = Layer("single", {"eager": SinglePrecision}, one, defaults={"n": 8})
NOTHING_ARRIVES = against(Double, NothingArrives)
CARELESS = Layer("careless", {"eager": Double}, careless, defaults={"n": 8})
RANDOM = Layer("random", {"eager": Random}, one, defaults={"n": 8})
HARDLY_RANDOM = Layer("hardly random", {"eager": HardlyRandom}, many, defaults={"n": 256})
STATIC_SQUARE = against(Square, StaticSquare)
SPARSE = [against(Rows, SparseRows, inputs=index), against(SparseRows, Rows, inputs=index)]
STATIC_ROWS = against(Rows, StaticRows, inputs=index)
KEEPS_FLOAT32 = against(Upcasts, CastsBack)
UPCASTS = Layer("upcasts", {"eager": Upcasts}, one, defaults={"n": 8})
COMPLEX = Layer("turns", {"eager": Turns}, one, defaults={"n": 8})
PERCEPTRON = replace(against(Perceptron, Perceptron, inputs=many), defaults={"n": 256})
LEAKY = replace(against(Perceptron, Leaky, inputs=many), defaults={"n": 256})
FLOAT32_INSIDE = [Layer("rms norm", {"eager": Normed}, many, defaults={"n": size}) for size in (8, 256)]
UNUSUAL = [
    Layer("picky", {"eager": Picky}, positive, defaults={"n": 8}),
    Layer("rms norm", {"eager": Normed}, one, defaults={"n": 64}),
    Layer("softmax", {"eager": Softmax}, one, defaults={"n": 8}),
    Layer("attention", {"eager": Attention}, one, defaults={"n": 8}),
    Layer("normalised", {"eager": Normalised}, one, defaults={"n": 8}),
    Layer("logarithm", {"eager": Logarithm}, positive, defaults={"n": 8}),
    Layer("masked", {"eager": Masked}, two, defaults={"n": 8}),
    Layer("where", {"eager": Where}, chosen, defaults={"n": 8}),
    Layer("remembers", {"eager": Remembers}, one, defaults={"n": 8}),
    Layer("assigns", {"eager": Assigns}, one, defaults={"n": 8}),
    Layer("late buffer", {"eager": LateBuffer}, one, defaults={"n": 8}),
    Layer("draws", {"eager": Draws}, one, defaults={"n": 8}),
    replace(SEVERAL, output=lambda result: result[0]),
    replace(SEVERAL, output=lambda result: torch.cat([one.flatten() for one in result])),
    Layer("transformer", {"eager": lambda n: nn.TransformerEncoderLayer(n, 2, 16, 0.0)}, one, defaults={"n": 8}),
]


class OwnThreads(Double):
    def forward(self, x: Tensor) -> Tensor:
        torch.set_num_threads(2)
        return x * 2


OWN_THREADS = against(Double, OwnThreads)
