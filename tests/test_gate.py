"""The gate beyond its statistics: what ran, what is comparable, exit codes, formats, whole commands on real workers."""

from __future__ import annotations

import hashlib
import io
import json
import math
import random
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
from rich.console import Console
from runs import case, ok

from bench import cli
from bench.formats import verdicts
from bench.formats.cells import names
from bench.gating import ab, arms, gate, gaterun
from bench.gating.ab import Effort, Ran, Shot
from bench.gating.arms import Arm
from bench.gating.gate import Entry, Exit, Line, Report, Result
from bench.gating.verdicts import SUITE, Estimate, Finding, Outcome, Rule
from bench.model import Block, Case, Direction, Planned, Policy, Status, Suite, UserError, Verdict
from bench.protocol import Answer, Finish, Finished, Prepare, Prepared, Proof, Request, Sample, Turn
from bench.stats import Comparison

LAYER = """
import torch
from torch import nn
from layers import Layer

class Work(nn.Module):
    def forward(self, x):
        for _ in range({steps}):
            x = x + 1
        return x

def inputs(generator):
    return (torch.randn(64, generator=generator),)

WORK = Layer("work", {{"eager": Work}}, inputs)
STILL = Layer("still", {{"eager": nn.Identity}}, inputs)
"""
POLICY = {"slot": 0.0005, "slots": 2, "warmup_seconds": 0.02, "warmup_calls": 1, "timeout": 60}
OK = Prepared(Status.OK)


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=x", "-c", "user.email=x@example.com", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def commit(folder: Path, **files: str) -> str:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "--allow-empty", "-m", "a change")
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A user's repository with one commit of their layers."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    git(folder, "init", "-q")
    commit(folder, mine=LAYER.format(steps=4))
    return folder.resolve()


def suite_file(repository: Path, *names: str) -> Path:
    groups = [
        {"layer": f"{repository / 'mine.py'}:{name}", "axes": {"threads": 1, "direction": "inference"}}
        for name in names
    ]
    path = repository.parent / "theirs.yaml"
    path.write_text(json.dumps({"policy": POLICY, "groups": groups}), encoding="utf-8")
    return path


def run_gate(repository: Path, *names: str, against: str = "HEAD") -> tuple[int, Report]:
    folder = repository.parent / "out"
    arguments = ["gate", "--suite", str(suite_file(repository, *names)), "--against", against, "--out", str(folder)]
    code = cli.command(arguments)
    return code, msgspec.json.decode((folder / "gate.json").read_bytes(), type=Report)


def an_arm(root: Path, repository: Path) -> Arm:
    return Arm("A", "HEAD", "0" * 40, False, repository, root, (), root)


def entry(result: Result, metric: str = "latency", ratio: float = 1.0) -> Entry:
    return Entry(
        metric=metric, unit="s", result=result, ratio=ratio, old=1e-3, new=ratio * 1e-3, low=ratio * 0.99,
        high=ratio * 1.01, noise=0.03, sees=0.09, needs=40, generations=24,
    )  # fmt: skip


def report(*results: Result, whole: Entry | None = None, problems: tuple[str, ...] = ()) -> Report:
    lines = [
        gate.line_of(f"case <{number}> | a", [entry(result)])
        if result in (Result.REGRESSED, Result.INCONCLUSIVE, Result.IMPROVED, Result.OK)
        else Line(f"case <{number}> | a", result, "because\nof this")
        for number, result in enumerate(results)
    ]
    return Report(
        suite="s", old="main (1234567)", new="the working tree", started="2026-01-02T03:04:05+00:00", seconds=12.0,
        lines=tuple(lines), whole=whole, problems=problems,
    )  # fmt: skip


# What ran


def test_a_block_of_turns_is_abba_or_baab() -> None:
    rng = random.Random(0)
    assert {"".join(ab.block(["A", "B"], rng)) for _ in range(50)} == {"ABBA", "BAAB"}
    assert ab.block(["B"], rng) == ["B", "B"]


def test_a_ratio_is_of_the_lowest_slots_new_over_old() -> None:
    shot = Shot(0, "a", "latency", {"A": (2.0, 1.0, 9.0), "B": (4.0, 3.0)})
    assert shot.log_ratio == pytest.approx(1.0986, abs=1e-4)
    assert (shot.key, ab.key("a", "device")) == ("a", "a (device)")
    assert (ab.kind("a"), ab.kind("a (device)"), ab.case_of("a (device)")) == ("cpu", "cuda", "a")


class Scripted:
    """Workers whose case takes what `times` says: by arm and number of the sample."""

    times: Callable[[str, int], float]
    asked: list[tuple[str, int]]
    warnings: tuple[str, ...] = ()

    def __init__(self, log: Path, allocator: str, arms: dict[str, Arm]) -> None:
        pass

    def __enter__(self) -> Scripted:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def ask(self, name: str, request: Request, timeout: float) -> Answer:
        match request:
            case Prepare():
                return OK
            case Sample(number):
                self.asked.append((name, number))
                return Turn({"latency": (self.times(name, number),)})
            case Finish():
                return Finished(msgspec.structs.replace(ok(case(), 1e-3), warnings=self.warnings))
            case _:
                return Proof({})


def generations(
    monkeypatch: pytest.MonkeyPatch, count: int, times: Callable[[str, int], float]
) -> tuple[list[Shot], list[tuple[str, int]]]:
    monkeypatch.setattr(Scripted, "times", staticmethod(times), raising=False)
    monkeypatch.setattr(Scripted, "asked", [], raising=False)
    monkeypatch.setattr(ab, "Workers", Scripted)
    pair = tuple(replace(an_arm(Path("/a"), Path("/b")), name=name) for name in "AB")
    pairs = ab.Pairs(pair, Policy(), Effort(Rule(), 2, 0.15, metrics=("latency",)), Path("/log"))
    events = [event for number in range(count) for event in pairs.generation(number, [case()])]
    return [event for event in events if isinstance(event, Shot)], Scripted.asked


def test_a_generation_is_two_blocks_of_turns_of_either_arm(monkeypatch: pytest.MonkeyPatch) -> None:
    shots, asked = generations(monkeypatch, 1, lambda name, number: 2.0 if name == "B" else 1.9)
    assert [len(shot.slots["A"]) for shot in shots] == [4]
    assert {"".join(name for name, _ in asked[start : start + 4]) for start in (0, 4)} <= {"ABBA", "BAAB"}
    assert [number for _, number in asked] == list(range(8))


