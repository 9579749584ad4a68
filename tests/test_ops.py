"""The native operators against torch's own, on every device at hand."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from ext import build, ops

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]
BOUND = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
FUZZ = settings(max_examples=300, deadline=None, derandomize=True)
pytestmark = [pytest.mark.filterwarnings(f"ignore:.*torch.jit:{kind}Warning") for kind in ("Deprecation", "Future")]
everywhere = pytest.mark.parametrize("device", DEVICES)

Pair = tuple[int, int]


@pytest.fixture(scope="session", autouse=True)
def _library() -> None:
    ops.load()


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def native() -> Any:
    return torch.ops.layerbench


@dataclass(frozen=True)
class Conv:
    """A convolution to try: sizes, and how its kernel moves."""

    batch: int = 2
    channels: int = 3
    size: Pair = (9, 11)
    filters: int = 5
    kernel: Pair = (3, 3)
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    bias: bool = True

    @property
    def window(self) -> tuple[Pair, Pair, Pair, Pair]:
        return self.kernel, self.stride, self.padding, self.dilation

    def inputs(self, dtype: torch.dtype = torch.float64, device: str = "cpu") -> list[Tensor]:
        """Input, weight (O, C, kh, kw) and bias or none, wanting gradients."""
        shapes = [(self.batch, self.channels, *self.size), (self.filters, self.channels, *self.kernel), (self.filters,)]
        return [torch.randn(shape, dtype=dtype, device=device, requires_grad=True) for shape in shapes[: 2 + self.bias]]

    def native(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        out: Tensor = torch.ops.layerbench.unfold_conv2d(x, weight.flatten(2), bias, *self.window)
        return out

    def reference(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return F.conv2d(x, weight, bias, self.stride, self.padding, self.dilation)


CONVS = {
    "article": Conv(batch=1, size=(40, 150), filters=16),
    "batch": Conv(batch=4),
    "no bias": Conv(bias=False),
    "one by one": Conv(kernel=(1, 1), filters=17),
    "kernel as large as the image": Conv(size=(4, 5), kernel=(4, 5)),
    "oblong": Conv(size=(9, 140), kernel=(3, 2), stride=(2, 1), padding=(1, 2), dilation=(1, 2)),
    "stride beyond the kernel": Conv(size=(13, 300), kernel=(2, 1), stride=(3, 2)),
    "padding beyond the kernel": Conv(size=(3, 3), kernel=(2, 2), padding=(5, 6)),
    "all at once": Conv(size=(20, 20), filters=9, kernel=(5, 4), stride=(4, 3), padding=(6, 2), dilation=(2, 3)),
    "many channels": Conv(channels=40, size=(6, 7), filters=33),
    "many pixels": Conv(size=(70, 90), filters=4, padding=(1, 1)),
    "one channel, filters in parts": Conv(channels=1, size=(22, 68), filters=31, bias=False),
    "four channels": Conv(channels=4, size=(37, 200), filters=6),
    "rows of odd length": Conv(channels=2, size=(20, 131), filters=9),
}


DEEP = {  # what tensor cores take: one sum in splits, or in one go, of 64 results to a block or 128
    "deep": Conv(channels=64, size=(60, 61), filters=70, padding=(1, 1)),
    "deep and small": Conv(batch=1, channels=300, size=(6, 6), filters=33, padding=(1, 1)),
    "in one go": Conv(channels=12, size=(20, 21), filters=33),
    "in one go, large": Conv(channels=12, size=(60, 61), filters=70, padding=(1, 1)),
    "gradient in one go": Conv(channels=33, size=(20, 21), filters=12),
}


def any_conv() -> st.SearchStrategy[Conv]:
    def pair(low: int, high: int) -> st.SearchStrategy[Pair]:
        return st.tuples(st.integers(low, high), st.integers(low, high))

    def fits(case: Conv) -> bool:
        sides = zip(case.size, *case.window, strict=True)
        return all(size + 2 * pad >= step * (kernel - 1) + 1 for size, kernel, _, pad, step in sides)

    counts = (st.integers(1, 4), st.integers(1, 6), pair(1, 20), st.integers(1, 19))
    return st.builds(Conv, *counts, pair(1, 4), pair(1, 3), pair(0, 4), pair(1, 3), st.booleans()).filter(fits)


def assert_same_beside_infinities(got: Tensor, want: Tensor) -> None:
    """What is not finite is the same; what is finite is right, huge numbers and all others each by themselves."""
    got, bound = got.cpu(), BOUND[got.dtype]
    odd, huge = ~want.isfinite(), want.abs() > 1
    torch.testing.assert_close(got[odd], want[odd], rtol=0, atol=0, equal_nan=True)
    got, want = got.double().masked_fill(odd, 0), want.double().masked_fill(odd, 0)
    assert error(got.masked_fill(huge, 0), want.masked_fill(huge, 0)) <= bound
    largest = want.abs().max().clamp_min(1)  # whose square may be beyond all numbers
    assert error(got / largest, want / largest) <= bound


def error(got: Tensor, want: Tensor) -> float:
    """Relative Frobenius norm of the difference."""
    assert got.shape == want.shape
    return float(
        (got.detach().double().cpu() - want.detach().cpu()).norm() / want.detach().norm().clamp_min(1e-30).cpu()
    )


def assert_equal_to_conv2d(case: Conv, dtype: torch.dtype, device: str) -> None:
    inputs = case.inputs(dtype, device)
    wanted = [x.detach().double().cpu().requires_grad_() for x in inputs]
    out, reference = case.native(*inputs), case.reference(*wanted)
    assert out.dtype == dtype
    assert out.device == inputs[0].device
    assert out.is_contiguous()
    grad = torch.randn_like(out)
    got = torch.autograd.grad(out, inputs, grad)
    want = torch.autograd.grad(reference, wanted, grad.double().cpu())
    for ours, theirs in zip((out, *got), (reference, *want), strict=True):
        assert error(ours, theirs) < BOUND[dtype]


def shifted(x: Tensor, k: int) -> Tensor:
    """Rolled, and zero where it wrapped."""
    if x.dim() == 0:
        return shifted(x.reshape(1), k).reshape(())
    n = x.shape[-1]
    k = max(-n, min(n, k))
    column = torch.arange(n, device=x.device)
    return torch.where((column >= k) & (column < n + k), x.roll(k, -1), torch.zeros((), dtype=x.dtype, device=x.device))


def some(shape: tuple[int, ...], dtype: torch.dtype, device: str = "cpu") -> Tensor:
    return torch.randn(shape, device=device).mul(50).to(dtype)


class TestConv:
    @everywhere
    @pytest.mark.parametrize("dtype", FLOATS, ids=str)
    @pytest.mark.parametrize("case", CONVS.values(), ids=CONVS)
    def test_output_and_gradients_equal_conv2d(self, case: Conv, dtype: torch.dtype, device: str) -> None:
        assert_equal_to_conv2d(case, dtype, device)

    @everywhere
    def test_output_and_gradients_equal_conv2d_for_any_geometry(self, device: str) -> None:
        @FUZZ
        @given(any_conv())
        def check(case: Conv) -> None:
            assert_equal_to_conv2d(case, torch.float64, device)

        check()

    @everywhere
    @pytest.mark.parametrize("case", [CONVS["oblong"], CONVS["padding beyond the kernel"], CONVS["no bias"]])
    def test_gradients_of_first_and_second_order_pass_gradcheck(self, case: Conv, device: str) -> None:
        small = Conv(1, 2, (5, 6), 2, *case.window, bias=case.bias)
        inputs = small.inputs(device=device)
        assert torch.autograd.gradcheck(small.native, inputs)
        assert torch.autograd.gradgradcheck(small.native, inputs)

    @everywhere
    @pytest.mark.parametrize("dtype", FLOATS, ids=str)
    @pytest.mark.parametrize("case", [*CONVS.values(), *DEEP.values()], ids=[*CONVS, *DEEP])
    def test_infinities_and_what_no_tf32_holds_come_out_as_in_float64(
        self, case: Conv, dtype: torch.dtype, device: str
    ) -> None:
        inputs = case.inputs(dtype, device)
        x, weight, *_ = (t.detach() for t in inputs)
        odd = torch.tensor([torch.inf, -torch.inf, torch.nan, torch.finfo(dtype).max], dtype=dtype, device=device)
        x.view(-1)[torch.randperm(x.numel(), device=device)[: len(odd)]] = odd
        weight *= 2.0**-9  # so that the largest number may be multiplied
        out = case.native(*inputs)
        grad = torch.randn_like(out)
        grad.view(-1)[torch.randint(grad.numel(), (1,))] = torch.inf
        wide = [t.detach().cpu().double().requires_grad_() for t in inputs]
        right = case.reference(*wide)
        assert_same_beside_infinities(out.detach(), right.detach().to(dtype))
        (got,), (want,) = torch.autograd.grad(out, inputs[:1], grad), torch.autograd.grad(right, wide[:1], grad.cpu())
        assert_same_beside_infinities(got, want.to(dtype))

    @everywhere
    @pytest.mark.parametrize("layout", ["transposed", "channels last", "expanded", "strided"])
    def test_inputs_of_any_strides_are_read_right(self, layout: str, device: str) -> None:
        x = torch.randn(2, 3, 8, 8, dtype=torch.float64, device=device)
        weight = torch.randn(5, 3, 3, 3, dtype=torch.float64, device=device)
        other = {
            "transposed": x.transpose(2, 3),
            "channels last": x.to(memory_format=torch.channels_last),
            "expanded": x[:1].expand(4, 3, 8, 8),
            "strided": x[:, :, ::2, 1:],
        }[layout]
        before = other.clone()
        out = Conv().native(other, weight.transpose(2, 3))
        assert error(out, Conv().reference(other, weight.transpose(2, 3))) < 1e-12
        assert torch.equal(other, before)

    @everywhere
    @pytest.mark.parametrize("case", [CONVS["batch"], CONVS["all at once"]])
    def test_an_expanded_and_a_transposed_output_gradient_give_the_right_gradients(
        self, case: Conv, device: str
    ) -> None:
        inputs = case.inputs(device=device)
        ours, theirs = case.native(*inputs), case.reference(*inputs)
        grads = torch.ones((), dtype=torch.float64, device=device).expand_as(ours), torch.randn_like(ours.mT).mT
        for grad in grads:
            got = torch.autograd.grad(ours, inputs, grad, retain_graph=True)
            want = torch.autograd.grad(theirs, inputs, grad, retain_graph=True)
            assert all(error(a, b) < 1e-12 for a, b in zip(got, want, strict=True))

    @everywhere
    def test_a_batch_of_zero_gives_an_empty_output_and_zero_gradients(self, device: str) -> None:
        case = Conv(batch=0)
        inputs = case.inputs(device=device)
        out = case.native(*inputs)
        assert out.shape == (0, 5, 7, 9)
        grads = torch.autograd.grad(out.sum(), inputs)
        assert [grad.shape for grad in grads] == [x.shape for x in inputs]
        assert all((grad == 0).all() for grad in grads)

    def test_only_the_gradients_wanted_are_computed(self) -> None:
        x, weight, bias = Conv().inputs()
        out = Conv().native(x.detach(), weight, bias.detach())
        with torch.profiler.profile() as profile:
            out.sum().backward()
        names = {event.name for event in profile.events() or ()}
        assert "layerbench::unfold_conv2d_grad_weight" in names
        assert "layerbench::unfold_conv2d_grad_input" not in names
        assert x.grad is None

    def test_no_graph_is_recorded_where_no_gradient_is_wanted(self) -> None:
        inputs = Conv().inputs()
        with torch.no_grad():
            assert Conv().native(*inputs).grad_fn is None
        assert Conv().native(*(x.detach() for x in inputs)).grad_fn is None

    @everywhere
    @pytest.mark.parametrize("stride", [1, 2])
    @pytest.mark.parametrize("none", ["batch", "channels", "filters"])
    def test_where_there_is_nothing_to_convolve_gradients_are_empty_or_zero(
        self, none: str, stride: int, device: str
    ) -> None:
        size = (512, 514) if device == "cuda" else (9, 70)  # so that an output outgrows the L2
        some = Conv(batch=16, filters=32, size=size, stride=(stride, stride))
        case = {
            "batch": replace(some, batch=0),
            "channels": replace(some, channels=0),
            "filters": replace(some, filters=0),
        }[none]
        inputs = case.inputs(torch.float32, device)
        out = case.native(*inputs)
        assert out.numel() == 0 if none != "channels" else out.eq(inputs[2][:, None, None]).all()
        got = torch.autograd.grad(out.sum(), inputs)
        for gradient, leaf in zip(got[:2], inputs, strict=False):
            assert gradient.shape == leaf.shape
            assert not gradient.any()

    @everywhere
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
    def test_autocast_runs_it_in_the_lower_precision_as_it_does_conv2d(self, dtype: torch.dtype, device: str) -> None:
        inputs = Conv().inputs(torch.float32, device)
        with torch.autocast(device, dtype=dtype):
            out, reference = Conv().native(*inputs), Conv().reference(*inputs)
        assert out.dtype == reference.dtype == dtype
        out.sum().backward()
        assert [x.grad.dtype for x in inputs if x.grad is not None] == [torch.float32] * 3

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"x": torch.ones(3, 9, 9)}, r"input has shape \[3, 9, 9\]; \(batch, channels, height, width\)"),
            ({"x": torch.ones(2, 4, 9, 9)}, r"weight has shape \[5, 3, 9\]; \[5, 4, 9\] is accepted"),
            ({"x": torch.ones(2, 3, 9, 9, dtype=torch.int32)}, "input is Int; float32, float64, float16"),
            ({"x": torch.ones(2, 3, 2, 9)}, "height is 2 with padding; at least the dilated kernel's 3"),
            ({"weight": torch.ones(5, 3, 3, 3)}, r"weight has shape \[5, 3, 3, 3\]; \(filters, channels, "),
            ({"weight": torch.ones(5, 3, 9).double()}, "weight is Double, input is Float; one dtype"),
            ({"bias": torch.ones(4)}, r"bias has shape \[4\]; \[5\] is accepted"),
            ({"kernel_size": (0, 3)}, r"kernel_size is \[0, 3\]; two integers of at least 1"),
            ({"stride": (1, 0)}, r"stride is \[1, 0\]; two integers of at least 1"),
            ({"padding": (-1, 0)}, r"padding is \[-1, 0\]; two integers of at least 0"),
            ({"dilation": (1, 2**31)}, r"dilation is \[1, 2147483648\]; two integers of at least 1 \(and below"),
        ],
    )
    def test_a_wrong_argument_is_named_with_its_value_and_what_is_accepted(
        self, native: Any, change: dict[str, Any], message: str
    ) -> None:
        arguments = {
            "x": torch.ones(2, 3, 9, 9),
            "weight": torch.ones(5, 3, 9),
            "bias": None,
            "kernel_size": 3,
        } | change
        with pytest.raises(RuntimeError, match=message):
            native.unfold_conv2d(arguments.pop("x"), arguments.pop("weight"), arguments.pop("bias"), **arguments)

    @everywhere
    @pytest.mark.parametrize("case", [CONVS["oblong"], CONVS["no bias"], Conv(batch=0)])
    def test_opcheck_passes_for_it_and_its_gradients(self, native: Any, case: Conv, device: str) -> None:
        x, weight, *bias = case.inputs(device=device)
        permuted = x.detach().permute(0, 1, 3, 2).contiguous().permute(0, 1, 3, 2).requires_grad_()
        w = weight.detach().flatten(2).requires_grad_()
        for input_ in (x, permuted):
            torch.library.opcheck(native.unfold_conv2d.default, (input_, w, bias[0] if bias else None, *case.window))
        grad = torch.randn_like(case.native(x, weight), requires_grad=True)
        torch.library.opcheck(native.unfold_conv2d_grad_input.default, (grad, permuted, w, *case.window))
        torch.library.opcheck(native.unfold_conv2d_grad_weight.default, (grad, permuted, *case.window))


class TestShift:
    @everywhere
    @pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.bool, torch.complex64, torch.complex128], ids=str)
    def test_every_dtype_moves_and_zeros_move_in(self, native: Any, dtype: torch.dtype, device: str) -> None:
        x = some((3, 40), dtype, device)
        for k in (0, 1, -1, 3, -4, 16, 39, -40, 41, -100, 2**63 - 1, -(2**63)):
            out = native.shift(x, k)
            assert out.dtype == dtype
            assert torch.equal(out, shifted(x, k)), k

    @everywhere
    @pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0), (0, 3), (2, 3, 4, 5), (1000, 3), (2, 5000)], ids=str)
    def test_every_shape_keeps_its_rows_apart(self, native: Any, shape: tuple[int, ...], device: str) -> None:
        x = torch.randn(shape, device=device)
        for k in (1, -1, 2):
            assert torch.equal(native.shift(x, k), shifted(x, k))

    @everywhere
    def test_any_tensor_moves_by_any_distance(self, native: Any, device: str) -> None:
        dtypes = st.sampled_from([torch.uint8, torch.int16, torch.float32, torch.float64])

        @FUZZ
        @given(
            st.lists(st.integers(0, 9), max_size=3),
            st.integers(0, 3000),
            st.integers(-3100, 3100),
            dtypes,
            st.booleans(),
        )
        def check(rows: list[int], length: int, k: int, dtype: torch.dtype, strided: bool) -> None:
            x = some((*rows, 2 * length), dtype, device)[..., ::2] if strided else some((*rows, length), dtype, device)
            assert torch.equal(native.shift(x, k), shifted(x, k))

        check()

    @everywhere
    def test_an_address_that_is_not_aligned_is_read_right(self, native: Any, device: str) -> None:
        for offset in (1, 2, 4, 8):
            x = torch.arange(4096, dtype=torch.int32, device=device).to(torch.uint8)[offset:][:4000].view(40, 100)
            assert torch.equal(native.shift(x, 4), shifted(x, 4))

    @everywhere
    def test_its_gradient_is_the_shift_back(self, native: Any, device: str) -> None:
        x = torch.randn(3, 7, dtype=torch.float64, device=device, requires_grad=True)
        for k in (2, -3, 0, 9, -(2**63)):
            move = partial(native.shift, k=k)
            assert torch.autograd.gradcheck(move, x)
            assert torch.autograd.gradgradcheck(move, x)
        native.shift(x, 2).backward(torch.ones((), dtype=torch.float64, device=device).expand(3, 7))
        assert x.grad is not None
        assert torch.equal(x.grad[0].cpu(), torch.tensor([1.0, 1, 1, 1, 1, 0, 0], dtype=torch.float64))

    @everywhere
    def test_opcheck_passes(self, native: Any, device: str) -> None:
        for x in (torch.randn(3, 7), torch.randn(3, 7, 2).permute(2, 0, 1), torch.randn(0), torch.randn(())):
            torch.library.opcheck(native.shift.default, (x.to(device).requires_grad_(), 2))

    def test_scalars_in_its_schema_are_64_bit_integers(self, native: Any) -> None:
        assert str(native.shift.default._schema) == "layerbench::shift(Tensor x, int k) -> Tensor"
        with pytest.raises(RuntimeError, match="Expected a value of type 'int' for argument 'k'"):
            native.shift(torch.ones(3), 1.5)

    def test_forward_mode_is_refused_rather_than_losing_the_tangent(self, native: Any) -> None:
        with torch.autograd.forward_ad.dual_level():
            x = torch.autograd.forward_ad.make_dual(torch.ones(3), torch.ones(3))
            with pytest.raises(RuntimeError, match="jvp is not implemented"):
                native.shift(x, 1)


class TestVecadd:
    @everywhere
    @pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
    def test_every_dtype_adds_as_torch_does(self, native: Any, dtype: torch.dtype, device: str) -> None:
        for n in (0, 1, 15, 16, 17, 100_003):
            x, y = some((n,), dtype, device), some((n,), dtype, device)
            assert torch.equal(native.vecadd(x, y), x + y)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
    def test_every_16_bit_float_is_rounded_as_torch_rounds_it(self, native: Any, dtype: torch.dtype) -> None:
        every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
        for x, y in ((every, torch.zeros_like(every)), (every, every[torch.randperm(2**16)])):
            ours, theirs = native.vecadd(x.view(dtype), y.view(dtype)), x.view(dtype) + y.view(dtype)
            assert torch.equal(ours.isnan(), theirs.isnan())
            assert torch.equal(ours.nan_to_num(), theirs.nan_to_num())

    @everywhere
    def test_any_strides_and_shapes_add_as_torch_does(self, native: Any, device: str) -> None:
        @FUZZ
        @given(st.lists(st.integers(0, 12), max_size=4), st.booleans(), st.integers(0, 3))
        def check(shape: list[int], transposed: bool, offset: int) -> None:
            x = torch.randn([*shape, 5 + offset], device=device)[..., offset:]
            y = torch.randn(5, *reversed(shape), device=device).permute(*range(len(shape), -1, -1)) if transposed else x
            assert torch.equal(native.vecadd(x, y), x + y)

        check()

    @everywhere
    def test_its_gradient_passes_gradcheck(self, native: Any, device: str) -> None:
        x, y = (torch.randn(3, 4, dtype=torch.float64, device=device, requires_grad=True) for _ in range(2))
        assert torch.autograd.gradcheck(native.vecadd, (x, y))
        assert torch.autograd.gradgradcheck(native.vecadd, (x, y))

    @everywhere
    def test_opcheck_passes(self, native: Any, device: str) -> None:
        x = torch.randn(4, 3, device=device)
        torch.library.opcheck(native.vecadd.default, (x.requires_grad_(), torch.randn(3, 4, device=device).t()))
        torch.library.opcheck(native.vecadd.default, (x[:0], x[:0]))

    @pytest.mark.parametrize(
        ("x", "y", "message"),
        [
            (torch.ones(3), torch.ones(1), r"y has shape \[1\]; \[3\] is accepted"),
            (torch.ones(3), torch.ones(3).half(), "y is Half, x is Float; one dtype for both"),
            (
                torch.ones(3).bool(),
                torch.ones(3).bool(),
                "x is Bool; floating dtypes, uint8 and signed integers are accepted",
            ),
        ],
    )
    def test_unlike_arguments_are_named_with_what_is_accepted(
        self, native: Any, x: Tensor, y: Tensor, message: str
    ) -> None:
        with pytest.raises(RuntimeError, match=message):
            native.vecadd(x, y)


class Everything(nn.Module):
    """All three operators in one module that TorchScript can compile."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3, 9))
        self.bias = nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.ops.layerbench.unfold_conv2d(x, self.weight, self.bias, [3, 3], [1, 1], [1, 1], [1, 1])
        out: Tensor = torch.ops.layerbench.vecadd(torch.ops.layerbench.shift(y, 2), y)
        return out


