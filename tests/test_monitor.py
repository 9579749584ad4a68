"""What disturbs a case while it is sampled is counted, named and never raises; energy comes from the card's counter."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bench.machine import facts as machine
from bench.machine import nvml
from bench.machine.energy import Energy
from bench.machine.monitor import Monitor, Watched
from bench.model import Metric

POWER_CAP, THERMAL, IDLE, APPLICATION = 0x4, 0x40, 0x1, 0x2
WAITING = "proc/self/schedstat"
QUOTA_GONE = "the CPU quota of the container is exhausted"
STAT2, STAT1 = "sys/fs/cgroup/cpu.stat", "sys/fs/cgroup/cpu/cpu.stat"


class Clock:
    """Time that passes only when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Card(SimpleNamespace):
    """An NVML with one card, known by its UUID; `reasons` and `clocks` are what it says in turn, the last for ever."""

    NVML_CLOCK_SM = 1
    NVML_TEMPERATURE_GPU = 0

    def __init__(self, clocks: list[int], reasons: list[int]) -> None:
        super().__init__()
        self.clocks, self.reasons = clocks, reasons

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        if uuid != "GPU-1-2":
            raise RuntimeError("Not Found")
        return "card"

    def nvmlDeviceGetClockInfo(self, card: str, kind: int) -> int:  # noqa: N802
        return self.clocks.pop(0) if len(self.clocks) > 1 else self.clocks[0]

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, card: str) -> int:  # noqa: N802
        return self.reasons.pop(0) if len(self.reasons) > 1 else self.reasons[0]

    def nvmlDeviceGetTemperature(self, card: str, kind: int) -> int:  # noqa: N802
        return 61


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A made-up machine of two CPUs in place of /proc and /sys, in no control group, without load."""
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.5, 0.5, 0.5))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    return tmp_path


def write(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text, encoding="utf-8")


def version2(root: Path, times: int, microseconds: int) -> None:
    write(root, "proc/self/cgroup", "0::/\n")
    write(root, "proc/self/mountinfo", "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    write(root, STAT2, f"usage_usec 9\nnr_periods 9\nnr_throttled {times}\nthrottled_usec {microseconds}\n")


def metric(watched: Watched, name: str) -> Metric | None:
    return next((one for one in watched.metrics if one.name == name), None)


def samples(watched: Watched, name: str) -> tuple[tuple[float, ...], ...]:
    found = metric(watched, name)
    assert found is not None, name
    return found.samples


def gpu_monitor(library: Any, uuid: str | None = "1-2") -> Monitor:
    """Its time stands still, so that a busy machine's slow readings never use up the budget."""
    return Monitor("cuda:0", uuid, library=library, now=Clock())


def watch(monitor: Monitor, rounds: int) -> Watched:
    monitor.begin()
    for _ in range(rounds):
        monitor.round_done()
    return monitor.end()


def test_throttling_by_the_quota_is_counted_by_round_and_warned_of(root: Path) -> None:
    version2(root, 7, 900_000)
    monitor = Monitor("cpu")
    monitor.begin()
    version2(root, 9, 925_000)
    monitor.round_done()
    monitor.round_done()
    version2(root, 10, 930_000)
    monitor.round_done()
    watched = monitor.end()
    assert samples(watched, "throttled") == ((2.0,), (0.0,), (1.0,))
    assert [row[0] for row in samples(watched, "throttled_time")] == pytest.approx([0.025, 0, 0.005])
    assert watched.warnings == ("this process was throttled 3 times for 30 ms while it was sampled: " + QUOTA_GONE,)


def test_what_happens_between_turns_is_not_the_cases_when_each_turn_begins_anew(root: Path) -> None:
    version2(root, 1, 1000)
    monitor = Monitor("cpu")
    monitor.begin()
    monitor.round_done()
    version2(root, 50, 9_000_000)  # another variant's turn
    monitor.begin()
    monitor.round_done()
    watched = monitor.end()
    assert samples(watched, "throttled") == ((0.0,), (0.0,))
    assert watched.warnings == ()


def test_what_is_watched_is_the_process_that_makes_the_calls(root: Path) -> None:
    write(root, WAITING, "0 0 0\n")
    write(root, "proc/77/schedstat", "0 0 0\n")
    monitor = Monitor("cpu", process=77)
    monitor.begin()
    write(root, WAITING, "0 9000000 0\n")
    write(root, "proc/77/schedstat", "0 2000000 0\n")
    monitor.round_done()
    assert samples(monitor.end(), "cpu_wait") == ((0.002,),)