def test_a_disturbed_case_is_measured_again_at_the_end_and_in_both_arms(monkeypatch: pytest.MonkeyPatch) -> None:
    shots, asked = generations(
        monkeypatch, 2, lambda name, number: 2.0 if name == "B" and 1000 <= number < 1500 else 1.0
    )
    assert [len(shot.slots["A"]) for shot in shots] == [4, 8]
    assert [len(shot.slots["B"]) for shot in shots] == [4, 8]
    assert [shot.log_ratio for shot in shots] == [0.0, 0.0]
    assert [number for _, number in asked][-8:] == list(range(1500, 1508))


def test_what_stays_slow_is_measured_again_once_and_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    shots, _ = generations(monkeypatch, 2, lambda name, number: 2.0 if name == "B" else 1.0)
    assert [len(shot.slots["B"]) for shot in shots] == [8, 4]  # from then on that is what B takes
    assert [shot.log_ratio for shot in shots] == pytest.approx([math.log(2)] * 2)


@pytest.mark.parametrize(("noise", "reason"), [(0.2, "got faster while it was sampled"), (0.0, "")])
def test_an_inconclusive_case_says_what_was_odd_about_its_measurement(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, noise: float, reason: str
) -> None:
    rng = random.Random(0)
    monkeypatch.setattr(Scripted, "times", staticmethod(lambda *_: math.exp(rng.gauss(0, noise))), raising=False)
    monkeypatch.setattr(Scripted, "asked", [], raising=False)
    monkeypatch.setattr(Scripted, "warnings", ("got faster while it was sampled",))
    monkeypatch.setattr(ab, "Workers", Scripted)
    pair = tuple(replace(an_arm(Path("/a"), Path("/b")), name=name) for name in "AB")
    pairs = ab.Pairs(pair, Policy(), Effort(Rule(looks=(4,)), 1, 0.15, metrics=("latency",)), Path("/log"))
    with gaterun.Record(tmp_path / "gate.jsonl") as record:
        nothing: dict[str, dict[str, str]] = {"A": {}, "B": {}}
        part = gaterun.Times(pairs, record, lambda *_: None, 60, nothing, [case()], []).part()
    line = part.lines[case().id]
    assert (line.result, line.reason) == (Result.INCONCLUSIVE if reason else Result.OK, reason)


@pytest.mark.parametrize(
    ("found", "code"),
    [
        ([("ok", "ok"), ("skipped", "ok")], Exit.OK),
        ([("skipped", "ok"), ("skipped", "skipped")], Exit.INCONCLUSIVE),
        ([("skipped", "skipped")], Exit.OK),
        ([("incorrect", "incorrect"), ("skipped", "ok")], Exit.OK),
        ([("skipped", "ok"), ("ok", "incorrect")], Exit.BAD),
        ([("ok", "skipped")], Exit.BAD),
    ],
)
def test_nothing_but_skipped_cases_is_inconclusive_unless_expected(found: list[tuple[str, str]], code: Exit) -> None:
    assert gate.status_exit([(Status(status), Status(expected)) for status, expected in found]) is code


