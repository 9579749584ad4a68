"""The part of the command line that gates a change: `gate` and `baseline update`."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.markup import escape

from bench.console import Only, err, leave, load_suite, new_folder, out
from bench.model import Suite, UserError, layer_path

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from bench.gating.arms import Arm
    from bench.gating.gate import Line, Report
    from bench.protocol import Looked
    from bench.workers import Workers

SuiteOption = Annotated[str, typer.Option("--suite", help="A YAML suite, or a layer: path.py:NAME", show_default=False)]
Repository = Annotated[
    Path | None, typer.Option(help="Repository of the code under test", show_default="that of the suite's layers")
]
Folder = Annotated[
    Path | None, typer.Option("--out", help="Folder for results", show_default="results/runs/<time>-gate-<suite>")
]


MEANT = "--allow-dropped if that is meant"

baseline = typer.Typer(help="Keep stored baselines.", no_args_is_help=True)


def add(app: typer.Typer) -> None:
    """Add these commands to the command line."""
    app.command()(gate)
    app.add_typer(baseline, name="baseline")


def gate(
    suite: SuiteOption,
    against: Annotated[str, typer.Option(help="The old revision: a branch, tag or commit", show_default=False)] = "",
    revision: Annotated[str, typer.Option(help="The new one", show_default="the working tree")] = "",
    stored: Annotated[
        Path | None, typer.Option("--baseline", help="Compare with this file of `baseline update` instead")
    ] = None,
    ratios: Annotated[
        bool, typer.Option("--ratios", help="Take another machine's baseline too, as ratios and as a warning only")
    ] = False,
    metrics: Annotated[
        list[str] | None,
        typer.Option("--metric", help="latency or instructions; may be repeated", show_default="latency"),
    ] = None,
    repo: Repository = None,
    seconds: Annotated[float, typer.Option(help="Most that the generations may take")] = 300.0,
    only: Only = None,
    dropped: Annotated[
        bool, typer.Option("--allow-dropped", help="Let cases be gone that the old revision's suite had")
    ] = False,
    folder: Folder = None,
) -> None:
    """Is anything slower than in another revision? Fails where it is, and says so where it cannot tell.

    Fresh processes of both revisions take turns; whatever is still undecided after 8 pairs goes on to 16 and 24.
    """
    from bench.gating import gaterun
    from bench.gating.gate import Exit
    from bench.progress import TimeBar

    if bool(against) == bool(stored):
        raise UserError("one thing to compare with is needed", remedy="--against REV, or --baseline FILE")
    metrics = metrics or ["latency"]
    if wrong := [name for name in metrics if name not in ("latency", "instructions")]:
        raise UserError(f"no metric {wrong[0]!r}", place="--metric", remedy="latency or instructions")
    if not 0 < seconds < float("inf"):
        raise UserError(f"is {seconds:g}; more than 0 s", place="--seconds", remedy="300, say, which is the default")
    if stored and metrics != ["latency"]:
        raise UserError("a baseline holds no instruction counts", remedy="--against REV counts both sides")
    if stored and only:
        raise UserError("a part of a suite cannot be compared with a baseline of all of it", remedy="leave out --only")
    resolved = load_suite(suite).only(only or [])
    place = new_folder(folder, f"gate-{resolved.name}")
    try:
        if stored:
            report = _against_baseline(resolved, repo, stored, ratios, place)
        else:
            with _arms(resolved, repo, against, revision) as pair, TimeBar(out) as bar:
                report = gaterun.run(resolved, pair, place, bar.show, metrics=metrics, seconds=seconds)
                lost = () if dropped else _dropped(resolved, suite, pair, only or [], report, place / "workers.log")
            report = msgspec.structs.replace(report, lines=(*report.lines, *lost))
    except KeyboardInterrupt:
        err.print(f"interrupted: what was measured is in {escape(str(place / gaterun.FILE))}")
        leave(Exit.INTERRUPTED)
    except UserError:
        with suppress(OSError):  # not where something is in it
            place.rmdir()
        raise
    _show(report, place)
    leave(report.exit)


@baseline.command()
def update(
    suite: SuiteOption,
    repo: Repository = None,
    target: Annotated[Path, typer.Option("--to", help="Folder of the baselines")] = Path("results/baselines"),
    folder: Folder = None,
) -> None:
    """Measure a suite and keep its times as this machine's baseline, with their noise."""
    from bench.gating import arms, baselines
    from bench.gating.gate import Exit
    from bench.model import Status
    from bench.progress import TimeBar, one_line
    from bench.units import percent

    resolved = load_suite(suite)
    place = new_folder(folder, f"gate-{resolved.name}")
    arm = arms.working_tree(_repository(resolved, repo), _cache())
    with TimeBar(out) as bar:
        machine = baselines.fingerprint(resolved, arm, place)
        measured = baselines.measure(resolved, arm, place, bar.show, machine)
    for one in measured.stored:
        text = f"noise {percent(one.noise)}" if one.status is Status.OK else f"{one.status}: {one_line(one.reason)}"
        out.print(f"  {escape(one.key)}  {escape(text)}", soft_wrap=True)
    bad = [one for one in measured.stored if one.status in (Status.INCORRECT, Status.FAILED)]
    plan = resolved.cases()
    if surprises := [one.case for one in bad if one.case not in plan or plan[one.case].expect is not one.status]:
        err.print(f"[red]not written[/]: {escape(', '.join(surprises))} came out otherwise than the suite expects")
        leave(Exit.BAD)
    path = baselines.path_of(machine, resolved.name, target)
    baselines.save(measured, path)
    out.print(f"baseline: {escape(str(path))}", soft_wrap=True)


