"""How many instructions one call of each case executes: the metric for machines whose times cannot be believed.

One process runs the whole list under callgrind, on one thread: it makes and warms every case at the speed of valgrind's
translation, and only then has instructions counted. The same code gives the same count, whatever else the machine does.
"""

from __future__ import annotations

import compileall
import functools
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from bench.gating.arms import Arm
from bench.gating.orders import Doing, Message, Order, Over, Ran
from bench.model import Case, Policy, Status, UserError, Verdict
from bench.workers import death

if TYPE_CHECKING:
    from bench.stats import Comparison  # scipy, under valgrind, takes half a minute

WITHIN = 0.02  # counts that differ by at most this fraction are the same
APART = 0.03  # where ratios that the samples allow differ by more, about that limit, the median cannot tell either
LAYOUTS = 3  # of memory, in which a case that looks changed is counted
BY_LAYOUT = 0.1  # no layout makes a change as large as this
ROOT = Path(__file__).resolve().parents[2]
# `bench` comes from here whatever the arm holds. The strings move all that is allocated after them.
CHILD = (
    "import sys; moved = [str(i) * (1 + i % 40) for i in range(1000 * int(sys.argv[3]))]; "
    "sys.path.insert(0, sys.argv[1]); import layerbench_start; del sys.path[0]; "
    "from bench.gating import instructions as i; i.serve(int(sys.argv[2]))"
)
VALGRIND = (
    *("valgrind", "--tool=callgrind", "--instr-atstart=no", "--collect-atstart=no"),
    *("--dump-line=no", "--vgdb=no", "--quiet"),
)
# What would differ from process to process without being the code's doing: hashes, threads, and what glibc's free lists
# happen to hold. With small blocks always kept for reuse, most counts of two processes agree within 0.02 %.
VARIABLES = {
    "PYTHONHASHSEED": "0",
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
    "GLIBC_TUNABLES": "glibc.malloc.tcache_count=65535",
}
SAME_ADDRESSES = ("setarch", "--addr-no-randomize")  # containers may forbid it

Progress = Callable[[str, float], None]  # what is being done, and which share of all is done


@dataclass(frozen=True)
class Count:
    """What came of one case: the instructions of some single calls, exactly when ok."""

    status: Status
    reason: str = ""
    samples: tuple[int, ...] = ()

    @property
    def value(self) -> int:
        """Instructions of one call: the median."""
        return int(statistics.median(self.samples))

    @property
    def range(self) -> tuple[int, int]:
        """Of the middle half of the samples: the interpreter tries to specialise its code in some calls, not in all."""
        beyond = len(self.samples) // 4
        inner = sorted(self.samples)[beyond : len(self.samples) - beyond]
        return inner[0], inner[-1]


@dataclass(frozen=True)
class Counts:
    """What came of every case, by its id; and what of the arm the process had loaded, hash by file."""

    cases: Mapping[str, Count]
    ran: Mapping[str, str]

    def values(self) -> dict[str, int]:
        """Instructions of one call by case id, of the cases that have them."""
        return {name: one.value for name, one in self.cases.items() if one.status is Status.OK}


def count(
    cases: Sequence[Case],
    policy: Policy,
    arm: Arm | None = None,
    progress: Progress = lambda text, share: None,
    layout: int = 0,
) -> Counts:
    """Count every case, on one thread; what cannot be counted has its status and the reason.

    None is checked: that takes long under valgrind, and is the caller's to do first. Whose code is counted is the arm's
    to say; without one it is what this process would import. Raises UserError where nothing can be counted here.
    """
    helper = require()
    compileall.compile_dir(ROOT / "bench", quiet=2)  # a process that compiles has another heap than one that does not
    found = {case.id: Count(Status.SKIPPED, reason) for case in cases if (reason := _impossible(case))}
    ran: Mapping[str, str] = {}
    while left := tuple(case for case in cases if case.id not in found):  # again after a case that took a process down
        process = _Process(Order(left, policy, arm, helper, layout), progress)
        process.run()
        found |= process.found
        ran = process.ran or ran
    return Counts({case.id: found[case.id] for case in cases}, ran)