TRAIN = """
import sys, warnings
warnings.simplefilter("ignore")
import torch
torch.ops.load_library(sys.argv[1])
module, x = torch.jit.load(sys.argv[2]), torch.load(sys.argv[3])
for _ in range(3):  # the profiling executor replaces the graph after the first calls
    module.zero_grad()
    out = module(x)
    out.square().mean().backward()
torch.save([out.detach(), *(p.grad for p in module.parameters())], sys.argv[4])
"""


class TestTorchScript:
    @pytest.mark.parametrize("convert", [torch.jit.script, lambda m: torch.jit.trace(m, torch.randn(2, 3, 8, 8))])
    def test_the_operators_show_in_a_converted_modules_graph(self, convert: Callable[..., Any]) -> None:
        module = convert(Everything())
        for name in ("unfold_conv2d", "shift", "vecadd"):
            assert f"layerbench::{name}" in str(module.graph)

    @everywhere
    def test_a_saved_module_trains_in_a_fresh_process(self, tmp_path: Path, device: str) -> None:
        module, x = Everything().to(device), torch.randn(2, 3, 8, 8, device=device)
        torch.jit.script(module).save(str(tmp_path / "module.pt"))
        torch.save(x, tmp_path / "x.pt")
        files = [str(build.library()), *(str(tmp_path / name) for name in ("module.pt", "x.pt", "got.pt"))]
        subprocess.run([sys.executable, "-c", TRAIN, *files], check=True, timeout=120)
        out = module(x)
        out.square().mean().backward()
        want = [out.detach(), module.weight.grad, module.bias.grad]
        for ours, theirs in zip(torch.load(tmp_path / "got.pt"), want, strict=True):
            torch.testing.assert_close(ours, theirs)