def _arms(suite: Suite, repo: Path | None, against: str, revision: str) -> AbstractContextManager[tuple[Arm, Arm]]:
    from bench.gating import arms

    return arms.arms(_repository(suite, repo), against, revision or None, _cache())


class _Looks:
    """Layers as an arm has them: its code is for a worker of the arm to run. Two revisions in one process would define
    the same operators twice, and share the first one's helpers.

    Of the last layer asked for, `told` is why it could not be loaded, and `absent` whether there is none.
    """

    def __init__(self, workers: Workers, timeout: float) -> None:
        self._workers, self._timeout = workers, timeout
        self.told, self.absent = "", False

    def at(self, arm: Arm, name: str) -> Looked:
        """Raises LookupError where the arm has no such layer, RuntimeError where it could not be loaded."""
        from bench.protocol import Failed, Look, Looked
        from bench.workers import WorkerDied

        try:
            answer = self._workers.ask(arm.name, Look(arm.layer(name)), self._timeout)
        except WorkerDied as death:
            answer = Failed(str(death))
        if isinstance(answer, Looked):
            self.absent = bool(answer.absent)
            if answer.absent:
                raise LookupError(answer.absent)
            return answer
        self.told = f"loading {name}: {answer.reason if isinstance(answer, Failed) else answer}"
        raise RuntimeError(self.told)


def _dropped(
    suite: Suite, name: str, pair: tuple[Arm, Arm], only: list[str], report: Report, log: Path
) -> tuple[Line, ...]:
    """What the old revision has and the new one no longer has: gone or renamed is no pass."""
    from bench.workers import Workers

    with Workers(log, suite.policy.allocator, {arm.name: arm for arm in pair}) as workers:
        looks, before = _Looks(workers, suite.policy.timeout), _before(name, pair[0])
        return _gone(suite, before, pair[0], only, looks) if before else _renamed(suite, pair, report, looks)


