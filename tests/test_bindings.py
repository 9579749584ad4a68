"""The same kernels by every binding: right, differentiable, and independent of what each promises not to need."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses import FakeTensorMode

from ext import build, ops

NAMESPACES = {"layerbench": build.OPS, "layerbench_py": build.PYTHON, "layerbench_stable": build.STABLE}
FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
WINDOW = ((3, 2), (2, 1), (1, 2), (1, 2))
everywhere = pytest.mark.parametrize("device", DEVICES)


@pytest.fixture(params=NAMESPACES)
def bound(request: pytest.FixtureRequest) -> Any:
    """The operators of one namespace."""
    ops.load(NAMESPACES[request.param])
    return getattr(torch.ops, request.param)


@everywhere
@pytest.mark.parametrize("name", ["OPS", "STABLE", "PYTHON"])
def test_a_library_has_its_part_for_the_device_and_loading_it_prints_nothing(name: str, device: str) -> None:
    ops.load(getattr(build, name))  # builds it where it is not yet
    assert build.states(getattr(build, name))[device] == "built"
    code = f"from ext import build, ops; ops.load(build.{name})"
    done = subprocess.run([sys.executable, "-c", code], cwd=build.HERE.parent, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def conjugate_and_negated() -> list[Tensor]:
    x = torch.randn(3, 5, dtype=torch.complex64)
    return [x.conj(), x.imag.neg(), x.conj().imag]  # the last is negated only when it is read


@pytest.mark.parametrize("x", conjugate_and_negated(), ids=["conjugate", "negated", "negated when read"])
def test_what_is_conjugated_or_negated_only_when_it_is_read_moves_as_what_it_stands_for(bound: Any, x: Tensor) -> None:
    assert torch.equal(bound.shift(x, 2)[:, 2:], x[:, :-2].resolve_conj().resolve_neg())


@pytest.mark.parametrize("x", conjugate_and_negated(), ids=["conjugate", "negated", "negated when read"])
def test_the_binding_without_a_dispatcher_reads_it_so_too(pybind: Any, x: Tensor) -> None:
    plain = x.resolve_conj().resolve_neg()
    assert torch.equal(pybind.shift(x, 2)[:, 2:], plain[:, :-2])
    if not x.is_complex():
        assert torch.equal(pybind.vecadd(x, x), plain + plain)


def test_a_chain_of_many_nodes_is_walked_and_freed_without_recursion() -> None:
    ops.load()
    x = y = torch.ones(3, requires_grad=True)
    for _ in range(100_000):
        y = torch.ops.layerbench.shift(y, 0)
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert grad.eq(1).all()


def test_a_sparse_tensor_is_refused_by_name(bound: Any) -> None:
    with pytest.raises((NotImplementedError, RuntimeError), match="SparseCPU"):
        bound.shift(torch.eye(3).to_sparse(), 1)


@pytest.mark.gpu
def test_a_slow_producer_on_a_side_stream_is_waited_for(bound: Any, pybind: Any) -> None:
    x, image = torch.zeros(1 << 20, device="cuda"), torch.zeros(1, 1, 64, 64, device="cuda")
    weight = torch.ones(1, 1, 9, device="cuda")
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        x.add_(1)
        image.add_(1)
        moved = bound.shift(x, 1), pybind.shift(x, 1)
        added = bound.vecadd(x, x), pybind.vecadd(x, x)
        out = bound.unfold_conv2d(image, weight, None, 3)
    stream.synchronize()
    assert all(t[1:].eq(1).all() for t in moved)
    assert all(t.eq(2).all() for t in added)
    assert out.eq(9).all()


@pytest.mark.gpu
@pytest.mark.skipif("torch.cuda.device_count() < 2", reason="needs two GPUs")
def test_another_device_than_the_current_one_is_used_where_the_tensors_are(bound: Any, pybind: Any) -> None:
    x, w, b = conv_inputs("cuda:1")
    assert torch.cuda.current_device() == 0
    for out in (bound.unfold_conv2d(x, w, b, *WINDOW), bound.shift(x, 1), pybind.shift(x, 1), pybind.vecadd(x, x)):
        assert out.device == torch.device("cuda:1")
    assert torch.equal(bound.vecadd(x, x), 2 * x)
    bound.unfold_conv2d(x, w, b, *WINDOW).sum().backward()
    assert torch.cuda.current_device() == 0


@pytest.fixture(scope="module")
def pybind() -> Any:
    from ext import pybind

    return pybind


def conv_inputs(device: str) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = (2, 2, 5, 6), (3, 2, 6), (3,)
    made = [torch.randn(shape, generator=generator, dtype=torch.float64).to(device) for shape in shapes]
    return made[0].requires_grad_(), made[1].requires_grad_(), made[2].requires_grad_()


@everywhere
def test_gradients_of_first_and_second_order_pass_gradcheck(bound: Any, device: str) -> None:
    x, y = (torch.randn(3, 4, dtype=torch.float64, device=device, requires_grad=True) for _ in range(2))
    calls: list[tuple[Any, tuple[Tensor, ...]]] = [
        (lambda x: bound.shift(x, -2), (x,)),
        (bound.vecadd, (x, y)),
        (lambda x, w, b: bound.unfold_conv2d(x, w, b, *WINDOW), conv_inputs(device)),
        (lambda x, w: bound.unfold_conv2d(x, w, None, *WINDOW), conv_inputs(device)[:2]),
    ]
    for call, inputs in calls:
        assert torch.autograd.gradcheck(call, inputs)
        assert torch.autograd.gradgradcheck(call, inputs, fast_mode=True)


@everywhere
def test_opcheck_passes(bound: Any, device: str) -> None:
    x, w, b = conv_inputs(device)
    torch.library.opcheck(bound.shift.default, (x, 1))
    torch.library.opcheck(bound.vecadd.default, (x, x.mT.contiguous().mT))
    torch.library.opcheck(bound.unfold_conv2d.default, (x, w, b, *WINDOW))
    grad = bound.unfold_conv2d(x, w, b, *WINDOW).detach().requires_grad_()
    torch.library.opcheck(bound.unfold_conv2d_grad_input.default, (grad, x, w, *WINDOW))
    torch.library.opcheck(bound.unfold_conv2d_grad_weight.default, (grad, x, *WINDOW))


@everywhere
def test_vmap_maps_over_any_dimension(bound: Any, device: str) -> None:
    x, y = torch.randn(2, 3, 4, device=device, requires_grad=True), torch.randn(3, 4, device=device)
    vmap: Any = torch.vmap
    assert torch.equal(vmap(bound.shift, (1, None), 1)(x, 2), bound.shift(x, 2))
    assert torch.equal(vmap(vmap(bound.shift, (0, None)), (0, None))(x, -1), bound.shift(x, -1))
    assert torch.equal(vmap(bound.shift, (0, None))(x[0, 0], 1), torch.zeros(4, device=device))
    assert torch.equal(vmap(bound.vecadd, (0, None))(x, y), x + y)
    assert torch.equal(vmap(bound.vecadd, (0, 1))(y, y.t()), y + y)


def test_gradients_per_sample_are_right_where_they_are_made_in_cpp_and_refused_elsewhere(bound: Any) -> None:
    x = torch.randn(2, 3, 4, requires_grad=True)
    grad: Any = torch.func.grad
    per_sample = torch.vmap(grad(lambda x: bound.shift(x, 1).square().sum()))
    if bound is torch.ops.layerbench:
        assert torch.equal(per_sample(x.detach()), torch.autograd.grad(bound.shift(x, 1).square().sum(), x)[0])
    else:
        with pytest.raises(RuntimeError, match="functorch transforms"):
            per_sample(x.detach())


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_vmap_over_the_convolution_is_right_if_slow(bound: Any) -> None:
    x, w, b = conv_inputs("cpu")
    weights = torch.stack([w, 2 * w])
    got = torch.vmap(lambda w: bound.unfold_conv2d(x, w, b, *WINDOW))(weights)
    assert torch.equal(got, torch.stack([bound.unfold_conv2d(x, w, b, *WINDOW) for w in weights]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_under_autocast_mixed_dtypes_are_cast_or_a_clear_error(bound: Any, dtype: torch.dtype) -> None:
    x, w, b = (t.detach().float() for t in conv_inputs("cpu"))
    with torch.autocast("cpu", dtype=dtype):
        if bound is torch.ops.layerbench:
            assert bound.unfold_conv2d(x.to(dtype), w, b, *WINDOW).dtype == dtype
        else:
            with pytest.raises(RuntimeError, match=r"weight is Float, input is .*; one dtype for both is accepted"):
                bound.unfold_conv2d(x.to(dtype), w, b, *WINDOW)
        assert bound.shift(x, 1).dtype == torch.float32


@everywhere
def test_the_shift_by_the_least_integer_has_a_gradient(bound: Any, device: str) -> None:
    x = torch.ones(3, device=device, requires_grad=True)
    bound.shift(x, -(2**63)).sum().backward()
    assert x.grad is not None
    assert not x.grad.any()


@everywhere
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_every_floating_dtype_strided_and_empty_is_right(bound: Any, dtype: torch.dtype, device: str) -> None:
    bound_of = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
    x, w, b = (t.detach().to(dtype) for t in conv_inputs(device))
    for image in (x, x.to(memory_format=torch.channels_last), x[:1].expand(4, -1, -1, -1), x[:0]):
        got = bound.unfold_conv2d(image, w, b, *WINDOW)
        wanted = F.conv2d(image.double(), w.double().view(3, 2, 3, 2), b.double(), *WINDOW[1:])
        assert got.shape == wanted.shape
        assert (got - wanted).norm() <= bound_of[dtype] * wanted.norm()
        assert torch.equal(bound.shift(image, 2), F.pad(image, (2, 0))[..., :-2])
        assert torch.equal(bound.vecadd(image, image), image + image)


@everywhere
@pytest.mark.parametrize("autocast", [False, True], ids=["", "autocast"])
@pytest.mark.parametrize(
    ("channels", "filters", "kernel", "size", "stride"),
    [(2, 3, 3, 40, 1), (32, 32, 1, 9, 1), (32, 33, 3, 6, 1), (3, 5, 3, 20, 2), (30, 40, 3, 12, 2)],
)
def test_every_path_of_the_convolution_is_right(
    bound: Any, channels: int, filters: int, kernel: int, size: int, stride: int, autocast: bool, device: str
) -> None:
    """Direct and by matrix products, which autocast must not take into a lower precision behind our back."""
    shapes = (2, channels, size, size), (filters, channels, kernel, kernel), (filters,)
    inputs = [torch.randn(shape, device=device, requires_grad=True) for shape in shapes]
    exact = [x.detach().double().requires_grad_() for x in inputs]
    lowered = autocast and bound is torch.ops.layerbench  # which has a rule of its own, tested elsewhere
    for count in (3, 2):  # with a bias and without
        leaves, bias = inputs[:count], inputs[2] if count == 3 else None
        wanted = F.conv2d(exact[0], exact[1], exact[2] if bias is not None else None, stride, 1)
        grad = torch.randn_like(wanted)
        with torch.autocast(device, torch.bfloat16, autocast and not lowered):
            got = bound.unfold_conv2d(leaves[0], leaves[1].flatten(2), bias, kernel, stride, 1)
            gradients = torch.autograd.grad(got, leaves, grad.float())
        for ours, right in zip(
            (got, *gradients), (wanted, *torch.autograd.grad(wanted, exact[:count], grad)), strict=True
        ):
            assert torch.linalg.vector_norm(ours - right) <= 1e-5 * torch.linalg.vector_norm(right)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("vecadd", (torch.ones(3), torch.ones(1)), "vecadd: y has shape [1]; [3] is accepted"),
        ("vecadd", (torch.ones(3), torch.ones(3).half()), "vecadd: y is Half, x is Float; one dtype for both"),
        (
            "vecadd",
            (torch.ones(3) > 0, torch.ones(3) > 0),
            "x is Bool; floating dtypes, uint8 and signed integers are accepted",
        ),
        ("unfold_conv2d", (torch.ones(3), torch.ones(1, 1, 1), None, 1), "input has shape [3]; (batch, channels, "),
        ("unfold_conv2d", (torch.ones(1, 1, 2, 2), torch.ones(1, 1, 4), None, (2, 0)), "kernel_size is [2, 0]; two "),
        ("unfold_conv2d", (torch.ones(1, 1, 2, 2), torch.ones(1, 1, 9), None, 3), "height is 2 with padding; at "),
        ("unfold_conv2d", (torch.ones(1, 1, 2, 2), torch.ones(1, 1, 1), None, [1, 1, 1]), "kernel_size is [1, 1, 1];"),
    ],
)
def test_a_wrong_argument_is_named_alike_whether_it_wants_a_gradient_or_not(
    bound: Any, name: str, arguments: tuple[Any, ...], message: str
) -> None:
    wanting = [x.clone().requires_grad_() if isinstance(x, Tensor) and x.is_floating_point() else x for x in arguments]
    for given in (arguments, wanting):
        with pytest.raises(RuntimeError, match=re.escape(message)):
            getattr(bound, name)(*given)


IMAGE, FILTER, GRAD, META = torch.ones(1, 2, 3, 3), torch.ones(3, 2, 4), torch.ones(1, 3, 2, 2), torch.device("meta")
REFUSED: list[tuple[str, tuple[Any, ...]]] = [
    ("vecadd", (torch.ones(3), torch.ones(7))),
    ("vecadd", (torch.ones(3), torch.ones(3, 1))),
    ("vecadd", (torch.ones(3), torch.ones(3).double())),
    ("vecadd", (torch.ones(3) + 1j, torch.ones(3) + 1j)),
    ("unfold_conv2d", (IMAGE[0], FILTER, None, 2)),
    ("unfold_conv2d", (IMAGE.long(), FILTER, None, 2)),
    ("unfold_conv2d", (IMAGE, IMAGE, None, 2)),
    ("unfold_conv2d", (IMAGE[:, :1], FILTER, None, 2)),
    ("unfold_conv2d", (IMAGE, FILTER.half(), None, 2)),
    ("unfold_conv2d", (IMAGE, FILTER, None, 3)),
    ("unfold_conv2d", (IMAGE, FILTER, None, [2, 2, 2])),
    ("unfold_conv2d", (IMAGE, FILTER, None, 2, 0)),
    ("unfold_conv2d", (IMAGE, FILTER, None, 2, 1, -1)),
    ("unfold_conv2d", (IMAGE, FILTER, None, 2, 1, 0, [0, 1])),
    ("unfold_conv2d", (IMAGE, FILTER, None, 2, 1, 2**31)),
    ("unfold_conv2d", (IMAGE, FILTER, None, 2, 1, 0, 3)),
    ("unfold_conv2d", (IMAGE, FILTER, torch.ones(2), 2)),
    ("unfold_conv2d", (IMAGE, FILTER, torch.ones(3).half(), 2)),
    ("unfold_conv2d_grad_input", (GRAD[..., :1], IMAGE, FILTER, 2, 1, 0, 1)),
    ("unfold_conv2d_grad_input", (GRAD.half(), IMAGE, FILTER, 2, 1, 0, 1)),
    ("unfold_conv2d_grad_input", (GRAD, IMAGE, FILTER[:, :1], 2, 1, 0, 1)),
    ("unfold_conv2d_grad_weight", (GRAD[0], IMAGE, 2, 1, 0, 1)),
    ("unfold_conv2d_grad_weight", (GRAD, IMAGE, 2, 1, 1, 1)),
    ("unfold_conv2d_grad_weight", (GRAD.half(), IMAGE, 2, 1, 0, 1)),
    ("unfold_conv2d_grad_weight", (GRAD, IMAGE, 2, 1, 0, [2, 0])),
]


@pytest.mark.parametrize(("name", "arguments"), REFUSED)
def test_what_the_kernels_refuse_is_refused_without_memory_in_the_same_words(
    bound: Any, name: str, arguments: tuple[Any, ...]
) -> None:
    with pytest.raises(RuntimeError) as real:
        getattr(bound, name)(*arguments)
    message = re.findall(r"layerbench::.* accepted", str(real.value))
    assert len(message) == 1
    with pytest.raises(RuntimeError, match=re.escape(message[0])):
        getattr(bound, name)(*(x.to(META) if isinstance(x, Tensor) else x for x in arguments))
    with FakeTensorMode() as mode, pytest.raises(RuntimeError, match=re.escape(message[0])):
        getattr(bound, name)(*(mode.from_tensor(x) if isinstance(x, Tensor) else x for x in arguments))


MIXED: list[tuple[str, tuple[Any, ...]]] = [
    ("vecadd", (torch.ones(3), torch.ones(3))),
    ("unfold_conv2d", (IMAGE, FILTER, torch.ones(3), 2)),
    ("unfold_conv2d_grad_input", (GRAD, IMAGE, FILTER, 2, 1, 0, 1)),
    ("unfold_conv2d_grad_weight", (GRAD, IMAGE, 2, 1, 0, 1)),
]


@pytest.mark.parametrize(("name", "arguments"), MIXED)
def test_a_tensor_without_memory_among_others_is_refused_wherever_it_stands(
    bound: Any, name: str, arguments: tuple[Any, ...]
) -> None:
    getattr(bound, name)(*arguments)
    for i, x in enumerate(arguments):
        if isinstance(x, Tensor):
            with pytest.raises(RuntimeError, match=r" is on .*, .* is on .*; one device for both is accepted"):
                getattr(bound, name)(*arguments[:i], x.to(META), *arguments[i + 1 :])


class Convolve(torch.nn.Module):
    """A convolution on the operators of one namespace, added to itself."""

    def __init__(self, bound: Any) -> None:
        super().__init__()
        self.bound = bound

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        y = self.bound.unfold_conv2d(x, weight, bias, *WINDOW)
        out: Tensor = self.bound.vecadd(y, self.bound.shift(y, 1))
        return out


def test_sizes_that_are_symbols_stay_so_through_the_checks(bound: Any) -> None:
    x, w, b = (t.detach() for t in conv_inputs("cpu"))
    any_size = torch.export.Dim.DYNAMIC
    sizes = {0: any_size, 2: any_size, 3: any_size}, {0: any_size}, {0: any_size}
    module = Convolve(bound)
    symbolic = torch.export.export(module, (x, w, b), dynamic_shapes=sizes).module()
    other = torch.randn(3, 2, 8, 11, dtype=x.dtype), torch.cat([w, w]), torch.cat([b, b])
    assert torch.equal(symbolic(*other), module(*other))


def test_a_gradient_of_another_rank_is_named_by_the_operator_that_makes_two() -> None:
    ops.load()
    with pytest.raises(
        RuntimeError, match=r"grad has shape \[3, 2, 2\]; \(batch, filters, height, width\) is accepted"
    ):
        torch.ops.layerbench.unfold_conv2d_grad_weight_bias(GRAD[0], IMAGE, 2, 1, 0, 1)


@everywhere
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
def test_pybind_writes_into_the_callers_output(pybind: Any, dtype: torch.dtype, device: str) -> None:
    x, y = ((torch.randn(7, 50, device=device) * 50).to(dtype).t() for _ in range(2))
    out = torch.empty(50, 7, dtype=dtype, device=device)
    pybind.native.vecadd(x, y, out)
    assert torch.equal(out, x + y)
    pybind.native.shift(x, -3, out)
    assert torch.equal(out, F.pad(x, (0, 3))[:, 3:])
    for empty in (x[:0], x[:, :0]):
        assert pybind.vecadd(empty, empty).shape == pybind.shift(empty, 2).shape == empty.shape


@everywhere
def test_gradients_of_pybinds_functions_pass_gradcheck(pybind: Any, device: str) -> None:
    x, y = (torch.randn(3, 4, dtype=torch.float64, device=device, requires_grad=True) for _ in range(2))
    for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
        assert check(lambda x: pybind.shift(x, 2), (x,))
        assert check(pybind.vecadd, (x, y))


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (torch.empty(3), "out has shape [3]; [2, 3] is accepted"),
        (torch.empty(2, 3).half(), "out is Half, x is Float; one dtype for both is accepted"),
        (torch.empty(3, 2).t(), "out has strides [1, 2]; a contiguous one is accepted"),
        (torch.empty(2, 3, device="meta"), "out is on meta, x is on cpu; one device for both is accepted"),
        (torch._neg_view(torch.empty(2, 3)), "out is negated only when it is read; a plain one is accepted"),
    ],
)
def test_an_output_that_pybind_cannot_write_is_refused(pybind: Any, out: Tensor, message: str) -> None:
    x = torch.ones(2, 3)
    with pytest.raises(RuntimeError, match=re.escape(message)):
        pybind.native.vecadd(x, x, out)
    with pytest.raises(RuntimeError, match=re.escape(message)):
        pybind.native.shift(x, 1, out)


def freed(x: Tensor) -> Tensor:
    x.untyped_storage().resize_(0)
    return x


@pytest.mark.parametrize(
    "x",
    [
        FakeTensorMode().from_tensor(torch.ones(3)),
        torch._to_functional_tensor(torch.ones(3)),
        torch._efficientzerotensor(3),
        torch.ones(3).to_sparse(),
    ],
    ids=["fake", "functional", "zero", "sparse"],
)
def test_a_tensor_whose_memory_pybind_cannot_read_is_refused(pybind: Any, x: Tensor) -> None:
    y, out = torch.ones(3), torch.empty(3)
    with pytest.raises(RuntimeError, match="x has no memory of its own"):
        pybind.native.shift(x, 1, out)
    with pytest.raises(RuntimeError, match="y has no memory of its own"):
        pybind.native.vecadd(y, x, out)
    with pytest.raises(RuntimeError, match="out has no memory of its own"):
        pybind.native.shift(y, 1, x)


def test_memory_that_has_been_freed_is_refused_by_pybind(pybind: Any) -> None:
    y, out = torch.ones(3), torch.empty(3)
    for view in (torch.ones(3), torch.ones(4)[1:], torch.ones(6)[::2]):
        with pytest.raises(RuntimeError, match="the memory of x has been freed"):
            pybind.native.shift(freed(view), 1, out)
    with pytest.raises(RuntimeError, match="the memory of out has been freed"):
        pybind.native.vecadd(y, y, freed(torch.ones(3)))


def test_an_output_that_overlaps_what_pybind_reads_is_refused_and_a_neighbour_is_not(pybind: Any) -> None:
    x, y = torch.arange(8.0), torch.ones(4)
    for out in (x[:4], x[1:5]):
        with pytest.raises(RuntimeError, match="out overlaps x in memory; one apart from it is accepted"):
            pybind.native.shift(x[:4], 1, out)
        with pytest.raises(RuntimeError, match="out overlaps y in memory"):
            pybind.native.vecadd(y, x[:4], out)
    pybind.native.shift(x[:4], 1, x[4:])
    assert x.tolist() == [0, 1, 2, 3, 0, 0, 1, 2]


def test_an_output_whose_gradient_would_be_wrong_is_refused_by_pybind(pybind: Any) -> None:
    x, out = torch.ones(3), torch.zeros(3, requires_grad=True)
    for wanting in (out, out.view(3)):
        with pytest.raises(RuntimeError, match="out requires a gradient"):
            pybind.native.shift(x, 1, wanting)
    with torch.no_grad():
        pybind.native.shift(x, 1, out)
    assert out.tolist() == [0, 1, 1]


def test_what_pybind_writes_over_is_no_longer_what_autograd_saved(pybind: Any) -> None:
    x, saved = torch.ones(3, requires_grad=True), torch.ones(3)
    y = (x * saved).sum()
    pybind.native.vecadd(saved, torch.ones(3), out := torch.empty(3))
    pybind.native.shift(out, 1, saved)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_the_stable_library_uses_nothing_of_torch_but_its_c_functions() -> None:
    library = build.library(build.STABLE) or build.build(which=build.STABLE)
    command = ["nm", "-D", "--undefined-only", "--format=just-symbols", str(library)]
    symbols = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    torchs = [symbol for symbol in symbols if re.match(r"(aoti_)?torch_", symbol)]
    # What is of another library says of which version of it; the last three are the compiler's own.
    others = re.compile(r".*@(GLIBC|GLIBCXX|CXXABI|GCC|libcudart\.so)[_.\d]*|_ITM_\w+|__gmon_start__|__cxa_finalize")
    assert len(torchs) > 30
    assert [symbol for symbol in symbols if symbol not in torchs and not others.fullmatch(symbol)] == []


LOADED_BY_ANOTHER = """
import sys, torch
torch.ops.load_library(sys.argv[1])
ops = torch.ops.layerbench_stable
for device in ["cpu", "cuda"] if sys.argv[2] == "cuda" else ["cpu"]:
    x = torch.arange(24.0, device=device).view(1, 2, 3, 4)
    weight = torch.ones(1, 2, 4, device=device)
    assert torch.equal(ops.shift(x, 1)[..., 1:], x[..., :-1])
    assert torch.equal(ops.vecadd(x, x), 2 * x)
    windows = torch.nn.functional.conv2d(x, weight.view(1, 2, 2, 2))
    assert torch.equal(ops.unfold_conv2d(x, weight, None, 2), windows)
