"""The command line, which alone prints and exits (but for gates: gating/). Each command reads as the pipeline it is."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.markup import escape

from bench import __version__, console, ours
from bench.console import Only, SuiteFile, err, find_layer, leave, load_suite, new_folder, out
from bench.gating import commands as gating
from bench.model import Run, Status, UserError, is_surprise, load_run, run_file

# Commands import what they need when called: `--help` answers at once, and reports need no torch.

EXIT_CODES = """Exit codes: 0 fine; 1 a regression, or a case incorrect or failed that the suite does not expect to be;
2 usage or configuration; 3 inconclusive, or every case skipped and not expected to be; 4 not comparable;
70 internal error; 130 interrupted, results saved."""

app = typer.Typer(
    help="Benchmark every version of your own PyTorch layer: is it right, how fast is it, and how sure is that.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
gating.add(app)

RunFolder = Annotated[Path, typer.Argument(help="A run's folder, or its run.jsonl", show_default=False)]


@app.command()
def run(
    suite: SuiteFile = "",
    folder: Annotated[
        Path | None, typer.Option("--out", help="Folder for results", show_default="results/runs/<time>-<suite>")
    ] = None,
    only: Only = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with an interrupted run; takes its suite")] = None,
) -> None:
    """Check and time every case of a suite, then show the table and write the report.

    Every case is on disk as soon as it ends; Ctrl-C loses at most the block in hand.
    """
    from bench import runner, stats
    from bench.gating import gate
    from bench.progress import Display, outlook

    if resume and (suite or only or folder):
        remedy = "leave out SUITE, --only and --out"
        raise UserError("goes on with the suite and folder of its run", place="--resume", remedy=remedy)
    before = _load(resume) if resume else None
    resolved = before.header.suite if before else load_suite(suite).only(only or [])
    folder = resume or new_folder(folder, resolved.name)
    if not resume and (held := run_file(folder)).exists() and held.stat().st_size:
        raise UserError("holds a run already", place=str(folder), remedy=f"another --out, or --resume {folder}")
    cases = len(before.missing() if before else resolved.cases())
    if text := outlook(cases, resolved.policy):
        out.print(text, soft_wrap=True)
    try:
        with Display(out, cases) as display:
            runner.run(resolved, folder, stop_rule=stats.settled, progress=display, before=before)
    except KeyboardInterrupt:
        _interrupted(folder)
        leave(gate.Exit.INTERRUPTED)
    _show(result := _load(folder))
    _write_report(result, folder)
    if surprises := result.surprises():
        err.print(f"[red]unexpected[/]: {len(surprises)} of {len(result.measurements)} cases; see below their tables")
    plan = resolved.cases()
    code = gate.status_exit([(one.status, plan[one.case.id].expect) for one in result.measurements])
    if code is gate.Exit.INCONCLUSIVE:
        err.print("[yellow]inconclusive[/]: every case was skipped")
    leave(code)


@app.command()
def check(
    suite: SuiteFile,
    only: Only = None,
) -> None:
    """Only check a suite: is every variant right, without timing it."""
    from bench import runner
    from bench.gating import gate
    from bench.progress import Display, checked_line

    resolved = load_suite(suite).only(only or [])
    plan = resolved.cases()
    statuses: list[tuple[Status, Status]] = []
    with tempfile.TemporaryDirectory() as folder, Display(out, len(plan)) as display:
        for case, prepared in runner.check(resolved, Path(folder), progress=display):
            expected = plan[case.id].expect
            statuses.append((prepared.status, expected))
            display.line(checked_line(case, prepared, expected if is_surprise(*statuses[-1]) else None))
    skipped = sum(status is Status.SKIPPED for status, _ in statuses)
    surprises = sum(is_surprise(*pair) for pair in statuses)
    out.print(f"{len(plan) - skipped} cases checked, {skipped} skipped, {surprises} not as expected")
    leave(gate.status_exit(statuses))


@app.command()
def report(
    run: RunFolder,
    formats: Annotated[
        list[str] | None,
        typer.Option("--format", help="Only this one: markdown, html, csv or pytest-benchmark; may be repeated"),
    ] = None,
) -> None:
    """Write report.md, report.html, results.csv and plots beside a run, and show its table."""
    _show(result := _load(run))
    _write_report(result, run if run.is_dir() else run.parent, formats or [])


@app.command()
def compare(
    old: RunFolder,
    new: RunFolder,
    within: Annotated[
        float,
        typer.Option(
            help="Changes up to this fraction are the same: two runs of the same code seldom differ by more, unless "
            "the machine as a whole was slower in one"
        ),
    ] = 0.08,
) -> None:
    """Compare two runs case by case: what became faster or slower, what is missing."""
    from bench.formats import terminal
    from bench.gating import gate
    from bench.table import compare_runs, unlike

    if not 0 < within < 1:
        raise UserError(f"is {within}; between 0 and 1", place="--within", remedy="0.03 is 3 %")
    older, newer = _load(old), _load(new)
    changes = compare_runs(newer, older, within)
    out.print(terminal.render_comparison(changes, within))
    apart = unlike(older.header, newer.header)
    for difference in apart:
        err.print(f"not comparable: {escape(difference)}")
    code = gate.comparison_exit(changes, alike=not apart)
    out.print(terminal.comparison_summary(changes, code))
    leave(code)


@app.command()
def history(
    folders: Annotated[list[Path], typer.Argument(help="Runs, or folders that hold some, however deep")],
    machine: Annotated[
        str, typer.Option(help="Part of the fingerprint wanted", show_default="that of the newest run")
    ] = "",
    only: Only = None,
    folder: Annotated[Path | None, typer.Option("--out", help="Folder for plots of every case")] = None,
) -> None:
    """Show how the times of one machine went from run to run: trends, and where they stepped."""
    from bench import history as past
    from bench.formats import trend

    files = dict.fromkeys(file for given in folders for file in past.run_files(given))
    found = past.history([_load(file) for file in files], machine, only or [])
    out.print(trend.render(found), crop=False)
    if folder:
        from bench.formats import plots

        try:
            written = plots.write_history(found, folder)
        except OSError as error:
            raise UserError(f"cannot write: {error.strerror}", place=str(folder)) from None
        out.print("plots: " + ", ".join(escape(str(path)) for path in written), soft_wrap=True)


@app.command(name="pytest-benchmark")
def pytest_benchmark(
    suite: SuiteFile,
    file: Annotated[Path | None, typer.Option("--out", help="The test file", show_default="test_<suite>.py")] = None,
) -> None:
    """Write a test file that runs a suite with pytest-benchmark: `pytest test_<suite>.py`."""
    from bench.formats import pytest_file

    resolved = load_suite(suite)
    file = file or Path(pytest_file.name(resolved))
    try:
        pytest_file.write(suite, resolved, file)
    except OSError as error:
        raise UserError(f"cannot write: {error.strerror}", place=str(file)) from None
    out.print(f"wrote {escape(str(file))}: {len(resolved.cases())} cases", soft_wrap=True)


@app.command(name="list")
def list_(
    what: Annotated[str, typer.Argument(help="layers, variants, or a layer's name; layers and variants if none")] = "",
) -> None:
    """List the built-in layers with their parameters, and the variants; or what a layer has."""
    import layers
    from layers.variants import VARIANTS, made_from

    if what not in ("", "layers", "variants"):
        layer = find_layer(what)
        rows = {"parameters": console.defaults(layer), "dtypes": " ".join(layer.dtypes)}
        rows |= {"versions": " ".join(layer.versions), "made from them": " ".join(made_from(layer))}
        out.print(f"[bold]{escape(what)}[/]", soft_wrap=True)
        for title, text in rows.items():
            out.print(f"  {title:<16}{escape(text or 'none')}", soft_wrap=True)
        return
    if what != "variants":
        out.print("[bold]layers[/] (or your own: path/to/file.py:NAME, pkg.module:NAME)")
        for name in layers.BUILTIN:
            out.print(f"  {name:<16}{escape(console.defaults(layers.load(name)))}", soft_wrap=True)
    if what != "layers":
        out.print("[bold]variants[/]")
        for name, function in VARIANTS.items():
            out.print(f"  {name:<16}{escape((function.__doc__ or '').splitlines()[0])}", soft_wrap=True)


@app.command()
def build() -> None:
    """Build the native operators (C++, and CUDA where there is nvcc), or say why they cannot be built."""
    from ext import build as native

    try:
        for library in native.LIBRARIES:
            built = native.build(lambda line: out.print(f"  {escape(line)}", soft_wrap=True), library, retry=True)
            out.print(f"built {built}", soft_wrap=True)
            for part, state in native.states(library).items():
                out.print(f"  {part}: {escape(state)}", soft_wrap=True)
    except native.BuildError as error:
        raise UserError(
            f"the native operators cannot be built: {error}", remedy="cases on them will be skipped"
        ) from None


@app.command()
def portability(
    names: Annotated[list[str] | None, typer.Argument(help="Layers; the built-in ones when left out")] = None,
    folder: Annotated[
        Path | None, typer.Option("--out", help="Write portability.json, .md and .html there; a run's report shows it")
    ] = None,
) -> None:
    """Try where each variant of a layer can go: saved, loaded in Python and in C++, trained there, moved."""
    import layers
    from bench import portability as table
    from bench.formats import portability as shown
    from bench.formats import write_portability
    from bench.machine.facts import cpus
    from bench.progress import TimeBar
    from layers.variants import VARIANTS

    chosen = {name: find_layer(name) for name in names or layers.BUILTIN}
    with TimeBar(out) as bar:
        tools = table.tools(lambda line: bar.show(line, 0.0))
        result = table.survey(table.planned(chosen, tuple(VARIANTS)), tools, jobs=cpus(), progress=bar.show)
    out.print(shown.render(result))
    if folder:
        try:
            write_portability(result, folder)
        except OSError as error:
            raise UserError(f"cannot write: {error.strerror}", place=str(folder)) from None


@app.command()
def doctor(
    self_test: Annotated[bool, typer.Option(help="Also test clocks, and this machine's own noise")] = True,
    quick: Annotated[bool, typer.Option("--quick", help="Test for 20 s instead of 75: less sure of the noise")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write every fact and figure to this file")] = None,
) -> None:
    """Show what this machine is and has, and test whether its timings can be trusted: fails where they cannot."""
    from bench.gating import gate
    from bench.machine import environment
    from bench.workers import start_server

    if self_test:
        start_server()  # imports torch for the workers, beside this process
    from bench.doctor import findings, selftest
    from bench.formats import checkup, files
    from bench.progress import TimeBar

    facts = environment.describe()
    out.print(checkup.render_environment(facts))
    report = findings.Report(__version__, "", 0.0, facts)
    if self_test:
        with TimeBar(out) as bar:
            report = selftest.run(facts, seconds=20 if quick else 75, progress=bar.show)
        out.print(checkup.render(report))
    if json_file:
        try:
            files.replace_file(json_file, msgspec.json.format(msgspec.json.encode(report)))
        except OSError as error:
            raise UserError(f"cannot write: {error.strerror}", place=str(json_file)) from None
    leave(gate.Exit.BAD if report.failed else gate.Exit.OK)


@app.command()
def schema() -> None:
    """Print the JSON Schema of suites, for editors."""
    import layers
    from bench import config
    from layers.variants import VARIANTS

    sys.stdout.write(json.dumps(config.schema(layers.BUILTIN, tuple(VARIANTS)), indent=2) + "\n")


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Show the version and exit")] = False) -> None:
    if version:
        out.print(f"layerbench {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command and exit with its code; a user's mistake is one line on stderr, never a traceback."""
    console.utf8(sys.stdout, sys.stderr)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: saves, and leaves no worktrees or workers
    ours.protect()
    sys.path.append(str(Path.cwd()))  # a user's pkg.module:NAME; last, so that it hides no library
    sys.exit(command(sys.argv[1:]))


