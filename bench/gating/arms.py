"""The two sides of an A/B: which revision of the code under test a worker runs, and how it comes to run that one.

The harness and the suite are the current ones on both sides. A worker has `bench` from here already when it enters
an arm, so only what it imports afterwards (`layers`, `ext`, a user's own modules) comes from the arm's folder.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bench import ours
from bench.machine import environment
from bench.model import Case, UserError, layer_path

WORKING_TREE = "the working tree"
HARNESS = Path(__file__).resolve().parents[1]
SIGNS = ("layers/variants.py", "ext/build.py")  # of a revision of layerbench itself
# Files that no layer reads when it runs: texts and pictures.
INERT = frozenset({".md", ".rst", ".html", ".css", ".png", ".jpg", ".svg", ".gif", ".pdf"})
TOOLS = frozenset({".editorconfig", ".gitattributes", ".gitignore", ".gitlab-ci.yml", ".pre-commit-config.yaml"})
ASIDE = frozenset({"tests", "docs"})
OWN_BUILD = "have each revision build its own, beside its file (os.path.dirname(__file__)), or install it"

_BEFORE: set[str] = set()  # modules that this process had before it entered an arm


@dataclass(frozen=True)
class Arm:
    """A revision of a repository, in a folder of its own."""

    name: str  # "A" is the old one, "B" the new
    revision: str  # as it was asked for
    commit: str  # the full hash; of the working tree the commit that it started from
    dirty: bool  # whether files that git knows differ from that commit
    repository: Path  # the user's checkout
    root: Path  # this revision's files: a worktree, or the checkout itself
    paths: tuple[str, ...]  # to put first on sys.path, in this order
    cache: Path  # below it lies whatever native code is built

    @property
    def label(self) -> str:
        """Short words for tables: `main (1a2b3c4)`, `the working tree (1a2b3c4 and changes)`."""
        return f"{self.revision} ({self.commit[:7]}{' and changes' if self.dirty else ''})"

    def enter(self) -> None:
        """Make what this process imports from now on come from the arm. Call it before `layers` is imported."""
        if early := sorted(name for name in sys.modules if name.partition(".")[0] in ("layers", "ext")):
            raise RuntimeError(f"{early[0]} was imported before the arm was entered")
        # Where ours are what is under test; a user's packages of these names never take their place.
        if own := next((path for path in self.paths if all(Path(path, file).is_file() for file in SIGNS)), None):
            ours.PLACES.update(layers=own, ext=own)
        ours.protect()
        _BEFORE.update(sys.modules)
        # What the old revision lacks it is to fail without, not to find in the checkout.
        sys.path[:] = [*self.paths, *(entry for entry in sys.path if not self._is_stray(Path(entry or ".").resolve()))]
        self._go_there()
        # torch keys what it compiles by name alone: without a folder of its own, each arm would overwrite the other's.
        key = "working-tree" if self.root == self.repository else self.commit
        os.environ["TORCH_EXTENSIONS_DIR"] = str(self.cache / "arms" / key)

    def case(self, case: Case) -> Case:
        """The case with its layer looked for in this arm."""
        return msgspec.structs.replace(case, layer=self.layer(case.layer))

    def layer(self, name: str) -> str:
        """The name by which a layer is found in this arm: names of modules stay, a path.py:NAME moves along."""
        path = layer_path(name)
        if path is None:
            return name
        attribute, path = name.rpartition(":")[2], path.resolve()
        if path.is_relative_to(self.repository) and not path.is_relative_to(self.root):
            path = self.root / path.relative_to(self.repository)
        return f"{path}:{attribute}"

    def _go_there(self) -> None:
        """A file that a layer names from the current folder is the arm's own too."""
        here = Path.cwd().resolve()
        if cache := os.environ.get("LAYERBENCH_CACHE"):
            os.environ["LAYERBENCH_CACHE"] = str(Path(cache).resolve())
        if here.is_relative_to(self.repository) and not here.is_relative_to(self.root):
            there = self.root / here.relative_to(self.repository)
            there.mkdir(parents=True, exist_ok=True)
            os.chdir(there)

    def ran(self) -> dict[str, str]:
        """What this process has loaded of the arm: SHA-256 by file. Modules by their path below the root, native
        libraries by their name, wherever the arm built them; and strays by their whole path."""
        modules = {
            _resolved(Path(file))
            for name, module in list(sys.modules.items())
            if name not in _BEFORE and (file := getattr(module, "__file__", None)) and file.endswith(".py")
        }
        libraries = _libraries()
        own = {str(path.relative_to(self.root)): path for path in modules if path.is_relative_to(self.root)}
        own |= {path.name: path for path in libraries if any(map(path.is_relative_to, (self.root, self.cache)))}
        found = {name: path for name, path in own.items() if not _installed(path)}
        found |= {str(path): path for path in [*modules, *libraries] if self._is_stray(path)}
        return {name: _digest(path) for name, path in found.items()}

    def strays(self, files: Iterable[str]) -> list[str]:
        """Which of the files that this arm `ran` lie in the user's checkout and are not of this revision."""
        return [name for name in files if Path(name).is_absolute()]

    def _is_stray(self, path: Path) -> bool:
        if not path.is_relative_to(self.repository) or path.is_relative_to(self.root) or _installed(path):
            return False
        return not any(map(path.is_relative_to, (self.cache, *(Path(at, name) for name, at in ours.PLACES.items()))))

    def missed(self, error: BaseException) -> str:
        """What the checkout has and this revision's folder has not, for want of which `error` was raised: a sentence,
        or nothing."""
        wanted = _wanted(error)
        for folder in (Path.cwd(), *map(Path, self.paths)):
            here = folder / wanted
            if not wanted or not here.is_relative_to(self.root) or here.exists():
                continue
            there = self.repository / here.relative_to(self.root)
            pattern = f"{there.name}.*" if isinstance(error, ImportError) else there.name
            if found := next(there.parent.glob(pattern), None):
                return f"{found.relative_to(self.repository)} is in the checkout, not in {self.label}: {OWN_BUILD}"
        return ""


