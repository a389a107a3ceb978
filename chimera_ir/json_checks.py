"""Checks of a JSON text: of its objects before pydantic parses it, and of its syntax after a parser has rejected it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from chimerac.chimera_ir import limits
from chimerac.chimera_ir.diagnostics import ChimeraError, Diagnostic, refuse
from chimerac.chimera_ir.scanning import SURROGATE, Excerpt, Path, after_space, place_in_words, string

MAX_FINDINGS = 100
MAX_WEIGHT = limits.TASKS + limits.RANKS  # values that an object inside another may hold; the largest such object is a pipe
MAX_QUOTED = 2**20  # characters; pydantic's findings about a longer text do not quote its wrong values
MAX_DEPTH = 200  # of brackets, as pydantic allows
MAX_DIGITS = 4300  # of an integer, the most that Python's int() allows
_QUOTE_BRACKET_OR_NUMBER = re.compile(r'["\[\]{}]|[0-9]+')
_QUOTE_OR_BRACE = re.compile(r'["{}]')
# An escape in a string. Group 1: half of a surrogate pair without its other half.
_ESCAPE = re.compile(r"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|(u[dD][89a-fA-F]..)|.)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of file.

    Attributes:
        what: its name in messages.
        format, version: the values of these fields in a file.
        codes: for a text that is not JSON, for a file of another kind or version, and for a wrong field.
        help: how to get such a file.
    """

    what: str
    format: str
    version: int
    codes: tuple[str, str, str]
    help: str


def not_json(kind: Kind, part: Excerpt, error: json.JSONDecodeError | None = None) -> ChimeraError:
    """Return the finding about a text that is not JSON, or that is JSON which this project does not read (`_outside_limits`).

    Args:
        error: what scanning.py has raised for the text; None if pydantic has rejected it: the text is then decoded here.
    """
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
        begin = after_space(part.text, 0)
        help = "" if part.text[begin : begin + 1] in ("{", "[") else kind.help  # no JSON at all: perhaps another kind of file
        return refuse(kind.codes[0], f"{name} is not JSON: {error.msg[0].lower()}{error.msg[1:]}", span, "here", help=help)
    for at, fault, help in _outside_limits(part.text, kind):
        message = f"{name} cannot be read: {fault}"
        return refuse(kind.codes[0], message, part.span(at, at + 1), "here", help=help)
    return refuse(kind.codes[0], f"{name} is not JSON that a {kind.what} can be read from")


def _outside_limits(text: str, kind: Kind) -> Iterator[tuple[int, str, str]]:
    """Yield (position, fault, help) for what JSON allows and this project rejects."""
    depth = at = 0
    while found := _QUOTE_BRACKET_OR_NUMBER.search(text, at):
        start, at = found.span()
        if found[0] == '"':
            try:
                _, at = string(text, start)
            except json.JSONDecodeError:
                return
            halves = [m.start() for m in _ESCAPE.finditer(text, start, at) if m[1]]
            if not text.isascii():  # a text from Python may have the half itself; a file cannot
                halves += [m.start() for m in SURROGATE.finditer(text, start, at)]
            for half in sorted(halves):
                yield half, "half of a surrogate pair is no character", "write the character itself"
        elif len(found[0]) > MAX_DIGITS:
            yield start, f"a number has {at - start} digits", f"no number of a {kind.what} needs more than 24"
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(found[0], 0)
        if depth > MAX_DEPTH:
            yield start, f"brackets are nested more than {MAX_DEPTH} deep", f"a {kind.what} nests less than 10 deep"


class _ObjectError(ValueError):
    """An object is rejected: it has too many fields, has a field twice, or holds too many values.

    Args:
        max_fields: the most fields that an object may have; None if it holds too many values.
    """

    def __init__(self, max_fields: int | None = None) -> None:
        super().__init__()
        self.max_fields = max_fields


