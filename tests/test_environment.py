"""What timings depend on is described fully, as strict JSON, whatever the machine hides."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bench.machine import environment
from bench.machine import facts as machine

CGROUP2 = "30 20 0:26 {top} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
CGROUP1 = "32 31 0:29 {top} /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct\n"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty file system in place of the machine's /proc, /sys and /etc; 8 CPUs allowed."""
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    return tmp_path


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")


def version2(limit: str, group: str = "/", top: str = "/", folder: str = "sys/fs/cgroup") -> dict[str, str]:
    return {
        "proc/self/cgroup": f"0::{group}\n",
        "proc/self/mountinfo": CGROUP2.format(top=top),
        f"{folder}/cpu.max": limit,
    }


def test_without_a_limit_all_allowed_cpus_may_be_used(root: Path) -> None:
    assert machine.cpus() == 8
    write(root, version2("max 100000\n"))
    assert machine.cpus() == 8


def test_a_fractional_quota_is_rounded_down_but_never_to_zero(root: Path) -> None:
    write(root, version2("350000 100000\n"))
    assert machine.cpus() == 3
    write(root, version2("50000 100000\n"))
    assert machine.cpus() == 1


def test_a_quota_above_the_affinity_grants_no_more_cpus(root: Path) -> None:
    write(root, version2("3200000 100000\n"))
    assert machine.cpus() == 8


def test_the_lowest_quota_from_the_group_up_to_the_top_counts(root: Path) -> None:
    write(root, version2("600000 100000\n", group="/user/job", folder="sys/fs/cgroup/user/job"))
    assert machine.cpus() == 6
    write(root, {"sys/fs/cgroup/user/cpu.max": "200000 100000\n"})
    assert machine.cpus() == 2


def test_a_container_whose_mount_begins_at_its_own_group_is_read_there(root: Path) -> None:
    write(root, version2("200000 100000\n", group="/docker/abc", top="/docker/abc"))
    assert machine.cpus() == 2


def test_quotas_of_version_1_are_read(root: Path) -> None:
    folder = "sys/fs/cgroup/cpu,cpuacct/docker"
    group = {"proc/self/cgroup": "4:cpu,cpuacct:/docker\n0::/\n", "proc/self/mountinfo": CGROUP1.format(top="/")}
    write(root, group | {f"{folder}/cpu.cfs_quota_us": "400000\n", f"{folder}/cpu.cfs_period_us": "100000\n"})
    assert machine.cpus() == 4
    write(root, {f"{folder}/cpu.cfs_quota_us": "-1\n"})
    assert machine.cpus() == 8


def test_the_memory_limit_of_the_control_group_is_read_in_bytes(root: Path) -> None:
    write(root, version2("max 100000") | {"proc/meminfo": "MemTotal: 2048 kB\nMemAvailable: 1024 kB\n"})
    facts = machine.memory()
    assert (facts["total"], facts["available"], facts["limit"]) == (2**21, 2**20, None)
    assert (facts["transparent_hugepages"], facts["reserved_hugepages"]) == (None, None)
    huge = {"sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n"}
    write(root, {"sys/fs/cgroup/memory.max": "1048576\n"} | huge)
    assert machine.memory()["limit"] == 2**20
    assert machine.memory()["transparent_hugepages"] == "madvise"


def test_the_processor_is_described_from_what_the_kernel_says(root: Path) -> None:
    write(root, {"proc/cpuinfo": "model name : Some CPU\nflags : fpu avx2 avx512f hypervisor\n\nmodel name : Other\n"})
    facts = machine.cpu()
    assert (facts["model"], facts["flags"], facts["virtual"]) == ("Some CPU", ["avx2", "avx512f"], True)
    assert (facts["affinity"], facts["usable"], facts["governor"]) == (list(range(8)), 8, None)


def test_turbo_is_read_whichever_way_the_driver_says_it(root: Path) -> None:
    assert machine.cpu()["turbo"] is None
    write(root, {"sys/devices/system/cpu/intel_pstate/no_turbo": "1\n"})
    assert machine.cpu()["turbo"] is False
    write(root, {"sys/devices/system/cpu/cpufreq/boost": "1\n"})
    assert machine.cpu()["turbo"] is True


def test_memory_nodes_are_listed_with_their_cpus_in_order_of_number(root: Path) -> None:
    assert machine.cpu()["numa"] == {"nodes": None, "balancing": None}
    nodes = {f"sys/devices/system/node/node{number}/cpulist": f"{number}-{number}\n" for number in (0, 2, 10)}
    write(root, nodes | {"proc/sys/kernel/numa_balancing": "1\n"})
    numa = machine.cpu()["numa"]
    assert list(numa["nodes"].items()) == [("node0", "0-0"), ("node2", "2-2"), ("node10", "10-10")]
    assert numa["balancing"] is True


