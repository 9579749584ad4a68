"""A YAML suite -> `Suite`: names looked up, axes multiplied, defaults filled in. Needs no torch.

Every mistake is a UserError with its line, the value and a remedy.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

import msgspec
from msgspec import Meta

from bench.model import Block, Case, Direction, Planned, Status, Suite, Value, layer_path, show_value
from bench.places import loading, remedy
from bench.suitefile import File, GroupEntry, Keys, SuiteFile, closest

Point = dict[str, Any]  # one value of every axis: a case before it is one

WHOLE = (int | Annotated[tuple[int, ...], Meta(min_length=1)], "a whole number, or a list of them as one value")
# What a suite may give, and that in words: for an axis by its name, for a parameter by the type of its default.
AXES: dict[str, tuple[Any, str]] = {
    "device": (Annotated[str, Meta(pattern=r"^(cpu|cuda(:\d+)?)$")], "cpu, cuda or cuda:N"),
    "threads": (Annotated[int, Meta(ge=1)] | Literal["auto"], "auto, or a whole number from 1"),
}
PARAMETERS: dict[type, tuple[Any, str]] = {
    bool: (bool, "true or false"),
    int: WHOLE,
    tuple: WHOLE,
    list: WHOLE,
    float: (float, "a finite number"),
    str: (str, "text"),
}


# That torch has; which of them a layer takes, it says itself.
DTYPES = ("float16", "bfloat16", "float32", "float64", "int8", "uint8", "int16", "int32", "int64", "bool")


class LayerLike(Protocol):
    """What a suite needs to know of a layer; `layers.Layer` fits."""

    @property
    def defaults(self) -> Mapping[str, Any]:
        """Its parameters, with the value each has when a suite names none."""

    @property
    def versions(self) -> Mapping[str, Any]:
        """Hand-written versions; each may be named as a variant."""

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes that it takes."""


def load_suite(
    path: str | Path,
    *,
    find_layer: Callable[[str], LayerLike],
    layers: Sequence[str],
    variants: Sequence[str],
    cpus: int,
) -> Suite:
    """The suite in a YAML file, complete: blocks in the order written, cases in the order of the variant axis.

    In place of a file a layer, by its name or as path.py:NAME: all versions written for it, on the CPU and the GPU.

    `layers` and `variants` are the names known; `cpus` is what `threads: auto` means. `find_layer` raises
    LookupError (its text a sentence) for a layer that does not exist. Raises UserError for every mistake in the
    file, and for whatever else a layer's own file raises.
    """
    file = File(Path(path), of_layer=_is_layer(str(path), layers))
    content = file.content()
    blocks: list[Block] = []
    origin: dict[str, int] = {}
    for index, entry in enumerate(content.groups):
        name, layer = _find(file, index, entry.layer, find_layer, layers)
        if file.of_layer:
            entry = msgspec.structs.replace(entry, axes={"device": ["cpu", "cuda"], "variant": list(layer.versions)})
        own = [variant for variant in layer.versions if variant not in variants]
        for block in _Group(file, ("groups", index), entry, name, layer, (*variants, *own), cpus).blocks():
            first = origin.setdefault(block.setting, index)
            if first != index:
                message = f"{block.setting} is also in groups[{first}], line {file.line(('groups', first))}"
                raise file.error(("groups", index), message, "one group holds all variants of a setting; exclude there")
            blocks.append(block)
    return Suite(content.name or file.path.stem, content.policy, tuple(blocks))


