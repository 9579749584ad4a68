"""One process that prepares a case, checks it and samples it on request. Started by the runner, one per variant."""

from __future__ import annotations

import traceback
from multiprocessing.connection import Connection

import layers.variants
from bench.bounds import Wrong, bound_for
from bench.gating.arms import Arm
from bench.machine import environment, memory
from bench.model import Case, Direction, Status
from bench.places import RENAME, hidden, place
from bench.protocol import (
    Answer,
    Describe,
    Described,
    Failed,
    Finish,
    Finished,
    Look,
    Looked,
    Prepare,
    Prepared,
    Proof,
    Prove,
    Request,
    Sample,
)
from bench.reference import ReferenceFailed
from bench.session import Session
from bench.task import NoGradient
from layers import Unavailable


def serve(connection: Connection, allocator: str, arm: Arm | None = None) -> None:
    """Answer requests until the other side closes. Never returns an exception: it becomes a Failed answer."""
    worker = Worker(memory.fix_allocator(allocator), arm)
    while True:
        try:
            request: Request = connection.recv()
            connection.send(worker.answer(request))
        except (EOFError, ConnectionError):  # closed, perhaps while this one worked on an answer
            return


class Worker:
    """Holds the one case in hand between requests."""

    def __init__(self, allocator: str = "default", arm: Arm | None = None) -> None:
        self._allocator, self._arm = allocator, arm
        self._session: Session | None = None
        # What passed already, by everything but the direction: its error and what there is to say of it.
        self._checked: dict[tuple[object, ...], tuple[float, list[str]]] = {}

    def answer(self, request: Request) -> Answer:
        try:
            match request:
                case Describe():
                    return Described(environment.describe() | {"allocator": self._allocator})
                case Prepare():
                    self._session = None  # frees the last case first
                    return self._prepare(request)
                case Prove():
                    return Proof(self._arm.ran() if self._arm else {})
                case Look(name):
                    return look(name)
                case Sample(number):
                    assert self._session is not None
                    return self._session.sample(number)
                case Finish():
                    assert self._session is not None
                    session, self._session = self._session, None
                    return Finished(session.finish())
        except Exception as error:
            self._session = None
            return Failed(self._words(error))

    def _prepare(self, request: Prepare) -> Prepared:
        case, policy = request.case, request.policy
        try:
            session = Session(case, policy, request.metrics)
            mode = (case.direction is Direction.INFERENCE, case.direction.needs_gradient)
            key = (case.layer, case.variant, case.params, case.dtype, case.device, case.threads, mode)
            if key not in self._checked:
                self._checked[key] = (0.0, []) if request.trusted else session.check()
            session.error, told = self._checked[key]
            session.warnings += told
            if not request.check_only:
                session.warm_up()
                self._session = session
        except Unavailable as reason:
            return Prepared(Status.SKIPPED, str(reason), lacks=lacking(case))
        except LookupError as error:
            return Prepared(Status.FAILED, self._words(error), lacks=lacking(case))
        except Wrong as wrong:
            bound = bound_for(case.dtype, tf32=policy.tf32)
            return Prepared(Status.INCORRECT, str(wrong), error=wrong.error, bound=bound, notes=session.made.notes)
        return session.prepared()

    def _words(self, error: Exception) -> str:
        missed = self._arm.missed(error) if self._arm else ""
        return describe_error(error) + (f"; {missed}" if missed else "")


def look(name: str) -> Looked:
    """What the code that this process runs has by the name of a layer. What the layer's own file raises passes."""
    try:
        layer = layers.load(name)
    except LookupError as error:
        if _absent(error):
            return Looked(absent=str(error))
        raise
    return Looked(dict.fromkeys(layer.versions), dict(layer.defaults), tuple(layer.dtypes))


def _absent(error: Exception) -> bool:
    """Whether there is no such layer: a mistake in a layer's own file is no layer yet to be written."""
    files = {frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)}
    return type(error) is LookupError and files == {__file__, layers.__file__}


def lacking(case: Case) -> str:
    """What the code that this process runs does not have of a case: "such layer", "variant 'mine' of swish".

    Empty where all is there, and where the layer's own file is at fault.
    """
    try:
        layer = layers.load(case.layer)
    except Exception as error:
        return "such layer" if _absent(error) else ""
    # An arm's layers may be older than MADE_FROM.
    sources = getattr(layers.variants, "MADE_FROM", dict.fromkeys(layers.variants.VARIANTS, "eager"))
    if sources.get(case.variant, case.variant) not in layer.versions:
        return f"variant {case.variant!r} of {layer.name}"
    return "" if case.dtype in layer.dtypes else f"{case.dtype} for {layer.name}"


def describe_error(error: BaseException) -> str:
    """`Type (at file:line): first lines and notes`, see places.place; of what is a sentence of ours, no type."""
    return _described(error).encode("utf-8", "backslashreplace").decode()  # a name that was no UTF-8 has no JSON


def _described(error: BaseException) -> str:
    lines = [*_lines(str(error)), *(line for note in getattr(error, "__notes__", ()) for line in _lines(note))]
    lines += [f"{why} ({RENAME})"] if (why := hidden(error)) else []
    if isinstance(error, NoGradient | ReferenceFailed):
        return "\n".join(lines)
    where = f" (at {found})" if (found := place(error)) else ""
    return f"{type(error).__name__}{where}" + (": " + "\n".join(lines) if lines else "")


def _lines(text: str) -> list[str]:
    return [line for line in text.strip().splitlines() if line.strip()][:8]
