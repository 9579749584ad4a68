"""What memory does to a time: the allocator's state, page faults, denormal numbers, outputs that somebody keeps."""

from __future__ import annotations

import ctypes
import gc
import mmap
import resource
import time
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from bench.clocks.flush import cache_bytes
from bench.machine.facts import malloc, text

HUGE = 2 << 20  # bytes of a huge page
RESERVE = 1 << 30  # bytes of address space for them: under the trim threshold, and memory only where it is touched


def fix_allocator(state: str) -> str:
    """Make glibc keep freed pages, in huge pages (`warm`), or leave it alone (`default`); what was done is recorded.

    Left alone, outputs above its moving mmap threshold get fresh pages on every call or none, depending on what was
    freed before: the same convolution took 2 or 16 ms in one process. And where 4 KiB pages lie in physical memory
    decides which of them fight for a place in the cache, for as long as a process lives: 4 MiB scaled in 113 to
    177 us by identical processes, and in 105 to 113 us by those on huge pages.
    """
    if state == "default":
        return "default"
    if not (preloaded := malloc()).startswith("libc"):
        return f"default ({preloaded} is loaded: glibc's switches do nothing)"
    try:
        libc = ctypes.CDLL(None)
        mallopt = libc.mallopt
    except (OSError, AttributeError):
        return "default (no glibc: cannot be warmed)"
    m_trim_threshold, m_mmap_max = -1, -4
    if not (mallopt(m_mmap_max, 0) and mallopt(m_trim_threshold, 2**31 - 1)):
        return "default (mallopt refused)"
    return f"warm (mallopt: no mmap, no trim; {'huge' if _use_huge_pages(libc) else 'ordinary'} pages)"


def _use_huge_pages(libc: ctypes.CDLL) -> bool:
    """Grow the heap by RESERVE and ask for huge pages there; from now on it is handed out first."""
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    start = libc.malloc(RESERVE)
    if not start:
        return False
    aligned = -(-start // HUGE) * HUGE
    advised = libc.madvise(aligned, start + RESERVE - aligned & -HUGE, mmap.MADV_HUGEPAGE) == 0
    libc.free(start)
    return advised and "[never]" not in (text("sys/kernel/mm/transparent_hugepage/enabled") or "[never]")


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


def kept(call: Callable[[], Tensor | None]) -> int:
    """Bytes by which each `call` makes memory grow, because somebody keeps its output: none of several is let go.

    One that is kept until the next, or a few that are used in turns, are no growth. 0 too where there is no output.
    """
    size, storages = 0, list[StorageWeakRef]()
    for _ in range(4):
        output = call()
        if output is None or output.layout is not torch.strided:
            return 0
        storage = output.untyped_storage()
        size = storage.nbytes()
        storages.append(StorageWeakRef(storage))
        del output, storage
    earlier = storages[:-1]  # the last is the caller's
    if any(one.expired() for one in earlier):
        return 0
    gc.collect()  # a cycle keeps them until then, and no longer
    return size if len({one.cdata for one in earlier if not one.expired()}) == len(earlier) else 0


@cache
def bandwidth(device: torch.device, threads: int) -> float:
    """Bytes a second that `threads` move, four times the last cache of them: the best of five copies, which read and
    write, and of five sums, which only read."""
    source = torch.ones(cache_bytes(device), dtype=torch.float32, device=device)
    target = torch.empty_like(source)

    def best(move: Callable[[], object]) -> float:
        times = []
        for _ in range(6):
            _settle(device)
            start = time.perf_counter()
            move()
            _settle(device)
            times.append(time.perf_counter() - start)
        return min(times)

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return max(2 * source.nbytes / best(lambda: target.copy_(source)), source.nbytes / best(source.sum))
    finally:
        torch.set_num_threads(before)


def needed(call: Callable[[], object], device: torch.device) -> int:
    """Bytes of GPU memory that `call` takes at once beyond what is allocated before it."""
    gc.collect()
    _settle(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    call()
    _settle(device)
    return torch.cuda.max_memory_allocated(device) - before


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