def command(arguments: list[str]) -> int:
    """Run one command line and return its exit code."""
    try:
        code = app(arguments, prog_name="layerbench", standalone_mode=False)
        sys.stdout.flush()
    except SystemExit:  # rich's and click's answer to a reader of the output who has left
        return 128 + signal.SIGPIPE
    except UserError as error:
        err.print(f"[red]error[/]: {escape(str(error))}")
        return 2
    except (KeyboardInterrupt, typer.Abort):
        err.print("interrupted")
        return 130
    except Exception as error:
        if hasattr(error, "show"):  # a usage error: click's in older typers, typer's own in newer ones
            error.show()
            return 2
        if isinstance(error, OSError) and console.takes_no_more(error):
            err.print(f"[red]error[/]: cannot write the output: {error.strerror}")
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python tries, and complains, once more
            return 2
        traceback.print_exc()
        err.print("[red]internal error[/]: this is layerbench's fault; please report it with the lines above")
        return 70
    return code if isinstance(code, int) else 0


def _load(path: Path) -> Run:
    result = load_run(path)
    for problem in result.problems:
        err.print(f"[yellow]warning[/]: {escape(problem)}")
    missing = result.missing()
    if missing:
        text = f"{len(missing)} of {len(result.header.suite.cases())} cases not measured"
        err.print(f"[yellow]warning[/]: {text}; layerbench run --resume {escape(str(path))}")
    return result


