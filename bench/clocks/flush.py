"""Emptying the caches between calls, for those who ask what a call costs on data that is not in them."""

from __future__ import annotations

from pathlib import Path

import torch

CPU_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_UNKNOWN = 32 << 20  # bytes of last-level cache where the system does not say


class L2Flush:
    """Writes over twice the last-level cache of a device (a GPU's L2), on its current stream.

    What it leaves in the cache is its own, unwritten to memory: a call after it pays for evicting that, too.
    """

    def __init__(self, device: torch.device) -> None:
        self._buffer = torch.zeros(2 * cache_bytes(device), dtype=torch.uint8, device=device)

    @property
    def bytes(self) -> int:
        """How much it writes over."""
        return self._buffer.numel()

    def __call__(self) -> None:
        self._buffer.add_(1)


def cache_bytes(device: torch.device) -> int:
    """The size of the device's last cache: what fits into it may move faster than memory does."""
    if device.type != "cuda":
        return last_level_cache()
    return int(torch.cuda.get_device_properties(device).L2_cache_size) or _UNKNOWN


def last_level_cache(caches: Path = CPU_CACHES) -> int:
    """Bytes of the largest cache that a CPU sees; 32 MiB where the system does not say."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    sizes = []
    for file in caches.glob("index*/size"):
        text = file.read_text(encoding="utf-8").strip()
        digits = text.rstrip("KMG")
        if digits.isdigit():
            sizes.append(int(digits) * units.get(text[-1], 1))
    return max(sizes, default=_UNKNOWN)