def test_an_arm_with_a_layers_package_of_its_own_is_entered_with_ours(tmp_path: Path) -> None:
    (tmp_path / "layers").mkdir()
    (tmp_path / "layers" / "__init__.py").write_text("raise RuntimeError('not ours')", encoding="utf-8")
    (tmp_path / "mine.py").write_text("from layers import BUILTIN", encoding="utf-8")
    code = (
        "import sys; from pathlib import Path; from bench.gating.arms import Arm; here = Path(sys.argv[1]); "
        "Arm('B', 'REV', '0' * 40, False, here, here, (str(here),), here).enter(); "
        "import mine, layers.variants; print(mine.BUILTIN == layers.BUILTIN)"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    assert (
        subprocess.run(command, check=True, capture_output=True, text=True, cwd=Path(__file__).parent.parent).stdout
        == "True\n"
    )


def test_an_arm_of_layerbench_itself_is_entered_with_its_own_layers(tmp_path: Path) -> None:
    for file in ("layers/__init__.py", "layers/variants.py", "ext/__init__.py", "ext/build.py"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    code = (
        "import sys; from pathlib import Path; from bench import ours; from bench.gating.arms import Arm; "
        "ours.protect(); here = Path(sys.argv[1]); "
        "Arm('A', 'REV', '0' * 40, False, here, here, (str(here / 'src'), str(here)), here).enter(); "
        "import layers.variants, ext.build; print(layers.variants.__file__, ext.build.__file__)"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=Path(__file__).parent.parent)
    assert done.stdout.split() == [str(tmp_path / "layers/variants.py"), str(tmp_path / "ext/build.py")]


def test_a_generation_of_no_cases_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ab, "Workers", Scripted)
    pair = tuple(replace(an_arm(Path("/a"), Path("/b")), name=name) for name in "AB")
    pairs = ab.Pairs(pair, Policy(), Effort(Rule(), 2, 0.15), Path("/log"))
    assert [type(event) for event in pairs.generation(0, [])] == [Ran, Ran]


def test_an_interrupt_does_not_wait_for_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    killed = threading.Event()

    class Stuck(Scripted):
        def ask(self, name: str, request: Request, timeout: float) -> Answer:
            if name == "A":
                raise KeyboardInterrupt
            assert killed.wait(60)
            return OK

        def kill(self) -> None:
            killed.set()

    monkeypatch.setattr(ab, "Workers", Stuck)
    pair = tuple(replace(an_arm(Path("/a"), Path("/b")), name=name) for name in "AB")
    pairs = ab.Pairs(pair, Policy(), Effort(Rule(), 2, 0.15), Path("/log"))
    with pytest.raises(KeyboardInterrupt):
        list(pairs.check([case()]))
    assert killed.is_set()


def test_a_metric_that_one_revision_lost_is_no_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    class WithoutDevice(Scripted):
        def ask(self, name: str, request: Request, timeout: float) -> Answer:
            if isinstance(request, Sample):
                device: dict[str, tuple[float, ...]] = {"device": (1e-4,)} if name == "A" else {}
                return Turn(device | {"latency": (1e-3,)})
            return super().ask(name, request, timeout)

    monkeypatch.setattr(ab, "Workers", WithoutDevice)
    pair = tuple(replace(an_arm(Path("/a"), Path("/b")), name=name) for name in "AB")
    pairs = ab.Pairs(pair, Policy(), Effort(Rule(), 2, 0.15), Path("/log"))
    (broke,) = [event for event in pairs.generation(0, [case()]) if isinstance(event, ab.Broke)]
    assert (broke.arm, broke.reason) == ("B", "no device time, which the other revision has")


def test_slots_of_a_case_measured_twice_all_count() -> None:
    first = Shot(0, "a", "latency", {"A": (2.0,), "B": (4.0,)})
    again = Shot(0, "a", "latency", {"A": (1.0,), "B": (5.0,)})
    assert ab.joined([first], again).slots == {"A": (2.0, 1.0), "B": (4.0, 5.0)}
    assert ab.joined([], again) == again


def test_every_device_of_a_suite_has_its_canaries() -> None:
    found = ab.canaries([case(device="cpu"), case(device="cuda"), case(device="cpu", k=2)])
    assert [(one.device, one.layer.rpartition(":")[2]) for one in found] == [
        ("cpu", "ROLL"), ("cpu", "CONV"), ("cuda", "ROLL"), ("cuda", "CONV"),
    ]  # fmt: skip


def test_the_old_revision_lies_in_a_worktree_for_as_long_as_it_is_needed(repository: Path) -> None:
    first = git(repository, "rev-parse", "HEAD")
    commit(repository, mine="NEW = 1\n")
    (repository / "mine.py").write_text("NEWER = 1\n", encoding="utf-8")
    with arms.arms(repository, "HEAD~1", None, repository) as (old, new):
        assert (old.root / "mine.py").read_text(encoding="utf-8") == LAYER.format(steps=4)
        assert (old.commit, old.dirty, new.dirty, new.root) == (first, False, True, repository)
        assert new.label == f"the working tree ({new.commit[:7]} and changes)"
        assert old.paths == (str(old.root),)
    assert not old.root.exists()
    assert len(git(repository, "worktree", "list").splitlines()) == 1


def test_two_revisions_get_a_worktree_each(repository: Path) -> None:
    commit(repository, mine="NEW = 1\n")
    with arms.arms(repository, "HEAD~1", "HEAD", repository) as (old, new):
        assert (new.root / "mine.py").read_text(encoding="utf-8") == "NEW = 1\n"
        assert len({old.root, new.root, repository}) == 3
        assert not new.dirty


def test_a_revision_that_does_not_exist_is_named(repository: Path) -> None:
    with (
        pytest.raises(UserError, match=r"no revision 'nonsense' \(a branch, tag or commit"),
        arms.arms(repository, "nonsense", None, repository),
    ):
        pass


def test_folders_of_the_repository_on_the_path_move_along(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(repository / "src"), "/usr/lib/python3", str(repository)])
    with arms.arms(repository, "HEAD", None, repository) as (old, _):
        assert old.paths == (str(old.root / "src"), str(old.root))


def test_a_layer_named_by_its_file_is_looked_for_in_the_arm(tmp_path: Path) -> None:
    arm = an_arm(tmp_path / "old", tmp_path / "theirs")
    inside = msgspec.structs.replace(case(), layer=f"{tmp_path}/theirs/a/b.py:NAME")
    assert arm.case(inside).layer == f"{tmp_path}/old/a/b.py:NAME"
    for name in ("shift", "pkg.module:NAME", f"{tmp_path}/other/b.py:NAME"):
        other = msgspec.structs.replace(case(), layer=name)
        assert arm.case(other) == other


def test_the_repository_is_that_of_the_layers(repository: Path, tmp_path: Path) -> None:
    assert arms.repository_of([repository / "mine.py"]) == repository
    (repository / "untracked.py").write_text("", encoding="utf-8")
    assert arms.repository_of([repository / "untracked.py", tmp_path / "nowhere.py"]) is None
    with pytest.raises(UserError, match="several repositories"):
        arms.repository_of([repository / "mine.py", Path(arms.__file__)])


# What is comparable


@pytest.mark.parametrize(
    ("old", "new", "expected", "result"),
    [
        ("ok", "ok", "ok", None),
        ("ok", "ok", "incorrect", Result.BROKEN),
        ("skipped", "skipped", "ok", Result.SKIPPED),
        ("ok", "skipped", "ok", Result.LOST),
        ("skipped", "ok", "ok", Result.LOST),
        ("failed", "ok", "ok", Result.LOST),
        ("incorrect", "ok", "ok", Result.OK),
        ("ok", "incorrect", "ok", Result.BROKEN),
        ("ok", "failed", "ok", Result.BROKEN),
        ("skipped", "failed", "ok", Result.BROKEN),
        ("failed", "failed", "ok", Result.BROKEN),
        ("incorrect", "incorrect", "incorrect", Result.EXPECTED),
        ("incorrect", "failed", "incorrect", Result.BROKEN),
    ],
)
def test_a_case_that_is_not_right_on_both_sides_is_never_quietly_a_pass(
    old: str, new: str, expected: str, result: Result | None
) -> None:
    line = gate.unmeasured("a", Prepared(Status(old), "x"), Prepared(Status(new), "y"), Status(expected))
    assert (line.result if line else None) is result


@pytest.mark.parametrize(
    ("old", "new", "expected", "result"),
    [
        ("failed", "ok", "ok", Result.NEW),
        ("skipped", "ok", "ok", Result.NEW),  # `native`, say, which a layer need not have
        ("failed", "incorrect", "ok", Result.BROKEN),
        ("failed", "failed", "ok", Result.BROKEN),
        ("failed", "incorrect", "incorrect", Result.EXPECTED),
        ("failed", "ok", "incorrect", Result.BROKEN),
        ("failed", "skipped", "ok", Result.SKIPPED),
        ("skipped", "skipped", "ok", Result.SKIPPED),
    ],
)
def test_what_the_old_side_does_not_have_is_new_and_has_to_be_right(
    old: str, new: str, expected: str, result: Result
) -> None:
    unknown = Prepared(Status(old), "x", lacks="variant 'mine' of swish")
    line = gate.unmeasured("a", unknown, Prepared(Status(new), "y"), Status(expected))
    assert line is not None
    assert line.result is result
    if result is Result.NEW:
        assert line.reason == "the old revision has no variant 'mine' of swish; nothing to compare with"


