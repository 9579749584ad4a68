"""The machine as this process may use it: CPUs, memory, GPUs and the limits on them.

A fact that cannot be read is None: kernels, drivers and containers each hide other things.
Nothing here needs torch but `gpu`.
"""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

ROOT = Path("/")  # of /proc, /sys and /etc; tests put a made-up machine here

X86_FLAGS = ("avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16", "amx_bf16")
ARM_FLAGS = ("asimd", "asimdhp", "bf16", "sve", "sve2")


def cpus() -> int:
    """How many CPUs this process may keep busy: its affinity, cut to its control group's quota; at least 1.

    A quota is rounded down: threads beyond it are stopped for part of every period, which ruins timings.
    """
    allowed = len(fact(_affinity) or ()) or os.cpu_count() or 1
    quota = fact(_quota)
    return allowed if quota is None else max(1, min(allowed, math.floor(quota)))


def cpu() -> dict[str, Any]:
    """The processor, what of it this process may use, and what disturbs timings on it."""
    info = fact(_cpuinfo) or {}
    words = (info.get("flags") or info.get("Features") or "").split()
    return {
        "model": info.get("model name") or fact(platform.processor) or platform.machine(),
        "stepping": [info.get(key) for key in ("vendor_id", "cpu family", "model", "stepping")],
        "microcode": info.get("microcode"),
        "logical": os.cpu_count(),
        "affinity": fact(_affinity),
        "quota": fact(_quota),
        "usable": cpus(),
        "governor": text("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "boost": text("sys/devices/system/cpu/cpufreq/boost"),
        "smt": text("sys/devices/system/cpu/smt/active"),
        "load": fact(os.getloadavg),
        "virtual": "hypervisor" in words if words else None,
        "flags": [flag for flag in (*X86_FLAGS, *ARM_FLAGS) if flag in words],
    }


def _cpuinfo() -> dict[str, str]:
    first = read("proc/cpuinfo").split("\n\n")[0]
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first.splitlines())}


def _affinity() -> list[int]:
    return sorted(os.sched_getaffinity(0))


def _quota() -> float | None:
    """CPUs' worth of time a period that the control groups grant; None: no limit."""
    quotas = []
    for folder in _cgroup_folders("cpu"):
        files = (folder / name for name in ("cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us"))
        words = " ".join(filter(None, map(text, files))).split()  # "limit period", in version 1 from two files
        if len(words) == 2 and words[0] not in ("max", "-1"):
            quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)