def count_both(
    cases: Sequence[Case],
    policy: Policy,
    old: Arm,
    new: Arm,
    progress: Progress = lambda text, share: None,
) -> tuple[Counts, Counts]:
    """The counts of two arms, taken side by side: instructions do not wait for one another.

    What looks changed is counted again in processes whose memory is laid out otherwise, and of each arm the lower count
    stands. A layout only ever adds: in one process of a dozen, two names that every call of some case looks up fall on
    one entry of the interpreter's method cache, which costs that case 700 to 900 instructions a call.
    """
    found = _side_by_side(cases, policy, (old, new), progress, 0)
    for layout in range(1, LAYOUTS):
        again = [case for case in cases if _doubtful(*(counts.cases[case.id] for counts in found))]
        if not again:
            break
        more = _side_by_side(again, policy, (old, new), progress, layout)
        found = _lower(found[0], more[0]), _lower(found[1], more[1])
    return found


def _side_by_side(
    cases: Sequence[Case], policy: Policy, pair: tuple[Arm, Arm], progress: Progress, layout: int
) -> tuple[Counts, Counts]:
    with ThreadPoolExecutor(2) as pool:
        first, second = (pool.submit(count, cases, policy, arm, progress, layout) for arm in pair)
        return first.result(), second.result()


def _doubtful(old: Count, new: Count) -> bool:
    """Whether the counts differ, and by so little that it may be the layout's doing."""
    if not old.status is new.status is Status.OK:
        return False
    change = compare(new, old)
    return change.verdict is not Verdict.SAME and 1 / (1 + BY_LAYOUT) < change.speedup < 1 + BY_LAYOUT


def _lower(counts: Counts, more: Counts) -> Counts:
    """`counts` with what `more` counted lower, or failed to count."""
    cases = dict(counts.cases)
    for name, one in more.cases.items():
        if one.status is not Status.OK or one.value < cases[name].value:
            cases[name] = one
    return Counts(cases, {**counts.ran, **more.ran})


def compare(new: Count, old: Count) -> Comparison:
    """Of two ok counts: slower where the range of the samples leaves no doubt of it. Where it leaves one the medians
    tell, or nothing can if the range is wide: a change of just WITHIN is one or the other, being counted exactly.

    The speed-up is old / new; its interval holds every ratio that the ranges allow.
    """
    from bench.stats import Comparison

    low, high = old.range[0] / new.range[1], old.range[1] / new.range[0]
    speedup, verdict = old.value / new.value, Verdict.SAME
    if low > 1 + WITHIN:
        verdict = Verdict.FASTER
    elif high >= 1 / (1 + WITHIN) > low and high / low > 1 + APART:
        verdict = Verdict.UNDECIDED
    elif speedup < 1 / (1 + WITHIN):
        verdict = Verdict.SLOWER
    return Comparison(speedup, (low, high), verdict, min(len(old.samples), len(new.samples)))


def require() -> str:
    """The helper that switches the counting on. Raises UserError where instructions cannot be counted, and why."""
    from ext import build, callgrind

    place = "instruction counts"
    if not shutil.which("valgrind"):
        raise UserError("no valgrind", place=place, remedy="install it, for example: apt-get install valgrind")
    try:
        return str(callgrind.library())
    except build.BuildError as error:
        raise UserError(str(error).splitlines()[0], place=place, remedy="they need a C++ compiler") from None


def _impossible(case: Case) -> str:
    if case.device != "cpu":
        return "valgrind counts no instructions of a GPU"
    if case.variant in ("script_cpp", "aoti_cpp"):
        return "its calls run in a program of their own, which is not counted"
    return ""


