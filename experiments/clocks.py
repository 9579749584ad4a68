# ruff: noqa: T201, D103
"""Every GPU clock on kernels of known length and on shifts of four sizes, side by side.

    python experiments/clocks.py --out clocks.json

Takes under 90 s on one GPU. Prints a table; the JSON has every reading of every clock in the order it was taken, the
GPU's frequencies before and after each row, and what failed. It is there to explain why clocks differ: a frequency
that moved, memory touched for the first time, or the clock itself.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run as a file, installed or not

from bench.clocks.cuda import EventTimer, GraphTimer
from bench.clocks.cupti import CuptiTimer
from bench.clocks.timer import Call
from ext import ops

DEVICE = torch.device("cuda", 0)
SPINS = (0, 1, 2, 5, 20, 100, 1000)  # us
SIZES = {"4 KiB": 4 << 10, "4 MiB": 4 << 20, "64 MiB": 64 << 20, "1 GiB": 1 << 30}
SECONDS = 80.0  # no row begins later than this
COLUMNS = ("truth", "events", "events one by one", "graph", "cupti", "bare pair", "profiler", "events after")


Reader = Callable[["Work", list[str]], list[float]]  # seconds; what is to be said of them goes into the list


class Work(Call):
    """A call to time."""

    fresh = False

    def __init__(self, function: Callable[[], object]) -> None:
        self.function = function

    def prepare(self) -> None:
        """Nothing."""

    def __call__(self) -> None:
        self.output = self.function()


def main() -> None:
    """Take all readings, then print and write them, whatever failed on the way."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    begin = time.perf_counter()
    ops.load()
    loaded = time.perf_counter() - begin  # may have built the library: not counted
    deadline = time.perf_counter() + SECONDS
    frequency = calibrate()
    rows = [spin_row(length, frequency) for length in SPINS] + [shift_row(name, size) for name, size in SIZES.items()]
    # torch's profiler takes CUPTI's callbacks over, so it comes after our own CUPTI clock.
    passes: list[dict[str, Reader]] = [
        {
            "bare pair": bare_pairs,
            "events": windows(EventTimer),
            "events one by one": one_by_one,
            "graph": windows(GraphTimer),
            "cupti": windows(CuptiTimer),
        },
        {"profiler": profiled},
        {"events after": windows(EventTimer)},
    ]
    for readers in passes:
        for row in rows:
            take(row, readers, deadline)
    record = {
        "device": torch.cuda.get_device_name(DEVICE),
        "torch": torch.__version__,
        "cycles_per_second": frequency,
        "library_loaded_s": loaded,
        "seconds": time.perf_counter() - begin,
        "rows": [{key: value for key, value in row.items() if key != "make"} for row in rows],
    }
    out.write_text(json.dumps(record, indent=1), encoding="utf-8")
    report(rows, frequency)


def take(row: dict[str, Any], readers: dict[str, Reader], deadline: float) -> None:
    """Fill a row; an error is a cell and not the end."""
    for name, reader in readers.items():
        if time.perf_counter() > deadline:
            row["errors"][name] = "out of time"
            continue
        before, notes, work = state(), list[str](), None
        try:
            work = Work(row["make"]())
            row["first call"].setdefault(name, host_seconds(work))
            row["readings"][name] = reader(work, notes)
        except Exception as error:
            row["errors"][name] = f"{type(error).__name__}: {error}".partition("\n")[0]
        row["state"][name] = {"before": before, "after": state()}
        if notes:
            row["doubts"][name] = notes
        del work  # its memory is the next one's


def new_row(name: str, make: Callable[[], Callable[[], object]]) -> dict[str, Any]:
    return {"name": name, "make": make, "readings": {}, "errors": {}, "first call": {}, "state": {}, "doubts": {}}


def spin_row(microseconds: int, frequency: float) -> dict[str, Any]:
    cycles = int(microseconds * 1e-6 * frequency)
    silent = torch.empty(0, dtype=torch.int64, device=DEVICE)
    row = new_row(f"spin {microseconds} us", lambda: lambda: torch.ops.layerbench.spin(silent, cycles))
    counts = [spin(cycles) for _ in range(20)]
    row["readings"]["truth"] = [count[0] / frequency for count in counts]
    row["own ns"] = [count[1] for count in counts]
    return row