@pytest.mark.parametrize(
    ("results", "code"),
    [
        ((Result.OK, Result.IMPROVED, Result.SKIPPED, Result.EXPECTED), 0),
        ((Result.NEW, Result.OK), 0),
        ((Result.NEW, Result.SKIPPED), 0),
        ((Result.NEW, Result.BROKEN), 1),
        ((Result.NEW, Result.REGRESSED), 1),
        ((Result.NEW, Result.INCONCLUSIVE), 3),
        ((Result.NEW, Result.LOST), 4),
        ((Result.OK, Result.REGRESSED, Result.INCONCLUSIVE), 1),
        ((Result.OK, Result.BROKEN), 1),
        ((Result.OK, Result.INCONCLUSIVE), 3),
        ((Result.REGRESSED, Result.LOST), 4),
        ((Result.SKIPPED,), 4),
        ((), 4),
    ],
)
def test_the_exit_code_is_that_of_the_worst_and_nothing_compared_is_no_pass(
    results: tuple[Result, ...], code: int
) -> None:
    assert report(*results).exit == code


def test_a_pass_of_new_cases_alone_says_that_nothing_was_compared() -> None:
    ending = "pass: nothing could be compared yet, all is new"
    assert verdicts.summary(report(Result.NEW, Result.NEW)) == f"{ending}: 2 new; took 12 s"
    assert verdicts.markdown(report(Result.NEW)).startswith(f"### layerbench gate: {ending}\n")
    assert verdicts.summary(report(Result.NEW, Result.OK)).startswith("pass: nothing is slower: ")
    assert "2 new: because of this" in list(verdicts.remarks(report(Result.NEW, Result.NEW)))


def test_the_suite_as_a_whole_is_no_news_where_a_case_regressed_by_itself() -> None:
    found: Any = SimpleNamespace(
        findings={SUITE: Finding(Outcome.REGRESSED, Estimate(0.05, 0.01, 24), 0.03, 0.02, None)}
    )
    nothing: Any = None
    times = gaterun.Times(nothing, nothing, nothing, 1.0, {}, [], [])
    for told, result in ((Result.OK, Result.REGRESSED), (Result.REGRESSED, Result.OK)):
        whole = times._whole(found, {told})
        assert whole is not None
        assert whole.result is result


def test_one_commit_is_no_two_revisions_though_each_built_a_library_of_its_own(tmp_path: Path) -> None:
    arm = an_arm(tmp_path, tmp_path)
    unlike, idle = gaterun._same((arm, arm), {"A": {"k.so": "1"}, "B": {"k.so": "2"}}, {})
    assert "are the same commit" in unlike[0]
    assert not idle


def test_problems_and_the_suite_as_a_whole_decide_too() -> None:
    assert report(Result.OK, problems=("canary differs",)).exit is Exit.NOT_COMPARABLE
    assert report(Result.OK, whole=entry(Result.REGRESSED)).exit is Exit.BAD


@pytest.mark.parametrize(
    ("verdict", "result"),
    [
        ("slower", Result.REGRESSED),
        ("faster", Result.IMPROVED),
        ("same", Result.OK),
        ("undecided", Result.INCONCLUSIVE),
    ],
)
def test_counts_are_shown_as_new_over_old(verdict: str, result: Result) -> None:
    found = gate.entry_of_counts(1000, 1250, Comparison(0.8, (0.78, 0.82), Verdict(verdict), 5))
    assert (found.result, found.metric, found.old, found.new) == (result, "instructions", 1000, 1250)
    assert (found.ratio, found.low, found.high) == pytest.approx((1.25, 1 / 0.82, 1 / 0.78))


def test_metrics_of_a_case_share_a_line_as_bad_as_the_worst() -> None:
    times = gate.line_of("a", [entry(Result.OK)])
    counts = gate.line_of("a", [entry(Result.REGRESSED, "instructions")])
    skipped = Line("a", Result.SKIPPED, "valgrind counts no instructions of a GPU")
    both = gate.merged([times, counts])
    assert (both.result, [one.metric for one in both.entries]) == (Result.REGRESSED, ["latency", "instructions"])
    assert gate.merged([times, skipped]) == times
    assert gate.merged([skipped, skipped]) == skipped


@pytest.mark.parametrize(
    ("latency", "device", "result"),
    [
        (Result.INCONCLUSIVE, Result.OK, Result.OK),
        (Result.REGRESSED, Result.OK, Result.REGRESSED),
        (Result.INCONCLUSIVE, Result.REGRESSED, Result.REGRESSED),
        (Result.OK, Result.INCONCLUSIVE, Result.INCONCLUSIVE),
        (Result.INCONCLUSIVE, Result.INCONCLUSIVE, Result.INCONCLUSIVE),
    ],
)
def test_doubt_about_a_latency_is_none_about_a_case_whose_device_time_is_known(
    latency: Result, device: Result, result: Result
) -> None:
    line = gate.line_of("a", [entry(latency), entry(device, "device")])
    assert line.result is result
    assert gate.line_of("a", [entry(latency)]).result is latency
    words = "device time decides"
    doubtful = latency is Result.INCONCLUSIVE and result is not Result.INCONCLUSIVE
    assert (words in " ".join(verdicts.remarks(msgspec.structs.replace(report(), lines=(line,))))) is doubtful


def test_doubt_about_the_time_of_a_case_with_more_instructions_is_told() -> None:
    times = gate.line_of("a", [entry(Result.INCONCLUSIVE)])
    both = gate.merged([times, gate.line_of("a", [entry(Result.REGRESSED, "instructions")])])
    remarks = " ".join(verdicts.remarks(msgspec.structs.replace(report(), lines=(both,))))
    assert "latency inconclusive after 24 generations" in remarks
    assert "device" not in remarks


# Formats

EVERYTHING = report(*Result, whole=entry(Result.REGRESSED, "all", 1.05), problems=("canary 1 differs",))


def shown(what: Report, width: int = 200) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(verdicts.render(what))
    return console.export_text()