def _cgroup_folders(controller: str) -> Iterator[Path]:
    """Folders of the control groups this process is in, itself and each parent, of version 1 and 2.

    A limit may sit on any of them. /proc/self/cgroup counts from the top of the hierarchy, while a container's
    mount may begin further down.
    """
    groups: dict[str, str] = {}
    for line in read("proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        groups |= dict.fromkeys(controllers.split(","), group)
    for line in read("proc/self/mountinfo").splitlines():
        mount, _, filesystem = line.partition(" - ")
        top, folder = mount.split()[3:5]
        kind, *_, options = filesystem.split()
        key = {"cgroup2": "", "cgroup": controller}.get(kind)
        if key is None or key not in groups or (key and key not in options.split(",")):
            continue
        inner = groups[key].removeprefix(top).strip("/")
        base = Path(folder.lstrip("/"))
        yield base
        parts = Path(inner).parts
        yield from (base.joinpath(*parts[: depth + 1]) for depth in range(len(parts)))


def memory() -> dict[str, Any]:
    """The machine's memory and the control group's limit on it, in bytes. Raises OSError outside Linux."""
    kilobytes = {line.split()[0]: int(line.split()[1]) for line in read("proc/meminfo").splitlines()}
    pages = text("sys/kernel/mm/transparent_hugepage/enabled") or ""
    return {
        "total": kilobytes["MemTotal:"] * 1024,
        "available": kilobytes["MemAvailable:"] * 1024,
        "limit": fact(_memory_limit),
        "transparent_hugepages": pages.partition("[")[2].partition("]")[0] or None,
    }


def _memory_limit() -> int | None:
    """Bytes that the control groups grant; None: no limit (version 1 writes that as nearly 2**63)."""
    files = [folder / name for folder in _cgroup_folders("memory") for name in ("memory.max", "memory.limit_in_bytes")]
    limits = [int(limit) for limit in map(text, files) if limit and limit != "max"]
    return min((limit for limit in limits if limit < 2**60), default=None)


def gpu() -> dict[str, Any]:
    """The GPUs that torch sees; "reason" says why there are none, or no facts from NVML."""
    import torch

    if not torch.cuda.is_available():
        built = torch.version.cuda or torch.version.hip
        return {"devices": [], "reason": "torch sees no device" if built else "torch is built for the CPU only"}
    nvml = _nvml()
    devices = [_device(torch.cuda.get_device_properties(index), nvml) for index in range(torch.cuda.device_count())]
    if isinstance(nvml, str):
        return {"devices": devices, "reason": nvml}
    return {"devices": devices, "driver": fact(nvml.nvmlSystemGetDriverVersion)}


def _device(properties: Any, nvml: Any) -> dict[str, Any]:
    """One GPU: what torch knows, and what NVML adds (powers in watts, clocks in MHz, temperature in Celsius)."""
    known = {
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "memory": properties.total_memory,
        "l2_cache": fact(lambda: properties.L2_cache_size),
    }
    if isinstance(nvml, str):
        return known
    # By UUID: CUDA_VISIBLE_DEVICES renumbers devices for torch and not for NVML.
    card = fact(lambda: nvml.nvmlDeviceGetHandleByUUID(f"GPU-{properties.uuid}"))
    readers: dict[str, Callable[[], Any]] = {
        "power_limit": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(card) / 1000,
        "power": lambda: nvml.nvmlDeviceGetPowerUsage(card) / 1000,
        "clock": lambda: nvml.nvmlDeviceGetClockInfo(card, nvml.NVML_CLOCK_SM),
        "clock_max": lambda: nvml.nvmlDeviceGetMaxClockInfo(card, nvml.NVML_CLOCK_SM),
        "memory_clock": lambda: nvml.nvmlDeviceGetClockInfo(card, nvml.NVML_CLOCK_MEM),
        "memory_clock_max": lambda: nvml.nvmlDeviceGetMaxClockInfo(card, nvml.NVML_CLOCK_MEM),
        "throttle_reasons": lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(card),
        "temperature": lambda: nvml.nvmlDeviceGetTemperature(card, nvml.NVML_TEMPERATURE_GPU),
        "mig": lambda: bool(nvml.nvmlDeviceGetMigMode(card)[0]),
        "persistence": lambda: bool(nvml.nvmlDeviceGetPersistenceMode(card)),
        "ecc": lambda: bool(nvml.nvmlDeviceGetEccMode(card)[0]),
    }
    return known | {name: fact(reader) for name, reader in readers.items()}


def _nvml() -> Any:
    """NVML's Python module, initialised, or the reason why there is none."""
    try:
        import pynvml
    except ImportError:
        return "no NVML: pip install nvidia-ml-py"
    try:
        pynvml.nvmlInit()
    except Exception as error:  # a driver's library has many ways to be broken
        return f"no NVML: {error}"
    return pynvml


def fact(reader: Callable[[], T]) -> T | None:
    """What `reader` gives, None when it raises."""
    try:
        return reader()
    except Exception:
        return None


def read(file: str | Path) -> str:
    """A small text file of the system's, named from the top without the first slash. Raises OSError."""
    return (ROOT / file).read_text(encoding="utf-8", errors="replace").strip()


def text(file: str | Path) -> str | None:
    """As `read`, None when there is no such file."""
    return fact(lambda: read(file))
