"""What a gate found: a table for a terminal, Markdown for a pull request, JUnit XML for CI. Its JSON is the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import msgspec
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bench.formats.cells import names, one_line
from bench.formats.files import replace_file
from bench.formats.markdown import escape
from bench.formats.markdown import line as table_line
from bench.gating.gate import Entry, Line, Report, Result, excused
from bench.units import percent, show

SCREEN = 32  # lines of a table beyond which cases that are ok are only counted
STYLES = {
    Result.REGRESSED: "bold red",
    Result.BROKEN: "bold red",
    Result.LOST: "bold red",
    Result.INCONCLUSIVE: "yellow",
    Result.IMPROVED: "green",
    Result.OK: "green",
    Result.NEW: "cyan",
}
MARKS = {
    Result.REGRESSED: "🔴",
    Result.BROKEN: "🔴",
    Result.LOST: "⚪",
    Result.INCONCLUSIVE: "🟡",
    Result.IMPROVED: "🟢",
    Result.NEW: "🔵",
}
ENDINGS = {
    0: "pass: nothing is slower",
    1: "fail: something is slower or broken",
    3: "inconclusive: too noisy to say",
    4: "not comparable",
}
_LEGEND = "change: new / old - 1, ± half of its 95 % interval (of instructions: of what single calls took)"


def render(report: Report) -> RenderableType:
    """A line a case, what needs explaining below, then the ending."""
    shown = _shown(report)
    short = names([line.case for line in report.lines])
    metrics = _metrics(report)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("case", overflow="fold", ratio=1)
    for metric in metrics:
        table.add_column(metric, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for line in shown:
        cells = [Text(_change(_entry(line, metric))) for metric in metrics]
        table.add_row(Text(short[line.case]), *cells, Text(str(line.result), STYLES.get(line.result, "dim")))
    hidden = len(report.lines) - len(shown)
    return Group(
        Text.assemble((report.suite, "bold"), f"  {report.old} -> {report.new}"),
        *([table] if report.lines else []),
        *([Text(f"and {hidden} more that are ok", "dim")] if hidden else []),
        *(Text(f"! {one_line(text)}", "bold red") for text in report.problems),
        *(Text(f"  {text}", "yellow") for text in remarks(report)),
        *(Text(f"  {one_line(text)}", "dim") for text in report.notes),
        *([Text(_canaries(report), "dim")] if report.canaries else []),
        Text(_LEGEND, "dim"),
        Text(summary(report), STYLES.get(_worst(report), "bold")),
    )


def markdown(report: Report) -> str:
    """A comment for a pull request: the ending, what is not ok, and the whole table folded away."""
    lines = [f"### layerbench gate: {_ending(report)}", "", escape(summary(report)), ""]
    lines += [f"{escape(report.old)} → {escape(report.new)}", ""]
    lines += [f"- **{escape(text)}**" for text in report.problems]
    lines += [f"- {escape(text)}" for text in [*remarks(report), *report.notes]]
    loud = [line for line in report.lines if line.result in MARKS]
    if loud:
        lines += ["", *_table(report, loud)]
    lines += ["", "<details><summary>All cases</summary>", "", *_table(report, report.lines), "", "</details>", ""]
    if _metrics(report):
        times = "of times a trimmed mean over generations, not the ratio of the two beside it, which are the lowest"
        lines += [f"{_LEGEND}; {times}", ""]
    return "\n".join(lines)


def junit(report: Report) -> str:
    """A test a case: a regression is a failure; what is broken, lost or inconclusive an error, so that none passes.
    What is new is a test skipped."""
    kinds = {Result.REGRESSED: "failure", Result.SKIPPED: "skipped", Result.NEW: "skipped"}
    kinds |= dict.fromkeys((Result.BROKEN, Result.LOST, Result.INCONCLUSIVE), "error")
    whole = [Line("the whole suite", report.whole.result, "", (report.whole,))] if report.whole else []
    problems = [Line(text, Result.LOST, text) for text in report.problems]
    lines = [*report.lines, *whole, *problems]
    counts = Counter(kinds.get(line.result, "") for line in lines)
    suite = ElementTree.Element(
        "testsuite",
        name=f"layerbench gate {report.suite}",
        tests=str(len(lines)),
        failures=str(counts["failure"]),
        errors=str(counts["error"]),
        skipped=str(counts["skipped"]),
        time=f"{report.seconds:.1f}",
        timestamp=report.started,
    )
    for line in lines:
        test = ElementTree.SubElement(suite, "testcase", classname=f"layerbench.{report.suite}", name=line.case)
        # What made the verdict first: some readers of the file show no more than the message's beginning.
        told = sorted(line.entries, key=lambda entry: entry.result is not line.result)
        changes = ", ".join(map(_figures, told))
        if kind := kinds.get(line.result):
            message = "; ".join(filter(None, (changes, line.reason)))
            child = ElementTree.SubElement(test, kind, message=_xml(f"{line.result}: {message}"))
            child.set("type", str(line.result))
        if changes:
            ElementTree.SubElement(test, "system-out").text = _xml(changes)
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def write(report: Report, folder: Path) -> list[Path]:
    """gate.json, gate.md and junit.xml in a folder. Raises OSError."""
    pages = {
        folder / "gate.md": markdown(report).encode(),
        folder / "junit.xml": junit(report).encode(),
        folder / "gate.json": msgspec.json.format(
            msgspec.json.encode({"exit": int(report.exit)} | msgspec.to_builtins(report))
        ),
    }
    for path, content in pages.items():
        replace_file(path, content)
    return list(pages)


def summary(report: Report) -> str:
    """The ending in a line: `fail: ...: 1 regressed, 22 ok; took 131 s`."""
    counts = ", ".join(f"{number} {result}" for result in Result if (number := report.count(result)))
    return f"{_ending(report)}: {counts or 'no cases'}; took {report.seconds:.0f} s"


def _ending(report: Report) -> str:
    return "pass: nothing could be compared yet, all is new" if report.unprecedented else ENDINGS[report.exit]


def remarks(report: Report) -> Iterator[str]:
    """What needs more words than a cell has."""
    if report.whole and report.whole.result is not Result.OK:
        yield f"the whole suite {report.whole.result}: {_change(report.whole)} in what all cases have in common"
    short, beside = names([line.case for line in report.lines]), list[float]()
    for line in report.lines:
        if line.reason and line.result not in (Result.SKIPPED, Result.EXPECTED, Result.NEW):
            yield f"{short[line.case]}: {one_line(line.reason)[:240]}"
        for entry in line.entries:
            if line.result is not Result.INCONCLUSIVE and excused(entry, line.entries):
                beside.append(entry.noise or 0.0)
            elif entry.result is Result.INCONCLUSIVE:
                yield f"{short[line.case]}: {_doubt(entry)}"
    if beside:
        yield f"latency of {len(beside)} cases too noisy to judge (up to {percent(max(beside))}): device time decides"
    for result, words in ((Result.NEW, "new"), (Result.SKIPPED, "skipped, nothing compared")):
        reasons = Counter(line.reason for line in report.lines if line.result is result)
        yield from (f"{cases} {words}: {one_line(reason)[:240]}" for reason, cases in reasons.items())


def _doubt(entry: Entry) -> str:
    if entry.metric == "instructions":
        return f"instructions inconclusive: its single calls differ too much ({_change(entry)}, of {entry.generations})"
    words = f"{entry.metric} inconclusive after {entry.generations} generations"
    if entry.noise is not None and entry.sees is not None:
        words += f": noise {percent(entry.noise)} a generation, so this run sees a slow-down of {percent(entry.sees)}"
    return words + (f"; about {entry.needs} generations would decide" if entry.needs else "")


def _canaries(report: Report) -> str:
    entries = [entry for line in report.canaries for entry in line.entries]
    return f"canaries, the same code on both sides: {', '.join(map(_change, entries))}"


def _change(entry: Entry | None) -> str:
    """`+3.1 % ± 0.9`."""
    if entry is None:
        return ""
    if entry.low is None or entry.high is None or entry.ratio >= 10:
        return _signed(entry.ratio)
    return f"{_signed(entry.ratio)} ± {50 * (entry.high - entry.low):.1f}"


def _figures(entry: Entry) -> str:
    """`latency +159.8 % ± 2.1 (1.00 ms -> 2.60 ms)`; what all cases have in common has no times."""
    times = "" if entry.metric == "all" else f" ({show(entry.old, entry.unit)} -> {show(entry.new, entry.unit)})"
    return f"{entry.metric} {_change(entry)}{times}"


def _signed(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %" if ratio < 10 else f"x{ratio:.1f}"


def _entry(line: Line, metric: str) -> Entry | None:
    return next((entry for entry in line.entries if entry.metric == metric), None)


def _metrics(report: Report) -> list[str]:
    return list(dict.fromkeys(entry.metric for line in report.lines for entry in line.entries))


def _shown(report: Report) -> list[Line]:
    if len(report.lines) <= SCREEN:
        return list(report.lines)
    return [line for line in report.lines if line.result in MARKS]


def _worst(report: Report) -> Result:
    return {1: Result.REGRESSED, 3: Result.INCONCLUSIVE, 4: Result.LOST}.get(report.exit, Result.OK)


def _table(report: Report, lines: tuple[Line, ...] | list[Line]) -> Iterator[str]:
    metrics, short = _metrics(report), names([line.case for line in report.lines])
    yield table_line(
        ["case", *(f"{name}" for metric in metrics for name in (f"{metric}, old", "new", "change")), "verdict"]
    )
    yield table_line([":---", *("---:" for _ in metrics for _ in range(3)), ":---"])
    for line in lines:
        cells = [cell for metric in metrics for cell in _cells(_entry(line, metric))]
        verdict = f"{MARKS.get(line.result, '')} {line.result}".strip()
        yield table_line([escape(short[line.case]), *map(escape, cells), verdict])


def _cells(entry: Entry | None) -> tuple[str, str, str]:
    if entry is None:
        return "", "", ""
    return show(entry.old, entry.unit), show(entry.new, entry.unit), _change(entry)


def _xml(text: str) -> str:
    """Without the control characters that XML cannot hold."""
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "�" for letter in text)