print(torch.__version__)
"""


def test_the_stable_library_is_loaded_without_this_project_by_each_python_that_is_named() -> None:
    """This one at least; LAYERBENCH_PYTHONS names those of other torches, divided as PATH is."""
    library = build.library(build.STABLE) or build.build(which=build.STABLE)
    devices = "cpu" if build.cuda_reason(build.STABLE) or not torch.cuda.is_available() else "cuda"
    others = os.environ.get("LAYERBENCH_PYTHONS", "").split(os.pathsep)
    for python in {sys.executable, *filter(None, others)}:
        command = [python, "-W", "ignore", "-c", LOADED_BY_ANOTHER, str(library), devices]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, f"{python}: {done.stderr}"


LOADED_BESIDE = """
import sys, torch
torch.ops.load_library(sys.argv[1])
from ext import build, ops
try:
    ops.load(getattr(build, sys.argv[2]))
except build.BuildError as error:
    print(error)
"""


@pytest.mark.parametrize("name", ["OPS", "STABLE"])
def test_beside_another_library_of_the_same_operators_ours_is_refused_by_name(name: str) -> None:
    library = build.build(which=getattr(build, name))
    command = [sys.executable, "-c", LOADED_BESIDE, str(library), name]
    done = subprocess.run(command, cwd=build.HERE.parent, capture_output=True, text=True, timeout=120)
    namespace = {"OPS": "layerbench", "STABLE": "layerbench_stable"}[name]
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"torch.ops.{namespace} has operators already, of a library that was not loaded here")


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The bindings of a library that is only this test's."""
    monkeypatch.setenv("LAYERBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "HERE", tmp_path)
    (tmp_path / "bindings").mkdir()
    return tmp_path / "bindings"


@pytest.mark.parametrize(
    ("scalar", "schema", "message"),
    [
        ("int", "int", "unsupported integral input type. Please use int64_t instead"),
        ("int64_t", "float", "reason: Type mismatch in argument 2: float vs int."),
    ],
)
def test_a_wrong_type_in_a_schema_is_a_clear_error_at_build(
    scratch: Path, scalar: str, schema: str, message: str
) -> None:
    source = f"""#include <torch/library.h>
at::Tensor same(const at::Tensor& x, {scalar} k) {{ return x; }}
TORCH_LIBRARY(layerbench_wrong, m) {{ m.def("same(Tensor x, {schema} k) -> Tensor", same); }}
"""
    (scratch / "wrong.cpp").write_text(source, encoding="utf-8")
    with pytest.raises(build.BuildError, match=re.escape(message)):
        build.build()


INSTALLED = """
import torch, layerbench_ops
x = torch.ones(4, requires_grad=True)
torch.ops.layerbench.shift(x, 1).sum().backward()
print(layerbench_ops.__file__, x.grad.tolist(), torch.ops.layerbench.vecadd(x.half(), x.half()).tolist())
"""


def test_setuptools_builds_and_installs_the_operators(tmp_path: Path) -> None:
    """In an environment of its own, which sees this one's torch."""
    shutil.copytree(build.HERE, tmp_path / "ext", ignore=shutil.ignore_patterns("__pycache__"))
    run = {"check": True, "capture_output": True, "text": True, "cwd": tmp_path, "timeout": 280}
    subprocess.run([sys.executable, "-m", "venv", "--system-site-packages", "--without-pip", "venv"], **run)  # type: ignore[call-overload]
    sites = [path for path in sys.path if path.endswith("site-packages")]
    (next((tmp_path / "venv").glob("lib/python*/site-packages")) / "outer.pth").write_text("\n".join(sites))
    python = str(tmp_path / "venv" / "bin" / "python")
    install = [python, "-m", "pip", "install", "-q", "--no-build-isolation", "--no-deps", "--no-index", "./ext"]
    subprocess.run(install, **run)  # type: ignore[call-overload]
    done = subprocess.run([python, "-c", INSTALLED], **run)  # type: ignore[call-overload]
    file, _, values = done.stdout.strip().partition(" ")
    assert Path(file).is_relative_to(tmp_path / "venv")
    assert values == "[1.0, 1.0, 1.0, 0.0] [2.0, 2.0, 2.0, 2.0]"