def _wanted(error: BaseException) -> str:
    """The file that could not be opened, or the path without ending of the module that could not be imported."""
    if isinstance(error, ImportError) and error.name:
        part = re.match(r"cannot import name '(\w+)'", str(error))  # from . import _k
        return (f"{error.name}.{part[1]}" if part else error.name).replace(".", "/")
    # The dynamic loader's has no filename: "k.so: cannot open shared object file".
    return str(error.filename or str(error).partition(":")[0]) if isinstance(error, OSError) else ""


def _libraries() -> list[Path]:
    """The native libraries that this process has mapped."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    mapped = {Path(line[line.index("/") :]) for line in lines if "/" in line}
    return sorted(path for path in mapped if ".so" in path.suffixes)  # also libk.so.1


def _resolved(file: Path) -> Path:
    return _resolved_folder(file.parent) / file.name


@functools.cache  # of thousands of modules, under valgrind
def _resolved_folder(folder: Path) -> Path:
    return folder.resolve()


def _installed(path: Path) -> bool:
    """Whether it belongs to a Python installation, which may lie inside the checkout, or to the harness."""
    if "site-packages" in path.parts:  # also that of another one, on PYTHONPATH
        return True
    places = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    return any(path.is_relative_to(place) for place in (*places, HARNESS))


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return "gone"


@contextmanager
def arms(repository: Path, old: str, new: str | None, cache: Path) -> Iterator[tuple[Arm, Arm]]:
    """Both arms while the body runs: the old revision in a worktree, the new one too, or, where None, the working
    tree as it is. Raises UserError: no repository, no such revision, git's own words."""
    repository = repository.resolve()
    with worktree(repository, old) as (root, commit):
        first = _arm("A", old, commit, repository, root, cache)
        if new is None:
            yield first, working_tree(repository, cache)
        else:
            with worktree(repository, new) as (other, other_commit):
                yield first, _arm("B", new, other_commit, repository, other, cache)


def working_tree(repository: Path, cache: Path) -> Arm:
    """The checkout as it is, changes included. Raises UserError."""
    commit = git(repository, "rev-parse", "HEAD", remedy="commit something first")
    dirty = bool(git(repository, "status", "--porcelain", "--untracked-files=no"))
    return _arm("B", WORKING_TREE, commit, repository, repository, cache, dirty=dirty)


def _arm(
    name: str, revision: str, commit: str, repository: Path, root: Path, cache: Path, *, dirty: bool = False
) -> Arm:
    found = (Path(entry or ".").resolve() for entry in sys.path)
    below = [path.relative_to(repository) for path in found if path.is_relative_to(repository) and not _installed(path)]
    paths = tuple(dict.fromkeys(str(root / path) for path in [*below, Path()]))
    return Arm(name, revision, commit, dirty, repository, root, paths, cache.resolve())


