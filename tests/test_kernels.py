"""The CPU kernels by themselves, and the path that a convolution takes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from ext import build, ops

ROOT = Path(__file__).resolve().parent.parent
SANITIZED = ("-std=c++17", "-O0", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


@pytest.mark.skipif(not shutil.which("c++"), reason="no C++ compiler")
@pytest.mark.parametrize("level", [4, 3, 1], ids=["avx512", "avx2", "any processor"])
def test_sanitizers_find_nothing_in_the_kernels_and_they_equal_plain_loops(level: int, tmp_path: Path) -> None:
    program, sources = tmp_path / "kernels", [ROOT / "tests/native/kernels.cpp", *build.HERE.glob("kernels/*.cpp")]
    command = ["c++", *SANITIZED, f"-DLAYERBENCH_LEVEL={level}", *map(str, sources), "-o", str(program)]
    subprocess.run(command, check=True, timeout=300)
    done = subprocess.run([program, "1"], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "cases agree" in done.stdout


def names(channels: int, filters: int, size: int, kernel: int, stride: int = 1) -> set[str]:
    """What the profile of a forward and backward pass shows; its numbers are right."""
    ops.load()
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, channels, size, size, generator=generator, requires_grad=True)
    weight = torch.randn(filters, channels, kernel, kernel, generator=generator, requires_grad=True)
    bias, pad = torch.randn(filters, generator=generator, requires_grad=True), kernel // 2
    window = ([kernel] * 2, [stride] * 2, [pad] * 2, [1, 1])
    with torch.profiler.profile() as profile:
        out = torch.ops.layerbench.unfold_conv2d(x, weight.flatten(2), bias, *window)
        got = torch.autograd.grad(out.square().sum(), (x, weight, bias))
    reference = F.conv2d(x.double(), weight.double(), bias.double(), stride, pad)
    want = torch.autograd.grad(reference.square().sum(), (x, weight, bias))
    for ours, theirs in zip((out, *got), (reference, *want), strict=True):
        assert (ours - theirs).norm() < 1e-5 * theirs.norm()
    return {event.name for event in profile.events() or ()}


def test_few_channels_are_summed_directly() -> None:
    assert not {"aten::mm", "aten::addmm", "aten::im2col"} & names(3, 16, 40, 3)


def test_a_pointwise_convolution_of_many_channels_is_a_product_without_copies() -> None:
    shown = names(64, 64, 14, 1)
    assert {"aten::addmm", "aten::mm"} <= shown
    assert not {"aten::im2col", "aten::col2im"} & shown


def test_many_channels_of_few_pixels_are_a_product_of_copied_windows() -> None:
    assert {"aten::addmm", "aten::mm", "aten::im2col", "aten::col2im"} <= names(64, 64, 7, 3)


def test_the_input_gradient_of_a_strided_convolution_is_a_product() -> None:
    assert "aten::col2im" in names(3, 16, 40, 3, stride=2)


def test_products_keep_the_precision_of_their_operands_under_autocast() -> None:
    ops.load()
    grad, x, weight = torch.randn(1, 64, 7, 7), torch.randn(1, 64, 7, 7), torch.randn(64, 64, 1)
    window = ([1, 1], [1, 1], [0, 0], [1, 1])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = torch.ops.layerbench.unfold_conv2d_grad_input(grad, x, weight, *window)
    assert torch.allclose(out, torch.einsum("oc,nohw->nchw", weight[..., 0], grad), atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize(("channels", "kernel"), [(3, 3), (64, 1)], ids=["direct", "product"])
def test_channels_last_inputs_of_every_precision_give_what_contiguous_ones_do(
    dtype: torch.dtype, channels: int, kernel: int
) -> None:
    ops.load()
    x, weight = torch.randn(2, channels, 9, 9, dtype=dtype), torch.randn(64, channels, kernel**2, dtype=dtype)
    call = torch.ops.layerbench.unfold_conv2d
    out = call(x.to(memory_format=torch.channels_last), weight, None, [kernel] * 2)
    assert out.dtype == dtype
    assert torch.equal(out, call(x, weight, None, [kernel] * 2))