def test_the_malloc_named_is_the_one_that_a_preloaded_library_put_first(tmp_path: Path) -> None:
    assert machine.malloc() == "libc.so.6"
    source, library = tmp_path / "malloc.c", tmp_path / "libmymalloc.so.2"
    source.write_text("void *__libc_malloc(unsigned long); void *malloc(unsigned long n) { return __libc_malloc(n); }")
    subprocess.run(["cc", "-shared", "-fPIC", "-fno-builtin", "-o", library, source], check=True)
    code = "from bench.machine import facts; print(facts.malloc())"
    env = os.environ | {"LD_PRELOAD": str(library)}
    done = subprocess.run([sys.executable, "-c", code], check=True, env=env, capture_output=True, encoding="utf-8")
    assert done.stdout == "libmymalloc.so.2\n"


def test_the_switches_of_torch_are_recorded_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    before = environment.describe()
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", not torch.backends.cudnn.benchmark)
    after = environment.describe()
    assert after["torch"]["cudnn_benchmark"] is not before["torch"]["cudnn_benchmark"]
    assert None not in after["torch"].values()
    assert after["torch"]["threads"] == torch.get_num_threads()
    assert after["fingerprint"] == before["fingerprint"]  # cases set their own


def test_what_disturbs_timings_on_this_machine_is_noted_in_words(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert environment.describe()["notes"] == []
    card = SimpleNamespace(name="GPU X", major=9, minor=0, multi_processor_count=132, total_memory=2**37, uuid="1-2")
    driver = fake_nvml()
    driver.nvmlDeviceGetEnforcedPowerLimit = lambda card: 500_000
    fake_cuda(monkeypatch, card)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 9)
    monkeypatch.setattr(machine, "malloc", lambda: "libjemalloc.so.2")
    write(root, {"sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave\n"})
    write(root, {"proc/meminfo": "MemTotal: 2048 kB\nMemAvailable: 1024 kB\n"})
    assert environment.describe()["notes"] == [
        "the CPU's governor is powersave, not performance: its clock follows the load",
        "torch starts 9 threads where 8 CPUs may be used",
        "memory comes from libjemalloc.so.2, not from glibc: its malloc settings do nothing",
        "GPU 0 may draw 500 W of its usual 700 W",
        "GPU 0 is slowed down: power cap",
        "persistence mode of GPU 0 is off: its driver may unload between runs",
    ]


def test_a_machine_that_hides_everything_is_still_described(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    facts = environment.describe()
    assert facts["memory"]["reason"].startswith("FileNotFoundError")
    assert facts["git"] is None
    assert facts["software"]["compiler"] is None
    assert f"torch {torch.__version__}" in facts["fingerprint"]


def test_the_description_is_strict_json_even_with_odd_bytes_and_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environb, b"MALLOC_CONF", b"a\xff")
    monkeypatch.setattr(os, "getloadavg", lambda: (float("nan"), 0.5, 1.0))
    facts = environment.describe()
    json.dumps(facts, allow_nan=False, ensure_ascii=False).encode("utf-8")
    assert facts["variables"]["MALLOC_CONF"] == "a?"
    assert facts["cpu"]["load"] == [None, 0.5, 1.0]


def test_only_variables_that_change_timings_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = {"OMP_NUM_THREADS": "2", "NVIDIA_TF32_OVERRIDE": "0", "PYTORCH_JIT": "1"}
    for name, value in (kept | {"CUDA_HOME": "x", "TORCHINDUCTOR_CACHE_DIR": "x", "SECRET_TOKEN": "x"}).items():
        monkeypatch.setenv(name, value)
    variables = environment.describe()["variables"]
    assert kept.items() <= variables.items()
    assert not {"CUDA_HOME", "TORCHINDUCTOR_CACHE_DIR", "SECRET_TOKEN"} & variables.keys()


def test_the_fingerprint_repeats_and_changes_with_the_quota_and_torch(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = environment.describe()["fingerprint"]
    assert environment.describe()["fingerprint"] == first
    assert ", 8 of " in first
    write(root, version2("250000 100000"))
    limited = environment.describe()["fingerprint"]
    assert ", 2 of " in limited
    monkeypatch.setattr(torch, "__version__", "9.9.9")
    assert "torch 9.9.9" in environment.describe()["fingerprint"]


def test_processors_of_one_name_differ_in_the_hash(root: Path) -> None:
    write(root, {"proc/cpuinfo": "model name : Virtual CPU\nflags : avx2\n"})
    first = environment.describe()["fingerprint"]
    write(root, {"proc/cpuinfo": "model name : Virtual CPU\nflags : avx2 avx512f\n"})
    second = environment.describe()["fingerprint"]
    assert first.rpartition("#")[0] == second.rpartition("#")[0]
    assert first != second


def test_nvml_facts_stand_beside_those_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    card = SimpleNamespace(name="GPU X", major=9, minor=0, multi_processor_count=132, total_memory=2**37, uuid="1-2")
    fake_cuda(monkeypatch, card)
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml())
    facts = machine.gpu()
    assert facts["driver"] == "580.1"
    assert facts["devices"][0] | {"power_limit": 700.0, "mig": False, "temperature": None} == facts["devices"][0]
    assert facts["devices"][0]["capability"] == "9.0"
    assert facts["devices"][0]["throttle_reasons"] == ["idle", "power cap"]
    assert "2 x GPU X; " in environment.describe()["fingerprint"]