def test_version_1_counts_throttled_time_in_nanoseconds(root: Path) -> None:
    write(root, "proc/self/cgroup", "4:cpu:/\n0::/\n")
    write(root, "proc/self/mountinfo", "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n")
    write(root, STAT1, "nr_periods 0\nnr_throttled 0\nthrottled_time 0\n")
    monitor = Monitor("cpu")
    monitor.begin()
    write(root, STAT1, "nr_periods 4\nnr_throttled 1\nthrottled_time 2000000\n")
    monitor.round_done()
    assert [row[0] for row in samples(monitor.end(), "throttled_time")] == pytest.approx([0.002])


def test_a_control_group_mounted_twice_counts_once(root: Path) -> None:
    version2(root, 0, 0)
    mount = "30 20 0:26 / /{} rw - cgroup2 cgroup2 rw\n"
    write(root, "proc/self/mountinfo", mount.format("sys/fs/cgroup") + mount.format("again"))
    (root / "again").mkdir()
    (root / "again" / "cpu.stat").hardlink_to(root / STAT2)
    monitor = Monitor("cpu")
    monitor.begin()
    version2(root, 1, 1000)
    monitor.round_done()
    assert samples(monitor.end(), "throttled") == ((1.0,),)


def test_load_beyond_the_machines_cpus_is_other_work(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert watch(Monitor("cpu"), 1).warnings == ()
    monkeypatch.setattr(os, "getloadavg", lambda: (5.2, 1.0, 1.0))
    monitor = Monitor("cpu")
    monitor.begin()
    monkeypatch.setattr(os, "getloadavg", lambda: (0.1, 1.0, 1.0))  # load counts as it was at the start
    monitor.begin()
    assert monitor.end().warnings == ("load 5 on 2 CPUs: other work is running",)


def test_time_spent_waiting_for_a_cpu_is_warned_of_as_a_share(root: Path) -> None:
    clock = Clock()
    write(root, WAITING, "1 1000000000 1\n")
    monitor = Monitor("cpu", now=clock)
    monitor.begin()
    clock.now = 2.0
    write(root, WAITING, "1 1240000000 1\n")
    monitor.round_done()
    watched = monitor.end()
    assert [row[0] for row in samples(watched, "cpu_wait")] == pytest.approx([0.24])
    assert watched.warnings == ("waited for a CPU 12 % of the time it was sampled: other work is running",)


def test_the_clock_of_the_cpu_last_run_on_is_read_in_hertz(root: Path) -> None:
    write(root, "proc/self/stat", f"1 (a) b) R {' '.join(['0'] * 35)} 3 0\n")
    write(root, "sys/devices/system/cpu/cpu3/cpufreq/scaling_cur_freq", "2400000\n")
    assert samples(watch(Monitor("cpu"), 1), "cpu_clock") == ((2.4e9,),)


def test_a_machine_that_hides_everything_gives_states_and_no_error(root: Path) -> None:
    watched = watch(Monitor("cpu"), 2)
    assert {"cpu.stat", "schedstat", "cpufreq"} == watched.states.keys()
    assert watched.states["cpu.stat"] == "no control group here counts throttling"
    assert [one.name for one in watched.metrics] == ["involuntary_switches"]
    assert watched.warnings == ()


def test_a_file_that_goes_bad_midway_ends_its_readings_and_nothing_else(root: Path) -> None:
    write(root, WAITING, "1 5 1\n")
    monitor = Monitor("cpu")
    monitor.begin()
    monitor.round_done()
    write(root, WAITING, "garbage\n")
    monitor.round_done()
    watched = monitor.end()
    assert samples(watched, "cpu_wait") == ((0.0,), ())
    assert "schedstat" in watched.states


def test_a_card_at_rest_in_its_limits_gives_figures_and_no_warning(root: Path) -> None:
    watched = watch(gpu_monitor(Card([1980], [APPLICATION])), 2)
    assert samples(watched, "sm_clock") == ((1980e6,), (1980e6,))
    assert samples(watched, "gpu_temperature") == ((61.0,), (61.0,))
    assert samples(watched, "gpu_slowed") == ((0.0,), (0.0,))
    assert watched.warnings == ()
    assert "nvml" not in watched.states


def test_a_card_that_always_throttles_ends_in_time_and_is_marked(root: Path) -> None:
    """nvbench#231: nothing waits here for a clock to recover."""
    watched = watch(gpu_monitor(Card([1200], [THERMAL | POWER_CAP]), "GPU-1-2"), 500)
    assert watched.warnings == (
        "the GPU was slowed down in 500 of 500 rounds (100 %): power cap, hardware thermal slowdown",
    )


def test_slowdowns_before_the_first_round_are_not_the_cases(root: Path) -> None:
    watched = watch(gpu_monitor(Card([1980], [THERMAL, 0, POWER_CAP, 0])), 4)
    assert watched.warnings == ("the GPU was slowed down in 1 of 4 rounds (25 %): power cap",)


def test_a_clock_that_moves_is_warned_of_unless_the_card_was_idle_by_then(root: Path) -> None:
    moving = watch(gpu_monitor(Card([1980, 1980, 1200, 1980], [0])), 3)
    assert moving.warnings == ("the GPU's clock moved between 1200 and 1980 MHz while it was sampled",)
    idle = watch(gpu_monitor(Card([1980, 1980, 345, 1980], [0, 0, IDLE, 0])), 3)
    assert samples(idle, "gpu_idle") == ((0.0,), (1.0,), (0.0,))
    assert idle.warnings == ()


def test_a_clock_that_moves_is_seen_where_the_driver_hides_reasons(root: Path) -> None:
    card = Card([1980, 1980, 1200], [])  # no reasons: an IndexError in place of NVML's own
    watched = watch(gpu_monitor(card), 2)
    assert "throttle_reasons" in watched.states
    assert len(watched.warnings) == 1


def test_a_slow_driver_is_asked_in_fewer_rounds_but_at_least_in_every_tenth(root: Path) -> None:
    clock = Clock()
    clocks: Iterator[float] = iter([0.0, 0.00095, 0.00095, 3.0, 0.0])

    class Slow(Card):
        def nvmlDeviceGetClockInfo(self, card: str, kind: int) -> int:  # noqa: N802
            clock.now += next(clocks)
            return 1980

    read = [
        bool(row) for row in samples(watch(Monitor("cuda:0", "1-2", library=Slow([], [0]), now=clock), 21), "sm_clock")
    ]
    # nearly 1 ms is five rounds' budget; 3 s would be 15,000 rounds'
    assert [number for number, done in enumerate(read) if done] == [0, 5, 10, 20]


def test_without_nvml_the_state_says_so_and_the_cpu_is_watched_still(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)  # as if not installed
    watched = watch(Monitor("cuda:0", "1-2"), 1)
    assert watched.states["nvml"] == "no nvidia-ml-py"
    assert metric(watched, "involuntary_switches")
    assert not metric(watched, "sm_clock")


def test_a_card_that_nvml_does_not_know_is_a_state(root: Path) -> None:
    states = watch(gpu_monitor(Card([1], [0]), "9-9"), 1).states
    assert states["nvml"] == "NVML does not know the device: Not Found"
    assert "UUID" in watch(gpu_monitor(Card([1], [0]), None), 1).states["nvml"]


def test_a_real_driver_that_does_not_start_is_a_state(monkeypatch: pytest.MonkeyPatch) -> None:
    pynvml = pytest.importorskip("pynvml")

    def refuse() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", refuse)
    assert watch(Monitor("cuda:0", "1-2"), 1).states["nvml"] == "NVML does not start: NVML Shared Library Not Found"
    assert Energy("cuda:0", "1-2").state == "NVML does not start: NVML Shared Library Not Found"


def test_a_mig_slice_is_watched_by_the_card_it_is_cut_from() -> None:
    library = SimpleNamespace(
        nvmlDeviceGetHandleByUUID={"MIG-1-2": "slice"}.__getitem__,
        nvmlDeviceGetDeviceHandleFromMigDeviceHandle={"slice": "card"}.__getitem__,
    )
    assert nvml.find_card(library, "1-2") == "card"
    assert nvml.find_card(library, "MIG-1-2") == "card"


def test_throttle_reasons_are_words_and_the_newer_name_is_asked_too() -> None:
    assert nvml.throttle_words(0) == []
    assert nvml.throttle_words(POWER_CAP | IDLE | 1 << 12) == ["idle", "power cap", "bit 12"]
    assert nvml.slowdowns(POWER_CAP | IDLE | APPLICATION | THERMAL) == ["power cap", "hardware thermal slowdown"]
    newer = SimpleNamespace(nvmlDeviceGetCurrentClocksEventReasons=lambda card: 4)
    assert nvml.throttle_bits(newer, "card") == 4


def test_words_of_throttle_reasons_stand_at_the_bits_that_nvml_gives_them() -> None:
    pynvml = pytest.importorskip("pynvml")
    named = {
        "idle": pynvml.nvmlClocksThrottleReasonGpuIdle,
        "application clocks": pynvml.nvmlClocksThrottleReasonApplicationsClocksSetting,
        "power cap": pynvml.nvmlClocksThrottleReasonSwPowerCap,
        "hardware slowdown": pynvml.nvmlClocksThrottleReasonHwSlowdown,
        "sync boost": pynvml.nvmlClocksThrottleReasonSyncBoost,
        "thermal slowdown": pynvml.nvmlClocksThrottleReasonSwThermalSlowdown,
        "hardware thermal slowdown": pynvml.nvmlClocksThrottleReasonHwThermalSlowdown,
        "power brake": pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown,
        "display clock": pynvml.nvmlClocksThrottleReasonDisplayClockSetting,
    }
    assert {word: nvml.throttle_words(bit) for word, bit in named.items()} == {word: [word] for word in named}


def counting_card(clock: Clock, watts: float, period: float = 0.1) -> Any:
    """A card whose counter, in mJ, moves once a period."""

    def total(card: str) -> int:
        return int(1000 * watts * period * (clock.now // period))

    return SimpleNamespace(nvmlDeviceGetHandleByUUID=lambda uuid: uuid, nvmlDeviceGetTotalEnergyConsumption=total)


def test_energy_of_a_call_is_found_although_the_counter_moves_in_steps() -> None:
    clock = Clock()

    def run(calls: int) -> None:
        clock.now += calls * 250e-6

    found = Energy("cuda:0", "1-2", library=counting_card(clock, watts=400), now=clock).per_call(run)
    assert found is not None
    assert (found.name, found.unit, found.clock) == ("energy", "J", "nvml")
    assert found.samples[0][0] == pytest.approx(400 * 250e-6, rel=0.05)
    assert clock.now < 1.0


def test_a_call_longer_than_the_window_still_gets_its_energy() -> None:
    clock = Clock()

    def run(calls: int) -> None:
        clock.now += calls * 3.0

    found = Energy("cuda:0", "1-2", library=counting_card(clock, watts=100), now=clock).per_call(run)
    assert found is not None
    assert found.samples[0][0] == pytest.approx(300)


def test_an_energy_counter_that_never_moves_ends_in_time_with_a_reason() -> None:
    clock = Clock()

    def run(calls: int) -> None:
        clock.now += calls * 1e-3

    energy = Energy("cuda:0", "1-2", library=counting_card(clock, watts=0), now=clock)
    assert energy.per_call(run, seconds=0.5) is None
    assert energy.state == "the energy counter did not move in 2.0 s"
    assert clock.now < 2.2


def test_where_there_is_no_energy_counter_the_work_is_not_run() -> None:
    def run(calls: int) -> None:
        raise AssertionError

    bare = SimpleNamespace(nvmlDeviceGetHandleByUUID=lambda uuid: uuid)
    sliced = SimpleNamespace(**vars(bare), nvmlDeviceGetMigMode=lambda card: [1, 1])
    states = {"no energy counter: ": bare, "a MIG slice shares its card's energy counter": sliced}
    for state, library in states.items():
        energy = Energy("cuda:0", "1-2", library=library)
        assert energy.per_call(run) is None
        assert energy.state.startswith(state)
    assert Energy("cpu").state == "only GPUs count energy"


def test_an_error_in_the_work_is_the_works_own() -> None:
    def run(calls: int) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Energy("cuda:0", "1-2", library=counting_card(Clock(), watts=1)).per_call(run)


@pytest.mark.gpu
def test_a_real_gpu_is_watched_and_its_energy_is_between_idle_and_the_power_limit() -> None:
    properties = torch.cuda.get_device_properties(0)
    uuid = str(properties.uuid)
    left = torch.randn(4096, 4096, device="cuda")

    def run(calls: int) -> None:
        for _ in range(calls):
            left @ left
        torch.cuda.synchronize()

    monitor = Monitor("cuda:0", uuid)
    monitor.begin()
    for _ in range(20):
        run(10)
        monitor.round_done()
    watched = monitor.end()
    assert "nvml" not in watched.states
    assert 100e6 < min(row[0] for row in samples(watched, "sm_clock") if row) < 5e9
    assert 10 < samples(watched, "gpu_temperature")[0][0] < 110
    start = time.perf_counter()
    run(20)
    per_call = (time.perf_counter() - start) / 20
    energy = Energy("cuda:0", uuid)
    found = energy.per_call(run)
    if found is not None:
        assert 20 < found.samples[0][0] / per_call < 1.3 * machine.gpu()["devices"][0]["power_limit"]
    else:
        assert energy.state
