"""The self-test and the machine it ran on, for a terminal; says the same without colour."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bench.doctor.findings import OUTCOMES, Finding, Report, statement
from bench.formats.cells import fact, one_line
from bench.units import show

STYLES = {"pass": "green", "warn": "yellow", "fail": "bold red", "skip": "dim"}


def render(report: Report) -> RenderableType:
    """A row for every finding, what needs explaining below, then what this machine can tell apart."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1))
    table.add_column("self-test", overflow="fold")
    table.add_column("figure", overflow="fold")
    table.add_column("passes", overflow="fold")
    table.add_column("result", no_wrap=True)
    for finding in report.findings:
        figure = Text(finding.detail if finding.status == "skip" else finding.figure)
        table.add_row(Text(finding.name), figure, Text(finding.bound), Text(finding.status, STYLES[finding.status]))
    counts = Counter(finding.status for finding in report.findings)
    totals = ", ".join(f"{counts[one]} {one}" for one in OUTCOMES if counts[one])
    return Group(
        Text(),
        table,
        Text(),
        *(_remark(finding) for finding in report.findings if finding.status in ("warn", "fail")),
        Text(statement(report.twins, report.same_within)),
        Text(f"{totals}; took {show(report.seconds, 's')}", "bold"),
    )


def _remark(finding: Finding) -> RenderableType:
    """Why a row is not fine, as a paragraph that hangs below its first word."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column(ratio=1)
    text = Text.assemble((finding.name, "bold"), f": {one_line(finding.detail)}")
    grid.add_row(Text(finding.status, STYLES[finding.status]), text)
    return grid


def render_environment(facts: Mapping[str, Any]) -> RenderableType:
    """What timings depend on most, a line each, from environment.describe()'s facts; `--json` has them all."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True, style="bold")
    grid.add_column(ratio=1, overflow="fold")
    for name, text in summary(facts):
        grid.add_row(name, Text(text))
    notes = [Text(f"! {one_line(note)}", "yellow") for note in facts.get("notes") or ()]
    return Group(Text(str(facts.get("fingerprint", "")), "dim"), Text(), grid, *notes)


def summary(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The lines of the environment: a name and what to know. What cannot be read is `n/a`, or says why."""
    cpu, memory, software, switches = (facts.get(name) or {} for name in ("cpu", "memory", "software", "torch"))
    load = cpu.get("load")
    lines = [
        ("CPU", f"{fact(cpu.get('model'))}{', virtual machine' if cpu.get('virtual') else ''}"),
        ("CPUs", f"{fact(cpu.get('usable'))} of {fact(cpu.get('logical'))} usable; {_quota(cpu.get('quota'))}"),
        ("clock", f"governor {fact(cpu.get('governor'))}, turbo {fact(cpu.get('turbo'))}"),
        ("load", " ".join(f"{one:.2f}" for one in load) if load else "n/a"),
        ("threads", f"at most {fact(cpu.get('usable'))} a case, torch's own choice {fact(switches.get('threads'))}"),
        ("memory", _memory(memory)),
        ("allocator", _allocator(memory, software)),
        ("compiler", fact(software.get("compiler"))),
        ("torch", _torch(software)),
        ("CUDA", " ".join(filter(None, (fact(software.get("cuda")), _driver(facts))))),
        *_gpus(facts),
        *(("variable", f"{name}={value}") for name, value in (facts.get("variables") or {}).items()),
        *((f"native {part}", str(state)) for part, state in (facts.get("native") or {}).items()),
    ]
    return [(name, one_line(text)) for name, text in lines]


def _quota(quota: float | None) -> str:
    return "no quota" if quota is None else f"quota of {quota:g}"


def _memory(memory: Mapping[str, Any]) -> str:
    if "total" not in memory:
        return fact(memory.get("reason"))
    limit = memory.get("limit")
    of = f"{show(memory.get('available'), 'B')} free of {show(memory['total'], 'B')}"
    return f"{of}, limit {show(limit, 'B')}" if limit else of


def _allocator(memory: Mapping[str, Any], software: Mapping[str, Any]) -> str:
    pages = fact(memory.get("transparent_hugepages"))
    return f"{fact(memory.get('malloc'))} ({fact(software.get('glibc'))}), huge pages: {pages}"


def _torch(software: Mapping[str, Any]) -> str:
    if software.get("torch") is None:
        return fact(software.get("reason"))
    return f"{software['torch']}, Python {fact(software.get('python'))}, {fact(software.get('cpu_capability'))}"


def _driver(facts: Mapping[str, Any]) -> str:
    driver = (facts.get("gpu") or {}).get("driver")
    return f"(driver {driver})" if driver else ""


def _gpus(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    gpu = facts.get("gpu") or {}
    lines = [(f"GPU {number}", _gpu(device)) for number, device in enumerate(gpu.get("devices") or [])]
    reason = gpu.get("reason")
    if lines:
        return [*lines, *([("NVML", str(reason))] if reason else [])]
    return [("GPU", f"none: {fact(reason)}")]


def _gpu(device: Mapping[str, Any]) -> str:
    parts = [str(device.get("name")), show(device.get("memory"), "B")]
    if device.get("clock") is not None:
        parts.append(f"{device['clock']} of {fact(device.get('clock_max'))} MHz")
    if device.get("power_limit") is not None:
        parts.append(f"limit {device['power_limit']:.0f} W")
    if device.get("temperature") is not None:
        parts.append(f"{device['temperature']} °C")
    if device.get("throttle_reasons"):
        parts.append(f"clocks held by {fact(device['throttle_reasons'])}")
    if device.get("mig"):
        parts.append("MIG")
    return ", ".join(parts)