def test_without_nvml_the_gpus_are_named_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    card = SimpleNamespace(name="GPU X", major=9, minor=0, multi_processor_count=132, total_memory=2**37, uuid="1-2")
    fake_cuda(monkeypatch, card)
    monkeypatch.setitem(sys.modules, "pynvml", None)  # as if not installed
    facts = machine.gpu()
    assert [device["name"] for device in facts["devices"]] == ["GPU X", "GPU X"]
    assert facts["reason"] == "no nvidia-ml-py"


def fake_cuda(monkeypatch: pytest.MonkeyPatch, card: Any) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: card)


def fake_nvml() -> SimpleNamespace:
    """A driver that knows power and MIG and refuses the rest."""
    return SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlSystemGetDriverVersion=lambda: "580.1",
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetEnforcedPowerLimit={"GPU-1-2": 700_000}.__getitem__,
        nvmlDeviceGetMigMode=lambda card: [0, 0],
        nvmlDeviceGetPowerManagementDefaultLimit=lambda card: 700_000,
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda card: 0x5,
        nvmlDeviceGetPersistenceMode=lambda card: 0,
    )


def test_the_commit_and_a_dirty_flag_are_those_of_the_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = tmp_path / "bench" / "machine" / "environment.py"
    write(tmp_path, {"bench/machine/environment.py": "", "results/baseline": ""})
    monkeypatch.setattr(environment, "__file__", str(code))
    monkeypatch.chdir(tmp_path)
    assert environment.describe()["git"] is None
    for command in ("init -q", "add .", "-c user.name=n -c user.email=e -c commit.gpgsign=false commit -q -m first"):
        subprocess.run(["git", "-C", tmp_path, *command.split()], check=True)
    git = environment.describe()["git"]
    assert (len(git["commit"]), git["dirty"]) == (40, False)
    write(tmp_path, {"results/baseline": "new results leave the code as it was"})
    assert environment.describe()["git"]["dirty"] is False
    write(tmp_path, {"bench/machine/environment.py": "changed"})
    assert environment.describe()["git"] == git | {"dirty": True}


def test_started_in_another_repository_the_commit_is_that_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"layer.py": ""})
    ours = environment.describe()["git"]
    for command in ("init -q", "add .", "-c user.name=n -c user.email=e -c commit.gpgsign=false commit -q -m first"):
        subprocess.run(["git", "-C", tmp_path, *command.split()], check=True)
    monkeypatch.chdir(tmp_path)
    git = environment.describe()["git"]
    assert git["commit"] not in (None, ours and ours["commit"])
    assert git["dirty"] is False
    write(tmp_path, {"layer.py": "changed"})
    assert environment.describe()["git"] == git | {"dirty": True}


def test_code_that_no_repository_tracks_has_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    write(tmp_path, {"venv/bench/machine/environment.py": ""})
    monkeypatch.setattr(environment, "__file__", str(tmp_path / "venv" / "bench" / "machine" / "environment.py"))
    monkeypatch.chdir(tmp_path)
    assert environment.describe()["git"] is None


def test_counting_cpus_needs_no_torch_and_no_utf8_locale() -> None:
    code = (
        "import sys; from bench.machine.environment import cpus; assert cpus() >= 1; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"LC_ALL": "C"})


def test_the_compiler_named_is_the_one_that_cxx_asks_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "c++ of mine"
    compiler.write_text("#!/bin/sh\necho mine 1.2\necho more\n", encoding="utf-8")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    assert environment.describe()["software"]["compiler"] == "mine 1.2"
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert environment.describe()["software"]["compiler"] is None


@pytest.mark.gpu
def test_a_real_gpu_is_described_with_its_power_and_clocks() -> None:
    facts = machine.gpu()
    assert len(facts["devices"]) == torch.cuda.device_count()
    device = facts["devices"][0]
    assert device["name"] == torch.cuda.get_device_name(0)
    assert device["l2_cache"] > 0
    if "reason" not in facts:
        assert facts["driver"]
        assert device["power_limit"] > 0
        assert device["clock_max"] > 0