def _show(result: Run) -> None:
    from bench.formats import terminal

    out.print(terminal.render(result))


def _interrupted(folder: Path) -> None:
    """Show what was measured, and say how to go on."""
    try:
        result = load_run(folder)
    except UserError:  # it ended before its header was on disk
        err.print("interrupted: nothing is saved")
        return
    if result.measurements:
        _show(result.measured())
    done, planned = len(result.measurements), sum(len(block.cases) for block in result.header.suite.blocks)
    err.print(f"interrupted: {done} of {planned} cases saved; layerbench run --resume {escape(str(folder))}")


def _write_report(result: Run, folder: Path, formats: Sequence[str] = ()) -> None:
    from bench.formats import html, write_report

    try:
        written = write_report(result, folder, formats)
    except OSError as error:
        raise UserError(f"cannot write the report: {error.strerror}", place=str(folder)) from None
    names = dict.fromkeys(path.name if path.parent == folder else f"{path.parent.name}/" for path in written)
    log = folder / "workers.log"  # what layers printed, and how workers died
    if html.FILE not in names:
        out.print(f"wrote {', '.join(escape(str(folder / name)) for name in names)}", soft_wrap=True)
        return
    names |= {log.name: None} if log.is_file() and log.stat().st_size else {}
    others = ", ".join(escape(name) for name in names if name != html.FILE)
    out.print(f"report: {escape(str(folder / html.FILE))}  (also {others})", soft_wrap=True)