@pytest.mark.gpu
class TestOnlyOnGpu:
    def test_more_than_2_to_the_31_elements_are_right_to_the_last(self, native: Any) -> None:
        n = 2**31 + 1
        x = torch.randint(-128, 127, (n,), dtype=torch.int8, device="cuda")
        for k in (1, -5, 16):
            out = native.shift(x, k)
            moved, source, new = (out[k:], x[:-k], out[:k]) if k > 0 else (out[:k], x[-k:], out[k:])
            assert torch.equal(moved, source)
            assert not new.any()
        assert torch.equal(native.vecadd(x, x), x + x)

    def test_a_slow_producer_on_a_side_stream_is_waited_for(self, native: Any) -> None:
        x = torch.zeros(1 << 20, device="cuda")
        case = Conv(1, 3, (64, 64), 4)
        image, weight, _ = (t.detach() for t in case.inputs(torch.float32, "cuda"))
        image.zero_()
        torch.cuda.synchronize()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(50_000_000)
            x.add_(1)
            image.add_(1)
            moved, added, out = native.shift(x, 1), native.vecadd(x, x), case.native(image, weight)
        stream.synchronize()
        assert moved[1:].eq(1).all()
        assert added.eq(2).all()
        assert error(out, case.reference(torch.ones_like(image).double(), weight.double())) < BOUND[torch.float32]

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_few_channels_at_any_address_and_beyond_the_cache(self, dtype: torch.dtype) -> None:
        case = Conv(batch=5, channels=2, size=(602, 700), filters=17)  # an output of more than 64 MiB
        image, weight, bias = (t.detach() for t in case.inputs(dtype, "cuda"))
        want = case.reference(image.double(), weight.double(), bias.double())
        assert error(case.native(image, weight, bias), want) < BOUND[dtype]
        odd = torch.empty(image.numel() + 1, dtype=dtype, device="cuda")[1:].view(image.shape).copy_(image)
        assert odd.is_contiguous()
        assert odd.data_ptr() % (2 * odd.itemsize)
        assert error(case.native(odd, weight, bias), want) < BOUND[dtype]

    def test_empty_tensors_leave_no_error_behind(self, native: Any) -> None:
        empty = torch.empty(0, 3, 8, 8, device="cuda")
        native.shift(empty, 1)
        native.vecadd(empty, empty)
        Conv().native(empty, torch.ones(5, 3, 3, 3, device="cuda"))
        torch.cuda.synchronize()
        assert torch.ones(3, device="cuda").sum().item() == 3

    def test_tensors_of_two_devices_are_refused(self, native: Any) -> None:
        with pytest.raises(RuntimeError, match="y is on cpu, x is on cuda:0; one device"):
            native.vecadd(torch.ones(3, device="cuda"), torch.ones(3))
        with pytest.raises(RuntimeError, match="weight is on cpu, input is on cuda:0; one device"):
            Conv().native(torch.ones(2, 3, 9, 9, device="cuda"), torch.ones(5, 3, 3, 3))

    @pytest.mark.skipif("torch.cuda.device_count() < 2", reason="needs two GPUs")
    def test_another_device_than_the_current_one_is_used_where_the_tensors_are(self, native: Any) -> None:
        case = Conv()
        inputs = case.inputs(device="cuda:1")
        out = case.native(*inputs)
        out.sum().backward()
        assert out.device == torch.device("cuda:1")
        assert error(out, case.reference(*inputs)) < 1e-12
        x = torch.randn(1000, device="cuda:1")
        assert torch.equal(native.shift(x, 3), shifted(x, 3))
        assert torch.equal(native.vecadd(x, x), x + x)
        assert torch.cuda.current_device() == 0
