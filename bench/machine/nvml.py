"""NVIDIA's management library: finding a card in it, and reading it in words.

Functions take `nvml`, the module, so that tests can pass one of their own.
"""

from __future__ import annotations

from typing import Any

THROTTLE_REASONS = (  # the bits of NVML's clock event reasons, from the lowest
    *("idle", "application clocks", "power cap", "hardware slowdown", "sync boost", "thermal slowdown"),
    *("hardware thermal slowdown", "power brake", "display clock", "board limit", "reliability"),
)
# Those that mean a card slower than it is meant to be. Idle, chosen clocks and the highest safe voltage are not.
SLOWDOWNS = frozenset(
    ("power cap", "hardware slowdown", "thermal slowdown", "hardware thermal slowdown", "power brake", "board limit")
)


class Absent(Exception):
    """Something that this machine has not, in words."""


def find() -> Any:
    """NVML's Python module, initialised. Raises Absent."""
    try:
        import pynvml
    except ImportError:
        raise Absent("no nvidia-ml-py") from None
    try:
        pynvml.nvmlInit()
    except Exception as error:  # a driver's library has many ways to be broken
        raise Absent(f"NVML does not start: {reason(error)}") from None
    return pynvml


def find_card(nvml: Any, uuid: str | None) -> Any:
    """The handle of the card with torch's UUID, or of the card that a MIG slice with it is cut from. Raises Absent.

    By UUID: CUDA_VISIBLE_DEVICES renumbers devices for torch and not for NVML.
    """
    if not uuid:
        raise Absent("the device's UUID is not known, and NVML numbers cards differently")
    bare = uuid.removeprefix("GPU-").removeprefix("MIG-")
    try:
        return nvml.nvmlDeviceGetHandleByUUID(f"GPU-{bare}")
    except Exception as error:
        try:
            part = nvml.nvmlDeviceGetHandleByUUID(f"MIG-{bare}")
            return nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(part)
        except Exception:
            raise Absent(f"NVML does not know the device: {reason(error)}") from None


def throttle_bits(nvml: Any, card: Any) -> int:
    """Why the card's clock is where it is, as bits. Raises what NVML raises."""
    try:
        return int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(card))
    except Exception:  # renamed: old drivers know this name alone, and CUDA 14 is to drop it
        return int(nvml.nvmlDeviceGetCurrentClocksEventReasons(card))


def throttle_words(bits: int) -> list[str]:
    """The reasons in words; a bit without a name by its number."""
    known = len(THROTTLE_REASONS)
    set_bits = (bit for bit in range(bits.bit_length()) if bits >> bit & 1)
    return [THROTTLE_REASONS[bit] if bit < known else f"bit {bit}" for bit in set_bits]


def slowdowns(bits: int) -> list[str]:
    """Those of the reasons that slow a card down against its own will, in words."""
    return [word for word in throttle_words(bits) if word in SLOWDOWNS]


def reason(error: Exception) -> str:
    """What an error says, or its type where it says nothing."""
    return str(error) or type(error).__name__