class _Process:
    """One process over the cases of an order. It may die in one of them: the cases not `found` then are still to do."""

    def __init__(self, order: Order, progress: Progress) -> None:
        self._order, self._progress = order, progress
        self._at: int | None = None  # the case in hand
        self.found: dict[str, Count] = {}
        self.ran: Mapping[str, str] = {}

    def run(self) -> None:
        """Let it do what it can."""
        cases = self._order.cases
        with tempfile.TemporaryDirectory(prefix="layerbench-") as name:
            fate = self._talk(Path(name))
            samples = _samples(Path(name))
        for number, case in enumerate(cases):
            if case.id in self.found and self.found[case.id].status is Status.OK:
                counted = Count(Status.OK, samples=samples.get(number, ()))
                self.found[case.id] = counted if counted.samples else Count(Status.FAILED, "callgrind wrote no count")
        if fate:
            hand = cases if self._at is None else (cases[self._at],)
            self.found |= {case.id: Count(Status.FAILED, fate) for case in hand if case.id not in self.found}

    def _talk(self, folder: Path) -> str:
        """Start it and listen until it ends; how it died, or nothing."""
        ours, theirs = Pipe()
        python = [sys.executable, "-P", "-c", CHILD, str(ROOT), str(theirs.fileno()), str(self._order.layout)]
        log = folder / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(  # noqa: S603
                [*_same_addresses(), *VALGRIND, f"--callgrind-out-file={folder / 'counts'}", *python],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | VARIABLES,
            )
        theirs.close()  # so that a death reads as end of file
        timeout = self._order.policy.timeout
        try:
            ours.send(self._order)
            while ours.poll(timeout):
                self._hear(ours.recv())
        except (EOFError, ConnectionError):
            exitcode = process.wait()
            return f"its process {death(exitcode)}{_last_words(log)}" if exitcode else ""
        finally:
            ours.close()
            process.kill()
            process.wait()
        return f"no answer within the {timeout:g} s of policy.timeout, so its process was stopped"

    def _hear(self, message: Message) -> None:
        total = len(self._order.cases)
        match message:
            case Doing(number, what):
                self._at = number
                self._progress(f"{what} {self._order.cases[number].id}", len(self.found) / total)
            case Over(number, status, reason):
                self.found[self._order.cases[number].id] = Count(status, reason)
            case Ran(files):
                self.ran = files


def serve(descriptor: int) -> None:
    """Of the process: do one order and end."""
    os.set_inheritable(descriptor, False)  # a compiler left running would keep the connection open
    connection = Connection(descriptor)
    order: Order = connection.recv()
    sys.path.append(str(Path.cwd()))  # a user's pkg.module:NAME, as the command line finds it
    if order.arm is not None:
        order.arm.enter()
    from bench.gating import counted  # only now: it imports layers

    for message in counted.carry_out(order):
        connection.send(message)
    connection.send(Ran(order.arm.ran() if order.arm else {}))


def _samples(folder: Path) -> dict[int, tuple[int, ...]]:
    """Instructions by number of the case, from the dumps that the helper had made."""
    found: dict[int, list[int]] = {}
    for file in folder.glob("counts.*"):
        text = file.read_text(encoding="utf-8", errors="replace")
        which = re.search(r"^desc: Trigger: Client Request: (\d+)$", text, re.MULTILINE)
        total = re.search(r"^totals: (\d+)", text, re.MULTILINE)
        if which and total:
            found.setdefault(int(which[1]), []).append(int(total[1]))
    return {number: tuple(taken) for number, taken in found.items()}


@functools.cache
def _same_addresses() -> tuple[str, ...]:
    if not shutil.which(SAME_ADDRESSES[0]):
        return ()
    tried = subprocess.run([*SAME_ADDRESSES, "true"], capture_output=True, check=False)  # noqa: S603
    return () if tried.returncode else SAME_ADDRESSES


def _last_words(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return f"; its last line: {lines[-1][:200]}" if lines else ""
