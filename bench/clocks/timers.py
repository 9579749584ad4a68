"""Which clocks apply where."""

from __future__ import annotations

import torch

from bench.clocks.cuda import EventTimer, GraphTimer
from bench.clocks.cupti import CuptiTimer
from bench.clocks.flush import L2Flush
from bench.clocks.host import DispatchTimer, HostTimer, ThroughputTimer
from bench.clocks.timer import ClockUnavailable, Flush, Timer


def timers_for(device: torch.device, *, device_clock: str | None = "events", cache: str = "warm") -> tuple[Timer, ...]:
    """The clocks that apply on a device; the first one paces the measurement.

    `device_clock` is events, graph or cupti, or None for no device time; `cache` warm or cold. Raises
    ClockUnavailable.
    """
    flush = L2Flush(device) if cache == "cold" else None
    if device.type != "cuda":
        return (HostTimer(flush=flush),)

    def settle() -> None:
        torch.cuda.synchronize(device)

    return (
        HostTimer(settle, flush=flush),
        DispatchTimer(settle, flush=flush),
        ThroughputTimer(settle, flush=flush),
        # Last: on a stream of its own, torch has other memory for it, and takes that from the others where it is short.
        *(() if device_clock is None else (device_timer(device, device_clock, flush),)),
    )


def device_timer(device: torch.device, clock: str, flush: Flush | None = None) -> Timer:
    """The clock of that name for device time. Raises ClockUnavailable, with the reason."""
    if clock == "events":
        return EventTimer(device, flush=flush)
    if clock == "graph":
        return GraphTimer(device, flush=flush)
    if clock == "cupti":
        return CuptiTimer(device, flush=flush)
    raise ClockUnavailable(f"no device clock {clock!r}: there are events, graph and cupti")
