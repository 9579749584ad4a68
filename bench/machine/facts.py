"""The machine as this process may use it: CPUs, memory, GPUs and the limits on them.

A fact that cannot be read is None: kernels, drivers and containers each hide other things.
Nothing here needs torch but `gpu`.
"""

from __future__ import annotations

import ctypes
import math
import os
import platform
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from bench.machine import nvml

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
        "turbo": fact(_turbo),
        "numa": {
            "nodes": fact(_numa_nodes),
            "balancing": {"0": False, "1": True}.get(text("proc/sys/kernel/numa_balancing") or ""),
        },
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


def _turbo() -> bool | None:
    """Whether clocks may rise above the nominal one; intel_pstate says it the other way round."""
    boost, no_turbo = text("sys/devices/system/cpu/cpufreq/boost"), text("sys/devices/system/cpu/intel_pstate/no_turbo")
    return boost == "1" if boost is not None else no_turbo == "0" if no_turbo is not None else None


def _numa_nodes() -> dict[str, str] | None:
    """The CPUs of each memory node, as the kernel lists them: {"node0": "0-31,64-95"}."""
    folders = (ROOT / "sys/devices/system/node").glob("node[0-9]*")
    nodes = sorted((folder.name for folder in folders), key=lambda name: int(name.removeprefix("node")))
    return {name: read(f"sys/devices/system/node/{name}/cpulist") for name in nodes} or None


def _quota() -> float | None:
    """CPUs' worth of time a period that the control groups grant; None: no limit."""
    quotas = []
    for folder in cgroup_folders("cpu"):
        files = (folder / name for name in ("cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us"))
        words = " ".join(filter(None, map(text, files))).split()  # "limit period", in version 1 from two files
        if len(words) == 2 and words[0] not in ("max", "-1"):
            quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)


def cgroup_folders(controller: str) -> Iterator[Path]:
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
    return {
        "total": kilobytes["MemTotal:"] * 1024,
        "available": kilobytes["MemAvailable:"] * 1024,
        "limit": fact(_memory_limit),
        "transparent_hugepages": _chosen(text("sys/kernel/mm/transparent_hugepage/enabled")),
        "hugepage_defrag": _chosen(text("sys/kernel/mm/transparent_hugepage/defrag")),
        "reserved_hugepages": fact(lambda: int(read("proc/sys/vm/nr_hugepages"))),
        "malloc": fact(malloc),
    }


def _chosen(words: str | None) -> str | None:
    """What the kernel marks in a list of choices: "always [madvise] never"."""
    return (words or "").partition("[")[2].partition("]")[0] or None


def malloc() -> str:
    """File name of the library whose malloc this process uses: "libc.so.6", or what LD_PRELOAD put before it.

    Raises OSError or AttributeError where the C library cannot say.
    """

    class Found(ctypes.Structure):
        _fields_ = (
            *(("file", ctypes.c_char_p), ("base", ctypes.c_void_p)),
            *(("symbol", ctypes.c_char_p), ("address", ctypes.c_void_p)),
        )

    def home(library: ctypes.CDLL) -> Path:
        found = Found()
        if not library.dladdr(library.malloc, ctypes.byref(found)):
            raise OSError("no library is known for malloc")
        return Path(os.fsdecode(found.file))

    where = home(ctypes.CDLL(None))
    if where.suffix == ".so" or ".so." in where.name:
        return where.name
    # A Python that is no position-independent executable answers with its own jump to malloc, wherever that leads.
    preloaded = re.split("[ :]+", os.environ.get("LD_PRELOAD", ""))
    own = [path for path in map(Path, filter(None, preloaded)) if home(ctypes.CDLL(str(path))).name == path.name]
    return own[0].name if own else home(ctypes.CDLL("libc.so.6")).name


def _memory_limit() -> int | None:
    """Bytes that the control groups grant; None: no limit (version 1 writes that as nearly 2**63)."""
    files = [folder / name for folder in cgroup_folders("memory") for name in ("memory.max", "memory.limit_in_bytes")]
    limits = [int(limit) for limit in map(text, files) if limit and limit != "max"]
    return min((limit for limit in limits if limit < 2**60), default=None)


def gpu() -> dict[str, Any]:
    """The GPUs that torch sees; "reason" says why there are none, or no facts from NVML."""
    import torch

    if not torch.cuda.is_available():
        built = torch.version.cuda or torch.version.hip
        return {"devices": [], "reason": "torch sees no device" if built else "torch is built for the CPU only"}
    cards = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    try:
        library = nvml.find()
    except nvml.Absent as reason:
        return {"devices": [_device(card) for card in cards], "reason": str(reason)}
    devices = [_device(card) | _managed(library, str(card.uuid)) for card in cards]
    return {"devices": devices, "driver": fact(library.nvmlSystemGetDriverVersion)}


def _device(properties: Any) -> dict[str, Any]:
    """What torch knows of one GPU."""
    return {
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "memory": properties.total_memory,
        "l2_cache": fact(lambda: properties.L2_cache_size),
    }


def _managed(library: Any, uuid: str) -> dict[str, Any]:
    """What NVML adds: powers in watts, clocks in MHz, temperature in Celsius."""
    try:
        card = nvml.find_card(library, uuid)
    except nvml.Absent as reason:
        return {"reason": str(reason)}
    readers: dict[str, Callable[[], Any]] = {
        "power_limit": lambda: library.nvmlDeviceGetEnforcedPowerLimit(card) / 1000,
        "power_limit_default": lambda: library.nvmlDeviceGetPowerManagementDefaultLimit(card) / 1000,
        "power": lambda: library.nvmlDeviceGetPowerUsage(card) / 1000,
        "clock": lambda: library.nvmlDeviceGetClockInfo(card, library.NVML_CLOCK_SM),
        "clock_max": lambda: library.nvmlDeviceGetMaxClockInfo(card, library.NVML_CLOCK_SM),
        "clock_application": lambda: library.nvmlDeviceGetApplicationsClock(card, library.NVML_CLOCK_SM),
        "memory_clock": lambda: library.nvmlDeviceGetClockInfo(card, library.NVML_CLOCK_MEM),
        "memory_clock_max": lambda: library.nvmlDeviceGetMaxClockInfo(card, library.NVML_CLOCK_MEM),
        "memory_clock_application": lambda: library.nvmlDeviceGetApplicationsClock(card, library.NVML_CLOCK_MEM),
        "throttle_reasons": lambda: nvml.throttle_words(nvml.throttle_bits(library, card)),
        "temperature": lambda: library.nvmlDeviceGetTemperature(card, library.NVML_TEMPERATURE_GPU),
        "mig": lambda: bool(library.nvmlDeviceGetMigMode(card)[0]),
        "persistence": lambda: bool(library.nvmlDeviceGetPersistenceMode(card)),
        "ecc": lambda: bool(library.nvmlDeviceGetEccMode(card)[0]),
    }
    return {name: fact(reader) for name, reader in readers.items()}


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