@contextmanager
def worktree(repository: Path, revision: str) -> Iterator[tuple[Path, str]]:
    """A folder with the files of a revision, and its full hash; gone afterwards. Raises UserError."""
    try:
        commit = git(repository, "rev-parse", "--verify", f"{revision}^{{commit}}")
    except UserError:
        remedy = "a branch, tag or commit; in CI fetch it first, for example with fetch-depth: 0"
        raise UserError(f"no revision {revision!r}", place=str(repository), remedy=remedy) from None
    git(repository, "worktree", "prune")  # what killed runs left
    with tempfile.TemporaryDirectory(prefix="layerbench-") as folder:
        root = Path(folder).resolve() / commit[:12]
        git(repository, "worktree", "add", "--detach", "--force", str(root), commit)
        try:
            yield root, commit
        finally:
            git(repository, "worktree", "remove", "--force", str(root))


def git(repository: Path, *arguments: str, remedy: str = "") -> str:
    """What git prints. Raises UserError with what it says on stderr."""
    command = ("git", "-c", "safe.directory=*", "-C", str(repository), *arguments)
    try:
        return environment.output(*command, timeout=300)
    except FileNotFoundError:
        raise UserError("git not found", remedy="install git") from None
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip() or f"git {' '.join(arguments)} failed"
        raise UserError(said.splitlines()[-1], place=str(repository), remedy=remedy) from None
    except (OSError, subprocess.SubprocessError) as error:
        raise UserError(f"git: {error}", place=str(repository)) from None


def changes(old: Arm, new: Arm) -> list[str]:
    """The files, by their names in the repository, in which two arms differ; of a working tree those that git does not
    know yet too, after the others."""
    until = () if new.root == new.repository else (new.commit,)
    names = git(old.repository, "diff", "--name-only", "-z", old.commit, *until)
    if not until:
        names += git(old.repository, "ls-files", "--others", "--exclude-standard", "-z")
    return names.split("\0")[:-1]  # each ends with one


def inert(name: str) -> bool:
    """Whether a changed file cannot change what a layer does that did not load it.

    A folder with a dot is a tool's, a file with one may be anybody's. Other Python than tests and documentation may
    have been run by exec or runpy, or in a process of its own, which nothing here sees.
    """
    path = Path(name)
    test = path.suffix == ".py" and (path.name.startswith("test_") or path.name in ("conftest.py", "noxfile.py"))
    aside = path.suffix == ".py" and not ASIDE.isdisjoint(path.parts[:-1])
    tools = path.name in TOOLS or (path.parts[0].startswith(".") and len(path.parts) > 1)
    return path.suffix in INERT or test or aside or tools


def loaded_from_elsewhere(repository: Path, name: str) -> Path | None:
    """Where this process has the module of a repository's file from, if that is an installed copy: src/a/b.py is the
    end of .../site-packages/a/b.py, or of a/b/__init__.py."""
    parts = Path(name).parts
    tails = ["/" + "/".join(parts[start:]) for start in range(len(parts) - 1)]
    files = {str(file) for module in list(sys.modules.values()) if (file := getattr(module, "__file__", None))}
    for file in map(Path, sorted(files)):
        if any(str(file).endswith(tail) for tail in tails):
            place = file.resolve()
            if not place.is_relative_to(HARNESS) and (_installed(place) or not place.is_relative_to(repository)):
                return place
    return None


def layer_file(name: str) -> Path | None:
    """Where a suite's layer is written, once this process has loaded it."""
    if path := layer_path(name):
        return path.resolve()
    module = sys.modules.get(name.rpartition(":")[0] or f"layers.{name}")
    file = getattr(module, "__file__", None)
    return Path(file).resolve() if file else None


def repository_of(files: Iterable[Path]) -> Path | None:
    """The checkout in which all of these files are committed or at least known to git; None where none is.

    Raises UserError where they are in several.
    """
    homes = dict.fromkeys(home for file in files if (home := _home(file.resolve())))
    if len(homes) > 1:
        names = " and ".join(map(str, homes))
        raise UserError(f"the suite's layers lie in several repositories: {names}", remedy="say which with --repo")
    return next(iter(homes), None)


def checkout_of(folder: Path) -> Path | None:
    """The git checkout that a folder lies in."""
    try:
        return Path(git(folder, "rev-parse", "--show-toplevel")).resolve()
    except UserError:
        return None


def _home(file: Path) -> Path | None:
    try:  # known to git, not only inside: a virtual environment may lie in somebody's checkout
        git(file.parent, "ls-files", "--error-unmatch", str(file))
    except UserError:
        return None
    return checkout_of(file.parent)
