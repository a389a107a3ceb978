"""Files from outside: read strictly through pydantic, and what is wrong with one said in this project's words."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from chimera_ir import limits
from chimera_ir.diagnostics import ChimeraError, Diagnostic, Source, Span, refuse

T = TypeVar("T")
MAX_FINDINGS = 100
MAX_WEIGHT = limits.TASKS + limits.RANKS  # values in an object within another: a pipe has most
MAX_SHOWN = 2**20  # characters of a file of which a finding shows the value that is wrong
_UNKNOWN = ("unexpected_keyword_argument", "extra_forbidden")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of file. what: its name in messages; codes: not JSON, not this kind or version, a field that is wrong."""

    what: str
    format: str
    version: int
    codes: tuple[str, str, str]
    help: str


def read_json(adapter: TypeAdapter[T], kind: Kind, text: str, name: str) -> T:
    """Return the value that a JSON text holds. name: what the user calls the text. Raises ChimeraError (`kind.codes`)."""
    schema = _schema(adapter)
    _check_objects(kind, text, name, set(schema["properties"]), set(schema["required"]))
    try:
        return adapter.validate_json(text)
    except ValidationError as error:
        raise _explain(error, kind, text, name, _fields(schema)) from None


class _UnfitError(ValueError):
    """An object has a field twice, or too many fields, or is too large."""


class _Objects:
    """Looks at every object of a JSON text, as it ends. keys: of the outermost one, once all are seen.

    A field that stands twice is refused, since readers would disagree which of them counts. And a large object within
    another is: pydantic makes Python values of what stands at every error, for a missing field of the object around it.
    """

    def __init__(self) -> None:
        self.keys: Iterable[str] = ()
        self.weight = 0  # values in the object that ended last

    def __call__(self, pairs: list[tuple[str, Any]]) -> tuple[int]:
        fields, weight = dict(pairs), len(pairs)
        if len(fields) < weight or weight > limits.FIELDS or self.weight > MAX_WEIGHT:
            raise _UnfitError
        for value in fields.values():
            kind = type(value)
            if kind is list:
                weight += 1 if len(value) == 1 and type(value[0]) is int else _weight(value)
            elif kind is tuple:
                weight += value[0]
        self.keys, self.weight = fields, weight
        return _WEIGHTS.get(weight) or (weight,)


_WEIGHTS = {weight: (weight,) for weight in range(64)}  # what stands for an object: most are small


def _weight(values: list[Any]) -> int:
    """Return how many values stand in a list, and in what stands in it."""
    weight, todo = 0, [values]
    while todo:
        values = todo.pop()
        weight += len(values) + sum(v[0] for v in values if type(v) is tuple)
        todo += [v for v in values if type(v) is list]
    return weight


def _check_objects(kind: Kind, text: str, name: str, known: set[str], required: set[str]) -> None:
    """Refuse objects that pydantic should not see. What is no JSON is left to it."""
    objects = _Objects()
    try:
        outermost = json.loads(text, object_pairs_hook=objects)
    except _UnfitError:
        raise _unfit(kind, text, name) from None
    except (ValueError, RecursionError):
        return
    if type(outermost) is tuple and len(text) > MAX_SHOWN:
        missing, unknown = sorted(required.difference(objects.keys)), sorted(set(objects.keys) - known)
        for field in ("format", "version"):
            if field in missing:
                message = f"{name} is not a {kind.what} of version {kind.version}: '{field}' is missing"
                raise refuse(kind.codes[1], message, help=kind.help)
        found = [(field, "missing") for field in missing] + [(field, "unknown") for field in unknown]
        if found:
            code, told = kind.codes[2], found[:MAX_FINDINGS]
            raise ChimeraError(Diagnostic(code, f"{name}: {field}: this field is {what}") for field, what in told)


def _unfit(kind: Kind, text: str, name: str) -> ChimeraError:
    """Return the finding for the first object that `_check_objects` refuses, with its place."""
    objects: list[set[str]] = []
    for found in _MARK.finditer(text):
        if found[0] == "{":
            objects.append(set())
        elif found[0] == "}":
            objects.pop()
        elif found[2]:
            key, source = json.loads(found[1]), Source(name, text)
            if key in objects[-1]:
                message = f"{name}: the field '{key}' stands twice in one object"
                return refuse(kind.codes[2], message, source.span(*found.span(1)), "the second", help="keep one of them")
            objects[-1].add(key)
            if len(objects[-1]) > limits.FIELDS:
                message = f"{name}: an object has more than {limits.FIELDS} fields"
                return refuse(kind.codes[2], message, source.span(*found.span(1)), "the first too many")
    return refuse(kind.codes[2], f"{name}: an object within another holds more than {MAX_WEIGHT} values")


_MARK = re.compile(r'("[^"\\]*(?:\\.[^"\\]*)*")(\s*:)?|[{}]', re.DOTALL)


@cache
def _schema(adapter: TypeAdapter[Any]) -> dict[str, Any]:
    """Return the JSON Schema of a kind of file."""
    return adapter.json_schema()


def _fields(schema: dict[str, Any]) -> set[str]:
    """Return the names of all fields of a kind of file."""
    return {field for part in (schema, *schema.get("$defs", {}).values()) for field in part.get("properties", {})}


