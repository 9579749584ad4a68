"""What memory does to a time: the allocator's state, page faults, denormal numbers."""

from __future__ import annotations

import ctypes
import mmap
import resource
import time
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from bench.machine import malloc


def fix_allocator(state: str) -> str:
    """Make glibc keep freed pages (`warm`) or leave it alone (`default`); what was done is recorded.

    Left alone, outputs above its moving mmap threshold get fresh pages on every call or none, depending on what was
    freed before: the same convolution took 2 or 16 ms in one process.
    """
    if state == "default":
        return "default"
    if not (preloaded := malloc()).startswith("libc"):
        return f"default ({preloaded} is loaded: glibc's switches do nothing)"
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return "default (no glibc: cannot be warmed)"
    m_trim_threshold, m_mmap_max = -1, -4
    ok = mallopt(m_mmap_max, 0) and mallopt(m_trim_threshold, 2**31 - 1)
    return "warm (mallopt: no mmap, no trim)" if ok else "default (mallopt refused)"


def page_faults() -> int:
    """Pages this process has been given so far; takes about a microsecond."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


@cache
def page_fault_seconds() -> float:
    """What the first touch of a page costs on this machine: the lowest of five rounds over 8 MiB."""
    size, rounds = 8 << 20, []
    for _ in range(5):
        with mmap.mmap(-1, size) as fresh:
            before, start = page_faults(), time.perf_counter()
            for offset in range(0, size, mmap.PAGESIZE):
                fresh[offset] = 1
            rounds.append((time.perf_counter() - start) / max(page_faults() - before, 1))
    return min(rounds)


def denormal_share(tensors: list[Tensor]) -> float:
    """The share of values too small for the dtype's full precision: a CPU computes on them many times slower."""
    share = 0.0
    for tensor in tensors:
        if tensor.is_floating_point() and tensor.numel():
            size = tensor.detach().abs()
            share = max(share, float(((size > 0) & (size < torch.finfo(tensor.dtype).tiny)).float().mean()))
    return share


def cache_bytes(device: torch.device) -> int:
    """The size of the device's last cache: what fits into it may move faster than memory does."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).L2_cache_size)
    sizes = [
        path.read_text(encoding="utf-8").strip() for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("*/size")
    ]
    return max((int(size.rstrip("K")) << 10 for size in sizes if size.endswith("K")), default=64 << 20)


@cache
def copy_bandwidth(device: torch.device) -> float:
    """Bytes a second, read and written, that a copy of four times the last cache reaches: the best of five."""
    source = torch.ones(cache_bytes(device), dtype=torch.float32, device=device)
    target, best = torch.empty_like(source), float("inf")
    for _ in range(6):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        start = time.perf_counter()
        target.copy_(source)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - start)
    return 2 * source.numel() * source.element_size() / best
