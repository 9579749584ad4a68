"""A suite file as written: its shape, the line of every value, and what is wrong with it in words of YAML.

What the words in it mean is `config`'s.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import msgspec
from msgspec import Meta
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from bench.model import Policy, UserError

Keys = tuple[str | int, ...]  # the way to a value in the file: ("groups", 0, "axes", "variant", 1)

YAML_WORDS = {
    "object": "a mapping",
    "array": "a list",
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "null": "nothing",
}


# By words of ruamel's; the first that fits.
REMEDIES = {
    "'\\t'": "indent by spaces, not tabs",
    "cannot start any token": "put the text in quotes",
    "expected <block end>": "line up with the line above",
    "mapping values are not allowed": "line up with the line above, and put a text with a colon in quotes",
    "expected ',' or": "close the bracket",
    "unexpected end of stream": "close the quotes",
}


class GroupEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One layer and the product of its axes."""

    layer: Annotated[str, Meta(description="built-in name, pkg.module:NAME, or path.py:NAME from this file's folder")]
    baseline: Annotated[str | None, Meta(description="variant to compare with; eager if there, else the first")] = None
    axes: Annotated[dict[str, Any], Meta(description="a value or a list of values each; all are combined")] = {}
    exclude: Annotated[
        list[dict[str, Any]], Meta(description="leave out the cases that match all keys of one entry")
    ] = []
    expect: Annotated[
        list[dict[str, Any]], Meta(description="status expected of the cases that match; a later entry wins")
    ] = []


class SuiteFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A layerbench suite: what to measure, and how."""

    groups: Annotated[list[GroupEntry], Meta(min_length=1)]
    name: Annotated[str | None, Meta(description="names the run's folder; the file's name without its ending")] = None
    description: str | None = None
    policy: Policy = Policy()


def closest(word: object, known: Sequence[str]) -> str:
    """`; did you mean 'x'?`, or nothing when no known word is near."""
    found = difflib.get_close_matches(str(word), known, n=1)
    return f"; did you mean {str(found[0])!r}?" if found else ""  # the repr of an enum's member is not its word


class File:
    """A YAML file as plain values, with the line of each. Raises UserError for what is not YAML 1.2 in UTF-8.

    `of_layer`: `path` is that of a layer, path.py:NAME, and the file that would have it for its only group is meant.
    """

    def __init__(self, path: Path, *, of_layer: bool = False) -> None:
        self.path, self.of_layer = path, of_layer
        text = msgspec.json.encode({"groups": [{"layer": path.name}]}).decode() if of_layer else self._text()
        yaml = YAML(typ="safe", pure=True)  # pure: the C parser reads YAML 1.1, where `no` is false and 010 is eight
        try:
            self._root = yaml.compose(text)
            self._plain = yaml.constructor.construct_document(self._root) if self._root else None
        except MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark else 1
            # Of a duplicate key ruamel also prints both values, which may be whole groups.
            raise self._broken(str(error.problem).partition(" with value")[0], line) from None
        except (YAMLError, ValueError, RecursionError) as error:
            raise self._broken(str(error).replace("\n", " "), 1) from None
        if self._plain is None:
            raise UserError("the file is empty", place=str(path), remedy="layerbench schema")

    def _broken(self, problem: str, line: int) -> UserError:
        remedy = next((remedy for words, remedy in REMEDIES.items() if words in problem), "suites are YAML 1.2")
        return UserError(problem, place=f"{self.path}:{line}", remedy=remedy)

    def _text(self) -> str:
        try:
            data = self.path.read_bytes()
        except OSError as error:
            near = closest(self.path, [str(other) for other in sorted(self.path.parent.glob("*.yaml"))])
            message = f"cannot read it: {error.strerror}{near}"
            raise UserError(
                message, place=str(self.path), remedy="name a YAML suite, or a layer: path.py:NAME"
            ) from None
        try:
            return data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            message = f"byte {data[error.start]:#x} is not UTF-8"
            raise UserError(message, place=f"{self.path}:{line}", remedy="save it as UTF-8") from None

    def line(self, keys: Keys) -> int:
        """The line of a value, or of the nearest thing around it that is in the file."""
        node, line = self._root, 1
        for key in keys:
            children = node.value if isinstance(node.value, list) else []
            if isinstance(key, int):
                pairs = [(child, child) for child in children[key : key + 1]]
            else:
                pairs = [(name, child) for name, child in children if name.value == key]
            if not pairs:
                break
            named, node = pairs[0]
            line = named.start_mark.line + 1
        return line

    def error(self, keys: Keys, message: str, remedy: str = "") -> UserError:
        """A UserError at a value; the line tells the group, so the message says only where in it."""
        shown = keys[2:] if len(keys) > 2 and keys[0] == "groups" else keys
        where = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in shown).removeprefix(".")
        if self.of_layer:
            return UserError(message, place=str(self.path), remedy=remedy)
        place = f"{self.path}:{self.line(keys)}"
        return UserError(f"{where}: {message}" if where else message, place=place, remedy=remedy)

    def content(self) -> SuiteFile:
        """The file's shape checked: keys, types and the policy's ranges. Raises UserError."""
        try:
            content = msgspec.convert(self._plain, SuiteFile)
        except msgspec.ValidationError as error:
            raise self._explained(str(error)) from None
        if content.name is not None and not re.fullmatch(r"[^/\\\x00-\x1f]+", content.name):
            message = f"{content.name!r} cannot name a folder"
            raise self.error(("name",), message, "text without slashes and control characters")
        return content

    def _explained(self, text: str) -> UserError:
        """What msgspec found, at its line and in words of YAML."""
        message, _, where = text.partition(" - at `")
        path = where.rpartition("$")[2]
        keys: Keys = tuple(int(key) if key.isdigit() else key for key in re.findall(r"[^.`\[\]]+", path))
        if where.startswith("key"):
            return self.error(keys, "a key is not text", "put quotes around it")
        known = {0: SuiteFile, 1: Policy}.get(len(keys), GroupEntry).__struct_fields__
        word, _, rest = message.partition(" ")
        if keys == ("policy",) and word in known:  # a ValueError of Policy's own: "seconds is -1; more than 0"
            return self.error((*keys, word), rest)
        if unknown := re.fullmatch("Object contains unknown field `(.*)`", message):
            return self.error(
                (*keys, unknown[1]), f"unknown key{closest(unknown[1], known)}", f"known: {', '.join(known)}"
            )
        if missing := re.fullmatch("Object missing required field `(.*)`", message):
            return self.error(keys, f"'{missing[1]}' is missing", "layerbench schema")
        if invalid := re.fullmatch("Invalid enum value '(.*)'", message):
            names = [str(name) for name in get_args(get_type_hints(Policy)[str(keys[-1])])]
            return self.error(keys, f"is {invalid[1]!r}{closest(invalid[1], names)}", f"one of {', '.join(names)}")
        words = re.sub(r"\w+", lambda found: YAML_WORDS.get(found[0], found[0]), message)
        words = words.replace("`", "").replace(" | ", " or ").replace("Expected", "expected")
        value: Any = self._plain
        for key in keys:
            value = value[key]
        got = f" {value!r}" if isinstance(value, str | int | float) else ""
        return self.error(keys, words + got, "layerbench schema")
