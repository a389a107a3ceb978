"""JSON that is refused before pydantic sees it: invalid or too deeply nested, or objects with duplicate or too many fields."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from chimerac.chimera_ir import limits
from chimerac.chimera_ir.diagnostics import ChimeraError, Diagnostic, refuse
from chimerac.chimera_ir.scanning import Excerpt, Path, after_space, place_in_words, string

MAX_FINDINGS = 100
MAX_WEIGHT = limits.TASKS + limits.RANKS  # values in an object inside another; a pipe has the most
MAX_SHOWN = 2**20  # characters of a file whose wrong values findings show


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of file. what: its name in messages; codes: for no JSON, for another kind or version, for a wrong field."""

    what: str
    format: str
    version: int
    codes: tuple[str, str, str]
    help: str


def not_json(kind: Kind, part: Excerpt, error: json.JSONDecodeError | None = None) -> ChimeraError:
    """Return the finding about a text that is no JSON, or JSON that cannot be read. error: the decoder's, if it is known."""
    name = part.source.name
    try:
        if error is None:
            json.loads(part.text)
    except json.JSONDecodeError as e:
        error = e
    except (RecursionError, ValueError):
        pass
    if error is not None:
        span = part.span(error.pos, error.pos + 1)
        return refuse(kind.codes[0], f"{name} is not JSON: {error.msg[0].lower()}{error.msg[1:]}", span, label="here")
    for at, fault, help in _extremes(part.text, kind):
        message = f"{name} cannot be read: {fault}"
        return refuse(kind.codes[0], message, part.span(at, at + 1), "here", help=help)
    return refuse(kind.codes[0], f"{name} is not JSON that a {kind.what} can be read from")


def _extremes(text: str, kind: Kind) -> Iterator[tuple[int, str, str]]:
    """Yield (position, fault, help) for what JSON allows and this project refuses."""
    depth = at = 0
    while found := _EXTREME.search(text, at):
        start, at = found.span()
        if found[0] == '"':
            try:
                _, at = string(text, start)
            except json.JSONDecodeError:
                return
            halves = (m for m in _ESCAPE.finditer(text, start, at) if m[1])
            yield from ((m.start(), "half of a surrogate pair is no character", "write the character itself") for m in halves)
        elif len(found[0]) >= MAX_DIGITS:
            yield start, f"a number has {at - start} digits", f"no number of a {kind.what} has more than 19"
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(found[0], 0)
        if depth > MAX_DEPTH:
            yield start, f"brackets are nested more than {MAX_DEPTH} deep", f"a {kind.what} nests less than 10 deep"


MAX_DEPTH = 200  # of brackets, as pydantic reads
MAX_DIGITS = 4300  # of a number, as Python reads
_EXTREME = re.compile(r'["\[\]{}]|[0-9]+')
_ESCAPE = re.compile(r"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|(u[dD][89a-fA-F]..)|.)", re.DOTALL)


class _UnfitError(ValueError):
    """An object is refused. fields: the most fields that it may have; None if it is too large as a whole."""

    def __init__(self, fields: int | None = None) -> None:
        super().__init__()
        self.fields = fields


class _Objects:
    """Checks every object of a JSON text at its end. keys: those of the outermost object, after the last call.

    Two fields of one name are refused: readers would disagree which one counts. A large object inside another is refused
    too: for a missing field pydantic would make Python values of all of it.
    """

    def __init__(self) -> None:
        self.keys: Iterable[str] = ()
        self.weight = 0  # number of values in the object that ended last

    def __call__(self, pairs: list[tuple[str, Any]]) -> tuple[int]:
        if self.weight > MAX_WEIGHT:
            raise _UnfitError
        fields, weight = dict(pairs), len(pairs)
        if len(fields) < weight or weight > limits.FIELDS:
            raise _UnfitError(limits.FIELDS)
        for value in fields.values():
            kind = type(value)
            if kind is list:
                weight += 1 if len(value) == 1 and type(value[0]) is int else _weight(value)
            elif kind is tuple:
                weight += value[0]
        self.keys, self.weight = fields, weight
        return _WEIGHTS.get(weight) or (weight,)


_WEIGHTS = {weight: (weight,) for weight in range(64)}  # the results for small objects, made once


def _weight(values: list[Any]) -> int:
    """Return the number of values in a list and in its items."""
    weight, todo = 0, [values]
    while todo:
        values = todo.pop()
        weight += len(values) + sum(v[0] for v in values if type(v) is tuple)
        todo += [v for v in values if type(v) is list]
    return weight


def check_objects(kind: Kind, part: Excerpt, path: Path, known: set[str], required: set[str]) -> None:
    """Raise ChimeraError for objects that pydantic should not see. Text that is no JSON is left to pydantic."""
    objects, name = _Objects(), part.source.name
    try:
        outermost = json.loads(part.text, object_pairs_hook=objects)
    except _UnfitError as error:
        if error.fields is None:
            raise refuse(kind.codes[2], f"{name}: an object within another holds more than {MAX_WEIGHT} values") from None
        raise _unfit(kind, part, error.fields) from None
    except (ValueError, RecursionError):
        return
    if type(outermost) is tuple and len(part.text) > MAX_SHOWN:
        missing, unknown = sorted(required.difference(objects.keys)), sorted(set(objects.keys) - known)
        for field in ("format", "version"):
            if field in missing:
                message = f"{name} is not a {kind.what} of version {kind.version}: '{field}' is missing"
                raise refuse(kind.codes[1], message, help=kind.help)
        found = [(field, "missing") for field in missing] + [(field, "unknown") for field in unknown]
        if found and known:
            code, shown = kind.codes[2], found[:MAX_FINDINGS]
            raise ChimeraError(
                Diagnostic(code, f"{name}: {place_in_words((*path, field))}: this field is {what}") for field, what in shown
            )


def _unfit(kind: Kind, part: Excerpt, most: int) -> ChimeraError:
    """Return the finding for the first object that has a field twice or more than `most` fields, with its place.

    The text up to the end of that object is valid JSON: the decoder has read it.
    """
    objects: list[set[str]] = []
    name, at = part.source.name, 0
    while found := _MARK.search(part.text, at):
        at = found.end()
        if found[0] == "{":
            objects.append(set())
        elif found[0] == "}":
            objects.pop()
        else:
            key, at = string(part.text, found.start())
            if part.text[after_space(part.text, at)] != ":":
                continue
            if key in objects[-1]:
                message, place = f"{name}: the field '{key}' appears twice in one object", part.span(found.start(), at)
                return refuse(kind.codes[2], message, place, "the second", help="keep one of them")
            objects[-1].add(key)
            if len(objects[-1]) > most:
                message, place = f"{name}: an object has more than {most} fields", part.span(found.start(), at)
                return refuse(kind.codes[2], message, place, "the first too many")
    raise AssertionError("an object that was refused has nothing wrong")


_MARK = re.compile(r'["{}]')