def _gone(suite: Suite, before: str, old: Arm, only: list[str], looks: _Looks) -> tuple[Line, ...]:
    """The cases that the suite's file (or a layer, for all its versions) has in the old revision alone."""
    from bench.gating.gate import Line, Result

    def shown(text: str) -> str:
        return text.replace(f"{old.root}/", "")

    try:
        cases = load_suite(before, lambda layer: looks.at(old, layer)).cases().values()
    except UserError as error:
        if looks.absent and not Path(before).is_file():  # a layer in the suite's place: it is new
            return ()
        words = shown(f"the suite as {old.label} has it: {looks.told or error}")
        return (Line(shown(before), Result.LOST, words),)
    now = {old.case(planned.case).id for planned in suite.cases().values()}
    then = [old.case(planned.case).id for planned in cases]
    gone = [shown(name) for name in then if name not in now and all(text in name for text in only)]
    return tuple(Line(name, Result.LOST, f"in the suite of {old.label}, not in this one; {MEANT}") for name in gone)


def _renamed(suite: Suite, pair: tuple[Arm, Arm], report: Report, looks: _Looks) -> tuple[Line, ...]:
    """The versions that layers have lost while something of them is new: of a suite that the old revision does not
    have, nothing else tells that a version was renamed."""
    from bench.gating.gate import Line, Result

    plan, lines = suite.cases(), list[Line]()
    for layer in dict.fromkeys(plan[line.case].case.layer for line in report.lines if line.result is Result.NEW):
        try:
            before, now = (looks.at(arm, layer).versions for arm in pair)
        except (LookupError, RuntimeError):  # it is new as a whole; or else the check has told
            continue
        why = f"a version in {pair[0].label} that is gone, while others of this layer are new; {MEANT}"
        lines += [Line(f"{layer}/{version}", Result.LOST, why) for version in before if version not in now]
    return tuple(lines)


def _before(name: str, old: Arm) -> str | None:
    """What stands for the suite in the old revision: its file as it was there, or the layer by its name there. None of
    a file that the revision does not have."""
    file = Path(name).resolve()
    if layer_path(name) or not file.is_file():
        return old.layer(name)
    before = old.root / file.relative_to(old.repository) if file.is_relative_to(old.repository) else None
    return str(before) if before and before.is_file() else None


def _against_baseline(suite: Suite, repo: Path | None, file: Path, ratios: bool, folder: Path) -> Report:
    from bench.gating import arms, baselines
    from bench.progress import TimeBar

    old = baselines.load(file)
    arm = arms.working_tree(_repository(suite, repo), _cache())
    begin = time.monotonic()
    with TimeBar(out) as bar:
        machine = baselines.fingerprint(suite, arm, folder)
        why = baselines.refusal(old, suite, machine)
        if why and not ratios:
            return baselines.refused(old, suite.name, why)
        new = baselines.measure(suite, arm, folder, bar.show, machine)
    return (baselines.ratios if why else baselines.compare)(old, new, suite, time.monotonic() - begin)


def _show(report: Report, folder: Path) -> None:
    from bench.formats import verdicts

    out.print(verdicts.render(report))
    try:
        written = verdicts.write(report, folder)
        if step := os.environ.get("GITHUB_STEP_SUMMARY"):
            with Path(step).open("a", encoding="utf-8") as file:
                file.write(verdicts.markdown(report))
    except OSError as error:
        raise UserError(f"cannot write: {error.strerror}", place=str(folder)) from None
    names = ", ".join(path.name for path in written)
    out.print(f"in {escape(str(folder))}: {names}", soft_wrap=True)


def _repository(suite: Suite, given: Path | None) -> Path:
    """The one that holds the code under test: a user's own layers come before ours."""
    from bench.gating import arms

    if given:
        return Path(arms.git(given, "rev-parse", "--show-toplevel", remedy="--repo names a folder of a git repository"))
    names = dict.fromkeys(planned.case.layer for planned in suite.cases().values())
    own = [name for name in names if ":" in name]
    files = [file for name in own or names if (file := arms.layer_file(name))]
    found = arms.repository_of(files)
    if found is None and files and arms.checkout_of(files[0].parent):
        remedy = "git add and commit it: a gate compares revisions"
        raise UserError("is not in its git repository yet", place=str(files[0]), remedy=remedy)
    if found is None:
        raise UserError(
            f"no git repository holds {files[0] if files else 'the layers'}", remedy="say which with --repo"
        )
    return found


def _cache() -> Path:
    from ext import build

    return build.cache()
