"""What a time is limited by, with the figures behind it. Pure functions of measured values, in seconds."""

from __future__ import annotations

from statistics import median

from bench.model import Metric
from bench.units import show

ROOM = 1.25  # times the measured bandwidth that is still believed
MMAP_THRESHOLD = 128 << 10  # bytes: glibc's, before it moves


def limit(metrics: dict[str, Metric], fault_seconds: float) -> str:
    """`launch-bound: ...`, `device-bound: ...` or `page-fault-bound: ...`; empty where nothing stands out.

    `fault_seconds` is what a page fault costs on this machine.
    """
    centre = {name: median(metric.lows) for name, metric in metrics.items() if metric.lows}
    if {"device", "dispatch"} <= centre.keys():
        device, dispatch = centre["device"], centre["dispatch"]
        word = "launch-bound" if dispatch > device else "device-bound"
        return f"{word}: enqueueing a call takes {show(dispatch, 's')}, the GPU is busy with it for {show(device, 's')}"
    faults = centre.get("page_faults", 0.0)
    if faults * fault_seconds < 0.2 * centre["latency"]:
        return ""
    cost, whole = show(faults * fault_seconds, "s"), show(centre["latency"], "s")
    return f"page-fault-bound: {faults:,.0f} page faults a call, about {cost} of {whole}"


def allocator_warning(metrics: dict[str, Metric], allocator: str, fault_seconds: float) -> tuple[str, ...]:
    """Under the default allocator, what `allocator: warm` would save."""
    if allocator != "default" or not limit(metrics, fault_seconds).startswith("page-fault-bound"):
        return ()
    saved = show(median(metrics["page_faults"].lows) * fault_seconds, "s")
    return (f"the default allocator gives fresh pages on every call: `allocator: warm` would save about {saved}",)


def allocator_note(output_bytes: int, latency: float, allocator: str, fault_seconds: float) -> tuple[str, ...]:
    """Under the warm allocator, what the default one may add: fresh pages for outputs it maps anew on every call."""
    extra = output_bytes / 4096 * fault_seconds
    if allocator != "warm" or output_bytes < MMAP_THRESHOLD or extra < 0.2 * latency:
        return ()
    worst = f"up to about {show(extra, 's')} a call; `allocator: default` measures it"
    return (f"with glibc's default allocator, fresh pages for the output may add {worst}",)


def growth_warning(kept: int) -> tuple[str, ...]:
    """Where a call leaves so many bytes of output allocated, for good."""
    return (f"keeps its outputs: memory grows by {show(kept, 'B')} a call",) if kept else ()


def roofline_warning(seconds: float, moved: float, bandwidth: float) -> tuple[str, ...]:
    """A time in which `moved` bytes (the cost model's least) cannot have been moved at `bandwidth` bytes/s."""
    if seconds <= 0 or moved / seconds <= ROOM * bandwidth:
        return ()
    ratio = moved / seconds / bandwidth
    rate = f"{show(moved, 'B')} in {show(seconds, 's')} is {ratio:.1f} times the bandwidth measured here"
    return (f"impossible: {rate}; the cost model or the clock is wrong",)