def test_the_table_names_every_case_and_the_ending() -> None:
    text = shown(EVERYTHING)
    for number, result in enumerate(Result):
        assert f"case <{number}> | a" in text
        assert str(result) in text
    assert text.count("not comparable: 1 not comparable, 1 broken, 1 regressed") == 1
    assert "noise 3.0 % a generation, so this run sees a slow-down of 9.0 %" in text
    assert "about 40 generations would decide" in text
    assert "the whole suite regressed: +5.0 %" in text


def test_cases_are_named_by_what_tells_them_apart() -> None:
    ids = [case("shift", variant, direction, k=3, length=length).id for variant, direction, length in
           (("eager", "forward", 8), ("native", "forward", 8), ("eager", "backward", 16))]  # fmt: skip
    ids += [case("a/b.py:MINE", n=1).id, "no id at all"]
    assert list(names(ids).values()) == [
        "shift length=8 forward eager",
        "shift length=8 forward native",
        "shift length=16 backward eager",
        "b.py:MINE forward eager",
        "no id at all",
    ]


def test_a_large_suite_fits_a_screen() -> None:
    many = report(*[Result.OK] * 60, Result.REGRESSED)
    text = shown(many, 80)
    assert len(text.splitlines()) < 24
    assert "and 60 more that are ok" in text
    assert "case <60>" in text


def test_markdown_escapes_names_and_folds_the_whole_table_away() -> None:
    page = verdicts.markdown(EVERYTHING)
    assert page.startswith("### layerbench gate: not comparable\n")
    assert "case \\<2\\> \\| a" in page
    assert page.count("<details>") == page.count("</details>") == 1
    legend = page.rstrip().splitlines()[-1]
    assert legend.startswith("change: new / old - 1, ± half of its 95 % interval")
    assert "not the ratio of the two beside it" in legend
    assert "change" not in verdicts.markdown(report(Result.NEW))
    rows = [line for line in page.splitlines() if line.startswith("|")]
    assert len({line.replace("\\|", "").count("|") for line in rows}) == 1


def test_junit_passes_only_what_passed() -> None:
    root = ElementTree.fromstring(verdicts.junit(EVERYTHING))
    kinds = {test.get("name"): [child.tag for child in test if child.tag != "system-out"] for test in root}
    by_result = {result: kinds[f"case <{number}> | a"] for number, result in enumerate(Result)}
    assert by_result == {
        Result.LOST: ["error"],
        Result.BROKEN: ["error"],
        Result.REGRESSED: ["failure"],
        Result.INCONCLUSIVE: ["error"],
        Result.IMPROVED: [],
        Result.OK: [],
        Result.NEW: ["skipped"],
        Result.EXPECTED: [],
        Result.SKIPPED: ["skipped"],
    }
    assert (root.get("tests"), root.get("failures"), root.get("errors"), root.get("skipped")) == ("11", "2", "4", "2")


def test_a_junit_message_leads_with_the_figures_of_what_decided_and_the_notes_follow() -> None:
    slower = Entry(
        metric="device", unit="s", result=Result.REGRESSED, ratio=2.598, old=1e-3, new=2.6e-3, low=2.57, high=2.63
    )
    line = gate.line_of("a", [entry(Result.OK), slower], "load 6 on 2 CPUs: other work is running")
    root = ElementTree.fromstring(verdicts.junit(msgspec.structs.replace(report(), lines=(line,))))
    (failure,) = root.iter("failure")
    message = failure.get("message", "")
    assert message.startswith("regressed: device +159.8 % ± 3.0 (1.00 ms -> 2.60 ms), latency ")
    assert message.endswith("; load 6 on 2 CPUs: other work is running")


def test_a_report_survives_json_which_also_has_the_exit_code(tmp_path: Path) -> None:
    written = {path.name: path for path in verdicts.write(EVERYTHING, tmp_path)}
    content = written["gate.json"].read_bytes()
    assert msgspec.json.decode(content, type=Report) == EVERYTHING
    assert json.loads(content)["exit"] == 4


# Whole commands


def test_a_commit_is_not_compared_with_itself(repository: Path) -> None:
    code, found = run_gate(repository, "STILL")
    assert code == 4
    assert [problem.partition(":")[0] for problem in found.problems] == ["identical arms"]
    assert "are the same commit" in found.problems[0]


def test_a_change_of_nothing_that_is_run_passes_unmeasured(repository: Path) -> None:
    (repository / "README.md").write_text("words", encoding="utf-8")
    (repository / ".github").mkdir()
    (repository / ".github" / "ci.yml").write_text("", encoding="utf-8")
    commit(repository, test_other="NEVER = 'imported'")
    code, found = run_gate(repository, "STILL", "WORK", against="HEAD~1")
    assert (code, found.problems) == (0, ())
    assert [(line.result, line.entries) for line in found.lines] == [(Result.OK, ())] * 2
    assert found.notes == ("nothing was measured: every file that was run (1) is the same in both revisions",)


@pytest.mark.parametrize("name", ["steps.json", "kernel.cpp", "Größe.bin", ".steps.json", "run.py"])
def test_what_a_layer_may_read_is_measured_though_its_own_files_are_the_same(repository: Path, name: str) -> None:
    (repository / name).write_text("1", encoding="utf-8")
    commit(repository)
    _, found = run_gate(repository, "STILL", against="HEAD~1")
    assert found.problems == ()
    assert [len(line.entries) for line in found.lines] == [1]


@pytest.mark.parametrize(
    ("name", "harmless"),
    [
        ("docs/page.md", True),
        (".github/workflows/ci.yml", True),
        (".gitignore", True),
        ("a/.gitattributes", True),
        (".tuning.json", False),
        ("a/.github/data.json", False),
        ("tests/gpu/runs.py", True),
        ("docs/conf.py", True),
        ("a/test_b.py", True),
        ("conftest.py", True),
        ("tests/data.json", False),
        ("a/kernel.py", False),
        ("tests.py", False),
        ("setup.py", False),  # it may hold the flags of what is built
    ],
)
def test_what_a_layer_might_run_or_read_unseen_is_not_harmless(name: str, harmless: bool) -> None:
    assert arms.inert(name) is harmless


def test_an_untracked_file_makes_no_other_revision(repository: Path) -> None:
    (repository / "notes.txt").write_text("", encoding="utf-8")
    assert run_gate(repository, "STILL")[0] == 4