def shift_row(name: str, size: int) -> dict[str, Any]:
    def make() -> Callable[[], object]:
        x = torch.randn(size // 4, device=DEVICE)
        return lambda: torch.ops.layerbench.shift(x, 5)

    return new_row(f"shift {name}", make)


def spin(cycles: int) -> tuple[int, int]:
    """What a spin really took: cycles, ns."""
    spun = torch.zeros(2, dtype=torch.int64, device=DEVICE)
    torch.ops.layerbench.spin(spun, cycles)
    taken = spun.tolist()
    return taken[0], taken[1]


def calibrate() -> float:
    """Cycles a second, of the processor's clock against the GPU's time of day, once it has risen."""
    counts = [spin(40_000_000) for _ in range(5)]
    return statistics.median(cycles / ns * 1e9 for cycles, ns in counts[2:])


def windows(kind: Callable[[torch.device], Any]) -> Reader:
    """Readings of one of our clocks: ten windows of ten calls."""

    def read(work: Work, notes: list[str]) -> list[float]:
        timer = kind(DEVICE)
        taken = [timer.window(work, 10) for _ in range(10)]
        notes.extend(timer.doubts)
        return taken

    return read


def one_by_one(work: Work, notes: list[str]) -> list[float]:
    """Twenty calls in the order they ran, each behind a hold of its own, from an idle GPU on."""
    time.sleep(0.1)
    timer = EventTimer(DEVICE)
    taken = [timer.window(work, 1) for _ in range(20)]
    notes.extend(timer.doubts)
    return taken


def bare_pairs(work: Work, notes: list[str]) -> list[float]:
    """What a pair of events says without a hold."""
    taken = []
    for _ in range(20):
        torch.cuda.synchronize(DEVICE)
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        work()
        end.record()
        end.synchronize()
        taken.append(start.elapsed_time(end) * 1e-3)
    return taken


def profiled(work: Work, notes: list[str]) -> list[float]:
    """Every kernel of twenty calls as torch's profiler has them, in order."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiler:
        for _ in range(20):
            work()
        torch.cuda.synchronize(DEVICE)
    kernels = [event for event in profiler.events() if event.device_type.name == "CUDA"]
    kernels.sort(key=lambda event: event.time_range.start)
    return [event.time_range.elapsed_us() * 1e-6 for event in kernels]


def host_seconds(work: Work) -> float:
    """One call and the wait for it: of the first, memory's first touch included."""
    torch.cuda.synchronize(DEVICE)
    start = time.perf_counter()
    work()
    torch.cuda.synchronize(DEVICE)
    return time.perf_counter() - start


def state() -> dict[str, Any]:
    """Frequencies: our own count over 200 us, and what NVML says."""
    found: dict[str, Any] = {}
    try:
        cycles, ns = spin(400_000)
        found["counted_mhz"] = cycles / ns * 1e3
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(DEVICE).uuid}")
        found["sm_mhz"] = pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)
        found["memory_mhz"] = pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM)
        found["watts"] = pynvml.nvmlDeviceGetPowerUsage(handle) / 1000
        found["throttle"] = pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    except Exception as error:
        found["missing"] = f"{type(error).__name__}: {error}"
    return found


def report(rows: list[dict[str, Any]], frequency: float) -> None:
    """Lowest (and median) reading of each clock, in us; then the long kernels one by one."""
    print(f"{torch.cuda.get_device_name(DEVICE)}, torch {torch.__version__}, {frequency / 1e6:.0f} MHz")
    print("lowest/median, us".ljust(18) + "".join(column.rjust(20) for column in COLUMNS))
    for row in rows:
        print(row["name"].ljust(18) + "".join(cell(row, column).rjust(20) for column in COLUMNS))
    for row in rows:
        for name, said in (*row["errors"].items(), *row["doubts"].items()):
            print(f"{row['name']}, {name}: {said}")
    last = rows[-1]
    print(f"\n{last['name']}, every reading in order, us:")
    for name, taken in last["readings"].items():
        print(f"{name:>18}: " + " ".join(f"{seconds * 1e6:.1f}" for seconds in taken))
    for name, seconds in last["first call"].items():
        print(f"{name:>18}: first call {seconds * 1e6:.0f} us; {last['state'].get(name)}")


def cell(row: dict[str, Any], column: str) -> str:
    """Lowest and median, or what stands in for them."""
    taken = row["readings"].get(column)
    if not taken:
        return "failed" if column in row["errors"] else "-"
    return f"{min(taken) * 1e6:.2f}/{statistics.median(taken) * 1e6:.2f}"


if __name__ == "__main__":
    main()