class _Objects:
    """Checks each object of a JSON text when the end of the object is parsed, as `object_pairs_hook` of json.loads.

    Two fields of one name are rejected: parsers differ in which of them they keep. A large object is rejected too, unless it is
    the last one to end, as the outermost object is: if a field were missing in it, pydantic would convert all of it to Python
    values.

    Attributes:
        keys: the names of the fields of the object that ended last; at the end of the text, those of the outermost object.
    """

    def __init__(self) -> None:
        self.keys: Iterable[str] = ()
        self.weight = 0  # number of values in the object that ended last

    def __call__(self, pairs: list[tuple[str, Any]]) -> tuple[int]:
        """Return a tuple of one number: how many values the object has, those inside its values included.

        For the parser this tuple takes the place of the object.

        Raises _ObjectError for an object that is rejected.
        """
        if self.weight > MAX_WEIGHT:  # the object that ended before this one
            raise _ObjectError
        fields, weight = dict(pairs), len(pairs)
        if len(fields) < weight or weight > limits.FIELDS:
            raise _ObjectError(limits.FIELDS)
        for value in fields.values():
            if type(value) is list:  # a list of one integer is the most frequent one
                weight += 1 if len(value) == 1 and type(value[0]) is int else _weight(value)
            elif type(value) is tuple:  # an object
                weight += value[0]
        self.keys, self.weight = fields, weight
        return _WEIGHTS.get(weight) or (weight,)


_WEIGHTS = {weight: (weight,) for weight in range(64)}  # the results for small objects, made once


def _weight(values: list[Any]) -> int:
    """Return the number of values in a list, those inside its items included."""
    weight, todo = 0, [values]
    while todo:
        values = todo.pop()
        weight += len(values) + sum(v[0] for v in values if type(v) is tuple)
        todo += [v for v in values if type(v) is list]
    return weight


def check_objects(kind: Kind, part: Excerpt, path: Path, known: set[str], required: set[str]) -> None:
    """Raise ChimeraError for objects that pydantic should not parse. A text that is not JSON is left to pydantic.

    In a long text, missing and unknown fields of the outermost object are reported here: pydantic would convert the whole text
    to Python values.

    Args:
        path: where this part is in the file, for findings.
        known, required: the names of the outermost object's fields; if `known` is empty, no field is unknown or missing.
    """
    objects, name = _Objects(), part.source.name
    try:
        outermost = json.loads(part.text, object_pairs_hook=objects)
    except _ObjectError as error:
        if error.max_fields is None:
            raise refuse(kind.codes[2], f"{name}: an inner object holds more than {MAX_WEIGHT} values") from None
        raise _object_finding(kind, part, error.max_fields) from None
    except (ValueError, RecursionError):
        return
    if type(outermost) is tuple and len(part.text) > MAX_QUOTED:
        missing, unknown = sorted(required.difference(objects.keys)), sorted(set(objects.keys) - known)
        for field in ("format", "version"):
            if field in missing:
                message = f"{name} is not a {kind.what} of version {kind.version}: '{field}' is missing"
                raise refuse(kind.codes[1], message, help=kind.help)
        wrong = [(field, "missing") for field in missing] + [(field, "unknown") for field in unknown]
        if wrong and known:
            code, shown = kind.codes[2], wrong[:MAX_FINDINGS]
            raise ChimeraError(
                Diagnostic(code, f"{name}: {place_in_words((*path, field))}: this field is {what}") for field, what in shown
            )


def _object_finding(kind: Kind, part: Excerpt, max_fields: int) -> ChimeraError:
    """Return the finding about the first field that its object has twice, or that is one more than `max_fields`.

    The decoder has rejected an object at its end. So the text up to there is valid JSON, and has such a field.
    """
    objects: list[set[str]] = []
    name, at = part.source.name, 0
    while found := _QUOTE_OR_BRACE.search(part.text, at):
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
            if len(objects[-1]) > max_fields:
                message, place = f"{name}: an object has more than {max_fields} fields", part.span(found.start(), at)
                return refuse(kind.codes[2], message, place, "the first too many")
    raise AssertionError("a rejected object must have a defect")
