"""The operators against the float64 reference on whatever hypothesis thinks of: shapes, strides, dtypes, parameters.

Some hundreds of examples by default; thousands with `--hypothesis-profile thorough --timeout 0`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from ext import ops

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
OTHERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
# Relative Frobenius norm: a few units of the last place, for sums in another order than the reference's.
BOUND = {torch.float64: 1e-12, torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
Pair = tuple[int, int]


@pytest.fixture(scope="module", autouse=True)
def _library() -> None:
    ops.load()


@dataclass(frozen=True)
class Look:
    """How a tensor lies in memory: a permutation of its dimensions, and for each how it is cut from a larger one."""

    order: tuple[int, ...]
    before: tuple[int, ...]  # elements skipped
    step: tuple[int, ...]
    expanded: tuple[bool, ...]  # all along it are one

    def draw(
        self, shape: Sequence[int], dtype: torch.dtype, device: str, generator: torch.Generator, scale: float = 30
    ) -> Tensor:
        """A random tensor of that shape that lies so."""
        dims = range(len(shape))
        held = [1 if self.expanded[d] and shape[d] else self.before[d] + self.step[d] * shape[d] for d in dims]
        x = torch.randn([held[d] for d in self.order], generator=generator).mul(scale).to(device, dtype)
        x = x.permute([self.order.index(d) for d in dims])
        for d in dims:
            if self.expanded[d] and shape[d]:
                x = x.expand(*x.shape[:d], shape[d], *x.shape[d + 1 :])
            else:
                x = x.narrow(d, self.before[d], self.step[d] * shape[d])
                x = x[(slice(None),) * d + (slice(None, None, self.step[d]),)]
        assert x.shape == tuple(shape)
        return x


def looks(dims: int) -> st.SearchStrategy[Look]:
    def each(values: st.SearchStrategy[object]) -> st.SearchStrategy[tuple[object, ...]]:
        return st.tuples(*[values] * dims)

    rarely = st.sampled_from([False, False, False, True])
    few = st.sampled_from([0, 0, 1, 3])
    steps = st.sampled_from([1, 1, 1, 2, 3])
    return st.builds(Look, st.permutations(range(dims)).map(tuple), each(few), each(steps), each(rarely))


seeds = st.integers(0, 2**32 - 1).map(lambda seed: torch.Generator().manual_seed(seed))


def fuzz(examples: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Many more in the thorough profile, and never the same there."""
    thorough = settings.get_current_profile_name() == "thorough"
    return settings(
        max_examples=examples * 20 if thorough else examples,
        derandomize=not thorough,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


def assert_close(got: Tensor, wanted: Tensor, dtype: torch.dtype, size: float = 0.0) -> None:
    """Within the bound of the wanted values, or of `size` where they cancel out."""
    assert got.dtype == dtype
    assert got.shape == wanted.shape
    wanted = wanted.detach()
    error = torch.linalg.vector_norm(got.detach().double() - wanted)
    assert error <= BOUND[dtype] * max(torch.linalg.vector_norm(wanted).item(), size)


def gradients(
    call: Callable[..., Tensor], inputs: Sequence[Tensor], look: Look, seed: torch.Generator
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """The output, an output gradient that lies as `look` has it, and the gradient of every input."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    out = call(*leaves)
    grad = look.draw(out.shape, out.dtype, str(out.device), seed, 1)
    return out, grad, list(torch.autograd.grad(out, leaves, grad))


@pytest.mark.parametrize("device", DEVICES)
def test_shift(device: str) -> None:
    @fuzz(150)
    @given(st.lists(st.integers(0, 9), max_size=4), st.sampled_from(FLOATS + OTHERS), st.data(), seeds)
    def check(shape: list[int], dtype: torch.dtype, data: st.DataObject, seed: torch.Generator) -> None:
        if shape:
            shape[-1] *= data.draw(st.sampled_from([1, 1, 31, 400]), "stretched")
        length = shape[-1] if shape else 1
        k = data.draw(st.integers(-length - 2, length + 2) | st.integers(-(2**63), 2**63 - 1), "k")
        x = data.draw(looks(len(shape)), "x").draw(shape, dtype, device, seed)
        source = torch.arange(length, device=device) - max(-length, min(length, k))
        inside = (source >= 0) & (source < length)

        def right(x: Tensor) -> Tensor:
            rows = x.reshape(*shape[:-1], length)
            moved = torch.where(inside, rows.index_select(-1, source.clamp(0, max(length - 1, 0))), 0)
            return moved.reshape(shape)

        def ours(x: Tensor) -> Tensor:
            out: Tensor = torch.ops.layerbench.shift(x, k)
            return out

        if not dtype.is_floating_point:
            assert torch.equal(ours(x), right(x))
            return
        out, grad, (got,) = gradients(ours, [x], data.draw(looks(len(shape)), "grad"), seed)
        assert torch.equal(out, right(x))
        leaf = x.detach().double().requires_grad_()
        (wanted,) = torch.autograd.grad(right(leaf), leaf, grad.double())
        assert torch.equal(got.double(), wanted)

    check()


@pytest.mark.parametrize("device", DEVICES)
def test_vecadd(device: str) -> None:
    @fuzz(80)
    @given(st.lists(st.integers(0, 40), max_size=4), st.sampled_from(FLOATS + OTHERS), st.data(), seeds)
    def check(shape: list[int], dtype: torch.dtype, data: st.DataObject, seed: torch.Generator) -> None:
        look = looks(len(shape))
        x, y = (data.draw(look, name).draw(shape, dtype, device, seed) for name in "xy")
        if not dtype.is_floating_point:
            assert torch.equal(torch.ops.layerbench.vecadd(x, y), x + y)
            return
        out, grad, got = gradients(torch.ops.layerbench.vecadd, [x, y], data.draw(look, "grad"), seed)
        assert torch.equal(out, x + y)
        assert all(torch.equal(g, grad) for g in got)

    check()


@st.composite
def windows(draw: st.DrawFn) -> tuple[Pair, Pair, Pair, Pair, Pair]:
    """Sizes of an image that the kernel fits on, then the kernel and how it moves."""

    def pair(low: int, high: int) -> Pair:
        return draw(st.tuples(st.integers(low, high), st.integers(low, high)))

    if draw(st.booleans()):  # what most layers do, which has kernels of its own, for images of some size
        border, size = draw(st.sampled_from([0, 0, 1, 2])), (draw(st.integers(4, 40)), draw(st.integers(64, 132)))
        return size, (3, 3), (1, 1), (border, border), (1, 1)
    kernel, stride, padding, dilation = pair(1, 7), pair(1, 4), pair(0, 4), pair(1, 3)
    reach = [d * (k - 1) + 1 - 2 * p for k, p, d in zip(kernel, padding, dilation, strict=True)]
    longer = draw(st.sampled_from([3, 12, 12, 40, 140]))  # beyond a tile of the kernels, now and then
    height, width = (max(low, 1) + draw(st.integers(0, most)) for low, most in zip(reach, (12, longer), strict=True))
    return (height, width), kernel, stride, padding, dilation


@pytest.mark.parametrize("device", DEVICES)
def test_unfold_conv2d(device: str) -> None:
    counts = [0, 1, 2, 3, 4, 5, 8, 17], [0, 1, 2, 3, 4, 9, 16, 32, 33]
    sizes = st.tuples(st.integers(0, 4), *map(st.sampled_from, counts))

    @fuzz(150)
    @given(sizes, windows(), st.booleans(), st.sampled_from(FLOATS), st.data(), seeds)
    def check(
        counts: tuple[int, int, int],
        window: tuple[Pair, Pair, Pair, Pair, Pair],
        bias: bool,
        dtype: torch.dtype,
        data: st.DataObject,
        seed: torch.Generator,
    ) -> None:
        (batch, channels, filters), (size, kernel, stride, padding, dilation) = counts, window
        shapes = [(batch, channels, *size), (filters, channels, kernel[0] * kernel[1]), (filters,)][: 2 + bias]
        looked = [data.draw(looks(len(s)), str(s)).draw(s, dtype, device, seed, 1) for s in shapes]
        inputs = [x if data.draw(st.booleans()) else x.contiguous() for x in looked]

        def ours(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
            out: Tensor = torch.ops.layerbench.unfold_conv2d(x, weight, bias, kernel, stride, padding, dilation)
            return out

        def right(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
            if not channels * filters:  # of which F.conv2d makes another shape, or an error
                one = F.conv2d(
                    x.new_zeros(batch, 1, *size), x.new_zeros(1, 1, *kernel), None, stride, padding, dilation
                )
                more = 0 if bias is None else bias[:, None, None]
                return one.expand(-1, filters, -1, -1) + x.sum() + weight.sum() + more
            return F.conv2d(x, weight.reshape(filters, channels, *kernel), bias, stride, padding, dilation)

        out, grad, got = gradients(ours, inputs, data.draw(looks(4), "grad"), seed)
        leaves = [x.detach().double().requires_grad_() for x in inputs]
        exact = right(*leaves)
        assert_close(out, exact, dtype)
        for ours_, wanted in zip(got, torch.autograd.grad(exact, leaves, grad.double()), strict=True):
            # Random gradients cancel out: rounding is relative to what was added up.
            assert_close(ours_, wanted, dtype, torch.linalg.vector_norm(grad.double()).item())

    check()