def schema(layers: Sequence[str] = (), variants: Sequence[str] = ()) -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a suite file, made from the types and tables that read it."""
    types = [SuiteFile, Value, *(kind for kind, _ in AXES.values())]
    (top, value, *rest), definitions = msgspec.json.schema_components(types, ref_template="#/$defs/{name}")
    one = {name: {"enum": list(words)} if words else {"type": "string"} for name, words in _names(variants, ()).items()}
    one |= dict(zip(AXES, rest, strict=True))
    status = one.pop("status")
    known = {name: _one_or_many(kind) for name, kind in one.items()}
    axes = {"properties": known, "additionalProperties": _one_or_many(value)}
    group = definitions["GroupEntry"]["properties"]
    group["layer"]["examples"] = list(layers)
    group["axes"] |= axes
    group["exclude"]["items"] |= axes
    group["expect"]["items"] |= axes | {"properties": known | {"status": status}, "required": ["status"]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **top, "$defs": definitions}


def _one_or_many(kind: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [kind, {"type": "array", "items": kind, "minItems": 1}]}


def _names(variants: Sequence[str], dtypes: Sequence[str]) -> dict[str, Sequence[str]]:
    """The words allowed where only certain words are."""
    return {"variant": variants, "direction": tuple(Direction), "dtype": dtypes, "status": tuple(Status)}


def _is_layer(name: str, layers: Sequence[str]) -> bool:
    module, _, attribute = name.rpartition(":")
    return name in layers or bool(layer_path(name) or (module and attribute and not Path(name).exists()))


def _find(
    file: File, index: int, written: str, find_layer: Callable[[str], LayerLike], layers: Sequence[str]
) -> tuple[str, LayerLike]:
    """The layer that a group names, and the name by which a worker can load it too."""
    keys = ("groups", index, "layer")
    name, path = written, layer_path(written)
    if path:
        target, here = (file.path.parent / path).resolve(), Path.cwd().resolve()
        # Relative where it can be: the name is part of every case id, and ids are compared across machines.
        shown = target.relative_to(here) if target.is_relative_to(here) else target
        name = f"{shown}{written[written.rindex('.py') + 3 :]}"
    try:
        return name, find_layer(name)
    except (Exception, SystemExit) as error:
        if type(error) is LookupError:  # a KeyError or IndexError comes out of the layer's own file
            near = "" if path else closest(written, layers)
            raise file.error(keys, f"{error}{near}", _how_to_name(written)) from None
        raise file.error(keys, loading(written, error), remedy(error)) from error


def _how_to_name(layer: str) -> str:
    if ":" in layer:
        return "path.py:NAME from the suite's folder, or pkg.module:NAME"
    return f"{layer}:NAME" if "." in layer else "layerbench list layers"


@dataclass(frozen=True)
class _Group:
    """One entry of `groups`, read in the light of its layer."""

    file: File
    keys: Keys
    entry: GroupEntry
    name: str
    layer: LayerLike
    variants: Sequence[str]
    cpus: int

    def blocks(self) -> Iterator[Block]:
        axes = self._axes()
        chosen = axes.pop("variant")
        settings = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
        points = [setting | {"variant": variant} for setting in settings for variant in chosen]
        excluded = [wanted for wanted, _ in self._entries("exclude", points)]
        points = [point for point in points if not any(_matches(point, wanted) for wanted in excluded)]
        if not points:
            raise self.file.error((*self.keys, "exclude"), "leaves no case of this group", "exclude less")
        expected = self._entries("expect", points)
        rows: dict[str, list[Planned]] = {}
        for point in points:
            statuses = [status for wanted, status in expected if _matches(point, wanted)]
            planned = Planned(self._case(point), statuses[-1] if statuses else Status.OK)
            rows.setdefault(planned.case.setting, []).append(planned)
        for row in rows.values():
            yield Block(self._baseline(row, chosen), tuple(row))

    def _case(self, point: Point) -> Case:
        params = tuple((name, point[name]) for name in self.layer.defaults)
        own = {field: point[field] for field in ("variant", "dtype", "device", "threads", "direction")}
        return Case(layer=self.name, params=params, **own)

    def _baseline(self, planned: Sequence[Planned], chosen: Sequence[str]) -> str:
        present = [plan.case.variant for plan in planned]
        named = self.entry.baseline
        if named is None:
            return "eager" if "eager" in present else present[0]
        keys = (*self.keys, "baseline")
        if named not in chosen:
            self._value(keys, "variant", named)  # a misspelt name first
            raise self.file.error(keys, f"{named!r} is not among axes.variant", f"one of {', '.join(chosen)}")
        if named not in present:
            message = f"{named!r} is excluded from {planned[0].case.setting}"
            raise self.file.error(keys, message, "name another baseline, or give those cases a group of their own")
        return named

    def _axes(self) -> dict[str, tuple[Any, ...]]:
        """The values of every axis: those written in their order, then the defaults."""
        dtypes = self.layer.dtypes
        common: dict[str, tuple[Any, ...]] = {
            "variant": ("eager",),
            "direction": (Direction.INFERENCE, Direction.FORWARD_BACKWARD),
            "dtype": ("float32",) if "float32" in dtypes else dtypes[:1],
            "device": ("cpu",),
            "threads": (self.cpus,),
        }
        defaults = common | {name: (self._default(name, value),) for name, value in self.layer.defaults.items()}
        keys = (*self.keys, "axes")
        self._only(keys, self.entry.axes, defaults)
        written = {name: self._values((*keys, name), name, values) for name, values in self.entry.axes.items()}
        return written | {name: values for name, values in defaults.items() if name not in written}

    def _default(self, name: str, value: Any) -> Value:
        keys = (*self.keys, "layer")
        if name in AXES or name in _names((), ()):
            raise self.file.error(keys, f"parameter {name!r} of {self.name} has the name of an axis", "rename it")
        fitted = _fitted(value, PARAMETERS[type(value)][0]) if type(value) in PARAMETERS else None
        if fitted is None:
            message = f"default {value!r} of parameter {name!r} of {self.name} cannot be part of a case"
            raise self.file.error(keys, message, "a number, true or false, text or a tuple of whole numbers can")
        return fitted

    def _entries(self, section: str, points: list[Point]) -> list[tuple[dict[str, tuple[Any, ...]], Status]]:
        """What each entry of exclude or expect matches; one that matches nothing is surely a slip."""
        found = []
        for index, entry in enumerate(getattr(self.entry, section)):
            keys, rest = (*self.keys, section, index), dict(entry)
            status = Status.OK
            if section == "expect":
                if "status" not in entry:
                    raise self.file.error(keys, "'status' is missing", f"one of {', '.join(Status)}")
                status = self._value((*keys, "status"), "status", rest.pop("status"))
            self._only(keys, rest, points[0])
            wanted = {name: self._values((*keys, name), name, values) for name, values in rest.items()}
            if not any(_matches(point, wanted) for point in points):
                raise self.file.error(keys, f"matches no case: {entry}", "compare it with the axes and exclude")
            found.append((wanted, status))
        return found

    def _only(self, keys: Keys, written: Mapping[str, Any], known: Mapping[str, Any]) -> None:
        for name in written:
            if name not in known:
                remedy = f"known for {self.name}: {', '.join(known)}"
                raise self.file.error((*keys, name), f"unknown key{closest(name, list(known))}", remedy)

    def _values(self, keys: Keys, name: str, written: Any) -> tuple[Any, ...]:
        if not isinstance(written, list):
            return (self._value(keys, name, written),)
        if not written:
            raise self.file.error(keys, "no values", "give one, or leave the key out")
        values: dict[str, Any] = {}
        for index, item in enumerate(written):
            value = self._value((*keys, index), name, item)
            shown = show_value(value)  # 3 and [3] would be two cases with one id
            if shown in values and name != "threads":  # `auto` may well equal a number beside it
                raise self.file.error((*keys, index), f"{item!r} is there twice", "leave one out")
            values[shown] = value
        return tuple(values.values())

    def _value(self, keys: Keys, name: str, item: Any) -> Any:
        """One value of an axis as a case holds it."""
        words = _names(self.variants, self.layer.dtypes).get(name)
        if words is not None:
            if item in words:
                return words[words.index(item)]
            remedy = f"one of {', '.join(words)}"
            if name == "variant":
                remedy = f"has {', '.join(self.layer.versions)}; layerbench list {self.name} has what else can be made"
            if name == "dtype" and str(item) in DTYPES:
                raise self.file.error(keys, f"{self.name} does not take {item}", remedy)
            raise self.file.error(keys, f"unknown {name} {item!r}{closest(item, words)}", remedy)
        kind, accepted = AXES[name] if name in AXES else PARAMETERS[type(self.layer.defaults[name])]
        value = _fitted(item, kind)
        if value is None:
            raise self.file.error(keys, f"{name} cannot be {item!r}", accepted)
        return self.cpus if value == "auto" and name == "threads" else value


def _fitted(item: Any, kind: Any) -> Value | None:
    """The item as `kind`; None when it is something else, or a number that JSON cannot hold."""
    try:
        value: Value = msgspec.convert(item, kind)
    except msgspec.ValidationError:
        return None
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _matches(point: Point, wanted: Mapping[str, tuple[Any, ...]]) -> bool:
    return all(point[name] in values for name, values in wanted.items())