def test_a_changed_file_of_which_an_installed_copy_runs_is_found(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "site-packages" / "theirs" / "work.py"
    monkeypatch.setitem(sys.modules, "theirs.work", SimpleNamespace(__file__=str(place)))
    for name in ("theirs/work.py", "src/theirs/work.py"):
        assert arms.loaded_from_elsewhere(repository, name) == place
    for name in ("work.py", "theirs/other.py", "types.py", "src/json.py"):
        assert arms.loaded_from_elsewhere(repository, name) is None
    monkeypatch.setitem(sys.modules, "theirs.work", SimpleNamespace(__file__=str(repository / "src/theirs/work.py")))
    assert arms.loaded_from_elsewhere(repository, "src/theirs/work.py") is None


def test_layers_of_another_repository_are_no_pass(repository: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q")
    commit(other, one="")
    commit(other, two="")
    suite, out = str(suite_file(repository, "STILL")), str(tmp_path / "out")
    assert cli.command(["gate", "--suite", suite, "--repo", str(other), "--against", "HEAD~1", "--out", out]) == 4


FROM_CHECKOUT = {
    "_k.so": "import ctypes\nctypes.CDLL('{}/_k.so')\n",
    "helper.py": "import sys\nsys.path.append('{}')\nimport helper\n",
}


@pytest.mark.parametrize("name", FROM_CHECKOUT)
def test_code_of_the_checkout_that_the_old_revision_runs_is_no_pass(repository: Path, name: str) -> None:
    (repository / ".gitignore").write_text(name, encoding="utf-8")
    library = msgspec._core.__file__  # any will do
    (repository / name).write_bytes(b"" if name.endswith(".py") else Path(library).read_bytes())
    text = FROM_CHECKOUT[name].format(repository) + LAYER.format(steps=4)
    old = commit(repository, mine=text)
    commit(repository, mine=text + "# a change")
    code, found = run_gate(repository, "STILL", against="HEAD~1")
    words = "have each revision build its own, beside its file (os.path.dirname(__file__)), or install it"
    assert (code, found.problems) == (4, (f"HEAD~1 ({old[:7]}) ran {name} of the checkout: {words}",))


@pytest.mark.parametrize("statement", ["import theirs._k", "from theirs import _k", "open('_k.bin')"])
def test_what_only_the_checkout_has_the_old_revision_fails_without_and_is_told(
    repository: Path, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    (repository / "theirs").mkdir()
    (repository / "theirs" / "__init__.py").write_text("", encoding="utf-8")
    (repository / ".gitignore").write_text("_k.*", encoding="utf-8")
    name = "_k.bin" if "open" in statement else "theirs/_k.py"
    (repository / name).write_text("", encoding="utf-8")
    monkeypatch.chdir(repository)
    text = f"{statement}\n" + LAYER.format(steps=4)
    old = commit(repository, mine=text)
    commit(repository, mine=text + "# a change")
    code, found = run_gate(repository, "STILL", against="HEAD~1")
    assert (code, found.lines[0].result) == (4, Result.LOST)
    assert f"{name} is in the checkout, not in HEAD~1 ({old[:7]}): have each" in found.lines[0].reason


def checked(repository: Path) -> list[str]:
    """What is wrong with a layer in the last revision but one and in the working tree."""
    one = Case(f"{repository}/mine.py:STILL", "eager", (), "float32", "cpu", 1, Direction.INFERENCE)
    with arms.arms(repository, "HEAD~1", None, repository.parent / "cache") as pair:
        pairs = ab.Pairs(pair, msgspec.convert(POLICY, Policy), ab.effort_for([one]), repository.parent / "log")
        events = list(pairs.check([one]))
    files = {event.arm: event.files for event in events if isinstance(event, Ran)}
    problems = gaterun.proof(pair, files, [one])
    return problems + [event[2].reason for event in events if not isinstance(event, Ran) and event[2].reason]


def test_a_file_named_from_the_current_folder_is_the_arms_own(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for text in ("old", "new"):
        (repository / "data.txt").write_text(text, encoding="utf-8")
        commit(repository, mine=f"assert open('data.txt').read() == {text!r}\n" + LAYER.format(steps=4))
    monkeypatch.chdir(repository)
    assert checked(repository) == []


def test_what_is_installed_inside_the_checkout_is_for_both_revisions(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = repository / ".venv" / "lib" / "site-packages"
    place.mkdir(parents=True)
    (place / "a_dependency.py").write_text("", encoding="utf-8")
    (repository / ".gitignore").write_text(".venv", encoding="utf-8")
    monkeypatch.syspath_prepend(place)
    commit(repository, mine="import a_dependency\n" + LAYER.format(steps=4))
    commit(repository, mine="import a_dependency\n" + LAYER.format(steps=5))
    assert checked(repository) == []


def test_a_layer_that_is_broken_now_fails_and_one_that_could_not_be_loaded_then_is_not_comparable(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A mistake of the old revision's, in the words of a layer that is not there.
    commit(repository, mine="raise LookupError('no file /x.py')")
    commit(repository, mine=LAYER.format(steps=4).replace("x = x + 1", "raise RuntimeError('oh')"))
    code, found = run_gate(repository, "WORK", against="HEAD~1")
    assert code == 1
    assert [(line.result, "oh" in line.reason) for line in found.lines] == [(Result.BROKEN, True)]
    summary = repository.parent / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    code, found = run_gate(repository, "STILL", against="HEAD~1")
    assert code == 4
    assert found.lines[0].result is Result.LOST
    assert re.fullmatch(r"old side failed: LookupError \(at .*mine.py:1\): no file /x.py", found.lines[0].reason)
    assert summary.read_text(encoding="utf-8").startswith("### layerbench gate: not comparable")


MINE = """
class Wrong(Work):
    def forward(self, x):
        return {mine}

STILL = Layer("still", {{"eager": nn.Identity, "mine": Wrong, "native": nn.Identity}}, inputs)
ADDED = Layer("added", {{"eager": nn.Identity}}, inputs)
"""


def with_new(repository: Path, added: str, mine: str = "x") -> Path:
    """A suite of a layer that gets the versions `mine` and `native`, and of one that is new."""
    axes = {"threads": 1, "direction": "inference"}
    groups = [
        {"layer": f"{repository / 'mine.py'}:STILL", "axes": axes | {"variant": ["eager", "mine", "native"]}},
        {"layer": added, "axes": axes},
    ]
    suite = repository.parent / "theirs.yaml"
    suite.write_text(json.dumps({"policy": POLICY, "groups": groups}), encoding="utf-8")
    files = {} if added.startswith(str(repository / "mine.py")) else {"added": LAYER.format(steps=1) + MINE}
    commit(
        repository,
        mine=LAYER.format(steps=4) + MINE.format(mine=mine),
        **{name: text.replace("{{", "{").replace("}}", "}").replace("{mine}", "x") for name, text in files.items()},
    )
    return suite


@pytest.mark.parametrize("added", ["{}/mine.py:ADDED", "{}/added.py:ADDED", "added:ADDED"])
def test_new_versions_and_layers_are_checked_and_the_others_decide(
    repository: Path, monkeypatch: pytest.MonkeyPatch, added: str
) -> None:
    monkeypatch.syspath_prepend(repository)
    suite = with_new(repository, added.format(repository))
    out = repository.parent / "out"
    arguments = ["gate", "--suite", str(suite), "--against", "HEAD~1", "--seconds", "1", "--out", str(out)]
    code = cli.command(arguments)
    found = msgspec.json.decode((out / "gate.json").read_bytes(), type=Report)
    assert found.problems == ()
    measured, *others = found.lines
    assert code == {Result.REGRESSED: 1, Result.INCONCLUSIVE: 3}.get(measured.result, 0)
    assert len(measured.entries) == 1
    assert [(line.result, line.reason.partition(" has no ")[2]) for line in others] == [
        (Result.NEW, f"{what}; nothing to compare with")
        for what in ("variant 'mine' of still", "variant 'native' of still", "such layer")
    ]


def test_a_new_version_that_is_wrong_fails_and_one_that_is_right_alone_passes(repository: Path) -> None:
    suite, out = with_new(repository, f"{repository / 'mine.py'}:ADDED", "x + 1"), repository.parent / "out"
    arguments = ["gate", "--suite", str(suite), "--against", "HEAD~1", "--out", str(out), "--only"]
    assert cli.command([*arguments, "/mine"]) == 1
    assert cli.command([*arguments, "/native"]) == 0
    found = msgspec.json.decode((out / "gate.json").read_bytes(), type=Report)
    assert ([line.result for line in found.lines], found.unprecedented) == ([Result.NEW], True)


# Of which a process can load one revision alone: an operator of one name, and a helper that gets another.
ALONE = """
import torch
from helper_{name} import {helper}
lib = torch.library.Library("{name}", "DEF")
lib.define("twice(Tensor x) -> Tensor")
"""


@pytest.mark.parametrize("kind", ["file", "module"])
def test_a_version_renamed_in_a_layer_that_stands_for_its_suite_is_no_pass(
    repository: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    name = f"gate_{kind}"
    text = LAYER.format(steps=4) + MINE.format(mine="x")
    for helper, version in (("old", "mine"), ("new", "yours")):
        mine = ALONE.format(name=name, helper=helper) + text.replace('"mine":', f'"{version}":')
        commit(repository, **{name: mine, f"helper_{name}": f"{helper} = 1"})
    monkeypatch.chdir(repository)
    monkeypatch.syspath_prepend(repository)
    suite = f"{name}.py:STILL" if kind == "file" else f"{name}:STILL"
    arguments = ["gate", "--suite", suite, "--against", "HEAD~1", "--out", str(repository.parent / "out")]
    arguments += ["--only", "cpu"]
    assert cli.command([*arguments, "--only", "/mine", "--only", "/yours"]) == 2  # no case has both
    assert cli.command([*arguments, "--seconds", "1"]) == 4
    found = msgspec.json.decode((repository.parent / "out" / "gate.json").read_bytes(), type=Report)
    assert found.problems == ()
    results = {line.case.rpartition("/")[2]: line.result for line in found.lines}
    assert (results["yours"], results["mine"]) == (Result.NEW, Result.LOST)
    assert [line.case for line in found.lines if line.result is Result.LOST] == [
        line.case.replace("/yours", "/mine") for line in found.lines if line.result is Result.NEW
    ]


def test_a_version_renamed_is_no_pass_where_the_old_revision_has_no_such_suite(repository: Path) -> None:
    suite, out = with_new(repository, f"{repository / 'mine.py'}:ADDED"), repository.parent / "out"
    text = (repository / "mine.py").read_text(encoding="utf-8")
    (repository / "mine.py").write_text(text.replace('"mine":', '"yours":'), encoding="utf-8")
    suite.write_text(suite.read_text(encoding="utf-8").replace('"mine"', '"yours"'), encoding="utf-8")
    arguments = ["gate", "--suite", str(suite), "--against", "HEAD", "--out", str(out), "--only", "/yours"]
    assert cli.command(arguments) == 4
    found = msgspec.json.decode((out / "gate.json").read_bytes(), type=Report)
    assert [line.result for line in found.lines] == [Result.NEW, Result.LOST]
    assert found.lines[1].case == f"{repository / 'mine.py'}:STILL/mine"
    assert cli.command([*arguments, "--allow-dropped"]) == 0


def test_an_old_layer_that_cannot_be_loaded_may_have_lost_cases_and_one_that_was_not_there_has_none(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(repository, mine="raise ValueError('oh')")
    commit(repository, mine=LAYER.format(steps=4), later=LAYER.format(steps=4))
    monkeypatch.chdir(repository)
    arguments = ["--against", "HEAD~1", "--out", str(repository.parent / "out"), "--only", "cpu"]
    assert cli.command(["gate", "--suite", "later.py:STILL", *arguments]) == 0
    assert cli.command(["gate", "--suite", "mine.py:STILL", *arguments]) == 4
    found = msgspec.json.decode((repository.parent / "out" / "gate.json").read_bytes(), type=Report)
    lost = found.lines[-1]
    assert (lost.case, lost.result) == ("mine.py:STILL", Result.LOST)
    assert re.fullmatch(
        r"the suite as HEAD~1 \(\w+\) has it: loading mine.py:STILL: ValueError \(at mine.py:1\): oh", lost.reason
    )


def test_cases_gone_from_the_suite_since_the_old_revision_are_no_pass(repository: Path) -> None:
    suite_file(repository, "WORK", "STILL").rename(repository / "theirs.yaml")
    commit(repository)
    suite_file(repository, "WORK").rename(repository / "theirs.yaml")
    commit(repository, mine=LAYER.format(steps=4).replace("import torch", "import torch  # the same", 1))
    suite, out = str(repository / "theirs.yaml"), repository.parent / "out"
    arguments = ["gate", "--suite", suite, "--against", "HEAD~1", "--seconds", "1", "--out", str(out)]
    assert cli.command(arguments) == 4
    found = msgspec.json.decode((out / "gate.json").read_bytes(), type=Report)
    gone = found.lines[-1]
    assert (len(found.lines), gone.result) == (2, Result.LOST)
    assert "STILL" in gone.case
    assert re.fullmatch(
        r"in the suite of HEAD~1 \(\w+\), not in this one; --allow-dropped if that is meant", gone.reason
    )
    assert cli.command([*arguments, "--allow-dropped"]) != 4
    assert cli.command([*arguments, "--only", "WORK"]) != 4


def test_a_suite_that_names_its_layers_by_file_loses_none_where_it_is_run_from_the_root(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = [{"layer": "mine.py:STILL", "axes": {"threads": 1, "direction": "inference"}}]
    (repository / "theirs.yaml").write_text(json.dumps({"policy": POLICY, "groups": groups}), encoding="utf-8")
    commit(repository)
    commit(repository, test_other="")
    monkeypatch.chdir(repository)
    out = repository.parent / "out"
    assert cli.command(["gate", "--suite", "theirs.yaml", "--against", "HEAD~1", "--out", str(out)]) == 0
    found = msgspec.json.decode((out / "gate.json").read_bytes(), type=Report)
    assert [line.case.partition("[")[0] for line in found.lines] == ["mine.py:STILL"]


def test_a_refused_gate_leaves_no_folder_and_an_uncommitted_layer_is_named(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = repository.parent / "out"
    arguments = ["gate", "--suite", str(suite_file(repository, "STILL")), "--out", str(out), "--against"]
    assert cli.command([*arguments, "nonsense"]) == 2
    assert not out.exists()
    git(repository, "rm", "-q", "--cached", "mine.py")
    capsys.readouterr()
    assert cli.command([*arguments, "HEAD"]) == 2
    assert "mine.py: is not in its git repository yet (git add and commit it" in " ".join(
        capsys.readouterr().err.split()
    )


def test_each_arm_runs_its_own_copy_of_a_users_package(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (repository / "theirs").mkdir()
    (repository / "theirs" / "__init__.py").write_text("", encoding="utf-8")
    (repository / "theirs" / "layer.py").write_text(LAYER.format(steps=1), encoding="utf-8")
    commit(repository)
    commit(repository, other="")
    (repository / "theirs" / "layer.py").write_text(LAYER.format(steps=2), encoding="utf-8")
    monkeypatch.syspath_prepend(repository)
    one = Case("theirs.layer:WORK", "eager", (), "float32", "cpu", 1, Direction.INFERENCE)
    with arms.arms(repository, "HEAD", None, repository) as pair:
        pairs = ab.Pairs(pair, msgspec.convert(POLICY, Policy), ab.effort_for([one]), repository.parent / "log")
        events = list(pairs.check([one]))
    assert [event[2].status for event in events if not isinstance(event, Ran)] == [Status.OK, Status.OK]
    old, new = (event.files for event in events if isinstance(event, Ran))
    layer = "theirs/layer.py"
    assert old.keys() == new.keys() == {"theirs/__init__.py", layer}
    assert new[layer] == hashlib.sha256((repository / layer).read_bytes()).hexdigest()
    assert old[layer] == hashlib.sha256(LAYER.format(steps=1).encode()).hexdigest()


def test_more_work_is_found_and_every_generation_is_on_disk(repository: Path) -> None:
    commit(repository, mine=LAYER.format(steps=1024))  # so much that no neighbour on the machine can hide it
    cases = [
        Case(f"{repository / 'mine.py'}:{name}", "eager", (), "float32", "cpu", 1, Direction.INFERENCE)
        for name in ("WORK", "STILL")
    ]
    suite = Suite("theirs", msgspec.convert(POLICY, Policy), tuple(Block("eager", (Planned(one),)) for one in cases))
    effort = Effort(Rule(looks=(4, 6), family=1e-4), 1, 0.15, metrics=("latency",))
    with arms.arms(repository, "HEAD~1", "HEAD", repository / "cache") as pair:
        found = gaterun.run(suite, pair, repository.parent, lambda *_: None, effort=effort)
    assert found.problems == ()
    assert found.lines[0].result is Result.REGRESSED
    assert found.lines[0].entries[0].ratio > 4
    assert found.lines[0].entries[0].generations == 6
    assert found.lines[1].result in (Result.OK, Result.INCONCLUSIVE)
    events = [json.loads(line) for line in (repository.parent / gaterun.FILE).read_bytes().splitlines()]
    assert events[0]["type"] == "gate"
    shots = [event for event in events if event["type"] == "shot" and event["case"] == cases[0].id]
    assert [event["generation"] for event in shots] == list(range(6))
    assert {len(values) for event in shots for values in event["slots"].values()} <= {2, 4, 6, 8}
    ran = [event for event in events if event["type"] == "ran"]
    assert len({event["files"]["mine.py"] for event in ran if event["arm"] == "A"}) == 1
    assert {event["files"]["mine.py"] for event in ran} == {ran[0]["files"]["mine.py"], ran[1]["files"]["mine.py"]}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "one thing to compare with is needed (--against REV, or --baseline FILE)"),
        (["--against", "nonsense"], "no revision 'nonsense'"),
        (["--baseline", "none.jsonl"], "none.jsonl: cannot read it"),
        (["--against", "HEAD", "--repo", "/"], "/: fatal: not a git repository"),
    ],
)
def test_a_mistake_is_a_message_and_exit_code_2(
    repository: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    folder = str(repository.parent / "out")
    code = cli.command(["gate", "--suite", str(suite_file(repository, "STILL")), "--out", folder, *arguments])
    assert code == 2
    assert words in capsys.readouterr().err