def _explain(error: ValidationError, kind: Kind, text: str, name: str, known: set[str]) -> ChimeraError:
    # pydantic makes Python values of what stands at every error, which for a missing field is the whole object around it.
    found = error.errors(include_url=False, include_input=len(text) <= MAX_SHOWN)
    if found[0]["type"] == "json_invalid":
        return _not_json(kind, text, name)
    by_place = {e["loc"]: e for e in found}
    for key, wanted in (("format", kind.format), ("version", kind.version)):
        wrong = by_place.get((key,))
        if wrong:
            given = (
                "is missing"
                if wrong["type"] == "missing"
                else f"is {_short(wrong['input']) if 'input' in wrong else 'another'}"
            )
            message = f"{name} is not a {kind.what} of version {kind.version}: '{key}' {given}, not {_short(wanted)}"
            return refuse(kind.codes[1], message, help=kind.help)
    if () in by_place:
        return refuse(kind.codes[1], f"{name} is not a {kind.what}: {_reason(by_place[()])}", help=kind.help)
    # What is wrong with a list as a whole may only follow from what is wrong with one of its items.
    around = {e["loc"][:k] for e in found for k in range(len(e["loc"]))}
    own = [e for e in found if e["loc"] not in around]
    return ChimeraError(
        Diagnostic(kind.codes[2], f"{name}: {_place(e['loc'])}: {_reason(e)}", help=_near(e, known), about=e["loc"])
        for e in own[:MAX_FINDINGS]
    )


def _near(e: Any, known: set[str]) -> str:
    """Return a help that names the field or the op that was nearly written."""
    word, names = "", set[str]()
    if e["type"] in _UNKNOWN:
        word, names = str(e["loc"][-1]), known - {e["loc"][-1]}
    elif e["type"] == "union_tag_invalid":
        word, names = str(e["ctx"]["tag"]), set(re.findall(r"\w+", e["ctx"]["expected_tags"]))
    near = difflib.get_close_matches(word, sorted(names), n=1, cutoff=0.75)
    return f"did you mean '{near[0]}'?" if near else ""


def _not_json(kind: Kind, text: str, name: str) -> ChimeraError:
    try:
        json.loads(text)
    except json.JSONDecodeError as e:
        span = Span(Source(name, text), e.lineno, e.colno, e.lineno, e.colno + 1)
        return refuse(kind.codes[0], f"{name} is not JSON: {e.msg[0].lower()}{e.msg[1:]}", span, label="here")
    except (RecursionError, ValueError):
        pass
    depth = 0
    for found in _EXTREME.finditer(text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(found[0], 0)
        fault = help = ""
        if depth > MAX_DEPTH:
            fault, help = f"brackets are nested more than {MAX_DEPTH} deep", f"a {kind.what} nests less than 10 deep"
        elif found[1]:
            fault, help = f"a number has {len(found[0].lstrip('-'))} digits", f"no number of a {kind.what} has more than 19"
        elif _LONE.search(found[0]):
            fault, help = "half of a surrogate pair stands alone, which is no character", "write the character itself"
        if fault:
            start = found.start() + (half.start() if (half := _LONE.search(found[0])) else 0)
            return refuse(
                kind.codes[0], f"{name} cannot be read: {fault}", Source(name, text).span(start, start + 1), "here", help=help
            )
    return refuse(kind.codes[0], f"{name} is not JSON that a {kind.what} can be read from")


MAX_DEPTH = 200  # of brackets, as pydantic reads
_EXTREME = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]|(-?\d{4300,})', re.DOTALL)
_LONE = re.compile(r"\\u[dD][89abAB]..(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..)\\u[dD][c-fC-F]..")


def _place(loc: tuple[int | str, ...]) -> str:
    """Return a path into the file. The value of a discriminator, which pydantic adds to a path, is left out."""
    return "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in _path(loc)).lstrip(".")


def _path(loc: tuple[int | str, ...]) -> Iterator[int | str]:
    for k, p in enumerate(loc):
        # An instruction stands at two indices, and its op after them. What pydantic says of a key ends in [key].
        if p != "[key]" and not (k > 2 and isinstance(loc[k - 1], int) and isinstance(loc[k - 2], int) and str(p).isupper()):
            yield p


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def _reason(e: Any) -> str:
    match e["type"]:
        case "missing":
            return "this field is missing"
        case unknown if unknown in _UNKNOWN:
            return "this field is unknown"
        case "union_tag_invalid":
            field, given, known = (e["ctx"][key] for key in ("discriminator", "tag", "expected_tags"))
            return f"unknown {field.strip(chr(39))} {_short(given)}; known: {known.replace(chr(39), chr(34))}"
        case "union_tag_not_found":
            return f"this has no {e['ctx']['discriminator']}"
        case "string_pattern_mismatch" if "\\p" in e["ctx"]["pattern"]:
            return f"expected a text without control characters{_found(e)}"
        case "string_pattern_mismatch":
            return f"expected a name, at most 64 letters, digits and _, not a digit first{_found(e)}"
        case word if word in _EXPECTED:
            return f"expected {_EXPECTED[word].format(**e.get('ctx', {})).replace(chr(39), chr(34))}{_found(e)}"
        case _:
            return f"{e['msg'][0].lower()}{e['msg'][1:]}{_found(e)}"


def _found(e: Any) -> str:
    return f", found {_short(e['input'])}" if "input" in e else ""


# What was expected, by pydantic's name of the error, in JSON's words.
_EXPECTED = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "int_parsing": "an integer",
    "int_parsing_size": "an integer of at most 19 digits",
    "bool_type": "true or false",
    "string_type": "a string",
    "tuple_type": "a list",
    "dataclass_type": "an object",
    "dataclass_exact_type": "an object",
    "dict_type": "an object",
    "mapping_type": "an object",
    "literal_error": "{expected}",
    "greater_than_equal": "{ge} or more",
    "less_than_equal": "{le} or less",
    "less_than": "less than {lt}",
    "too_short": "a list with {min_length} or more items",
    "too_long": "a list with {max_length} or fewer items",
    "string_too_short": "a string of at least {min_length} characters",
    "string_too_long": "a string of at most {max_length} characters",
}
