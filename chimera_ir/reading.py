"""Reading untrusted files: pydantic checks them strictly, and its errors become findings."""

from __future__ import annotations

import difflib
import json
import re
from functools import cache
from typing import Annotated, Any, TypeVar

from pydantic import Field, TypeAdapter, ValidationError, WithJsonSchema

from chimerac.chimera_ir.diagnostics import ChimeraError, Diagnostic, Source, refuse
from chimerac.chimera_ir.instructions import GROUP, NAME, NAME_FORM
from chimerac.chimera_ir.json_checks import MAX_FINDINGS, MAX_QUOTED, Kind, check_objects, not_json
from chimerac.chimera_ir.scanning import Excerpt, Path, place_in_words

T = TypeVar("T")
# The field `version` of a file: the integer 1. Literal[1] would also accept true and 1.0.
VersionOne = Annotated[int, Field(ge=1, le=1), WithJsonSchema({"const": 1, "title": "Version", "type": "integer"})]
_QUOTE, _DOUBLE_QUOTE = "'", '"'  # pydantic quotes the values that it expects with the first, findings with the second
_UNKNOWN_FIELD = ("unexpected_keyword_argument", "extra_forbidden")  # pydantic's names of this error
# By pattern: what matches it, in words.
_NAMES = {
    f"^{NAME.pattern}$": f"a name: {NAME_FORM}",
    f"^{GROUP.pattern}$": f"the word stage with a number, or a name: {NAME_FORM}",
}


def read_json(adapter: TypeAdapter[T], kind: Kind, text: str, name: str) -> T:
    """Return the value that a JSON text holds.

    Args:
        name: of the text, in messages.

    Raises ChimeraError with one of `kind.codes`.
    """
    return read_part(adapter, kind, Excerpt(text, Source(name, text)))


def read_part(adapter: TypeAdapter[T], kind: Kind, part: Excerpt, path: Path = ()) -> T:
    """Return the value that a part of a JSON text holds. Raises ChimeraError with one of `kind.codes`.

    Args:
        path: where this part is in the file, for findings.
    """
    schema = _schema(adapter)
    check_objects(kind, part, path, set(schema.get("properties", ())), set(schema.get("required", ())))
    try:
        return adapter.validate_json(part.text)
    except ValidationError as error:
        raise _explain(error, kind, part, path, _fields(schema)) from None


@cache
def _schema(adapter: TypeAdapter[Any]) -> dict[str, Any]:
    """Return the JSON Schema of a kind of file, or of a part of it."""
    return adapter.json_schema()


def _fields(schema: dict[str, Any]) -> set[str]:
    """Return the names of all fields in a schema, those of inner objects included."""
    return {field for part in (schema, *schema.get("$defs", {}).values()) for field in part.get("properties", {})}


def _explain(error: ValidationError, kind: Kind, part: Excerpt, path: Path, known: set[str]) -> ChimeraError:
    """Return the findings for pydantic's errors.

    Args:
        known: the names of all fields of the schema (`_fields`).
    """
    # pydantic converts the input of every error to Python values. For a missing field the input is the whole enclosing object.
    # So the inputs are left out for a long text.
    errors = error.errors(include_url=False, include_input=len(part.text) <= MAX_QUOTED)
    name = part.source.name
    if errors[0]["type"] in ("json_invalid", "string_unicode"):  # the second: half of a surrogate pair, not escaped
        return not_json(kind, part)
    by_place = {(*path, *e["loc"]): e for e in errors}
    for key, expected in (("format", kind.format), ("version", kind.version)):
        wrong = by_place.get((key,))
        if wrong:
            fact = f"has another value, expected {_short(expected)}"
            if wrong["type"] == "missing":
                fact = f"is missing, expected {_short(expected)}"
            elif "input" in wrong:
                fact = f"is {_short(wrong['input'])}, expected {_short(expected)}"
            message = f"{name} is not a {kind.what} of version {kind.version}: '{key}' {fact}"
            return refuse(kind.codes[1], message, help=kind.help)
    if () in by_place:
        return refuse(kind.codes[1], f"{name} is not a {kind.what}: {_reason(by_place[()])}", help=kind.help)
    # An error of a whole list may be only a consequence of an error in one of its items: the innermost errors are kept.
    ancestors = {loc[:k] for loc in by_place for k in range(len(loc))}
    leaves = [(loc, e) for loc, e in by_place.items() if loc not in ancestors]
    return ChimeraError(
        Diagnostic(kind.codes[2], f"{name}: {place_in_words(loc)}: {_reason(e)}", help=_suggestion(e, known), about=loc)
        for loc, e in leaves[:MAX_FINDINGS]
    )


def _suggestion(e: Any, known: set[str]) -> str:
    """Return a suggestion: the field or the op that was probably meant; '' if no known one is similar."""
    word, names = "", set[str]()
    if e["type"] in _UNKNOWN_FIELD:
        # Without the field itself: it may be known in another object of the file.
        word, names = str(e["loc"][-1]), known - {e["loc"][-1]}
    elif e["type"] == "union_tag_invalid":
        word, names = str(e["ctx"]["tag"]), set(re.findall(r"\w+", e["ctx"]["expected_tags"]))
    near = difflib.get_close_matches(word, sorted(names), n=1, cutoff=0.75)
    return f"did you mean '{near[0]}'?" if near else ""


def _short(value: Any) -> str:
    """Return a value as JSON, cut to at most 60 characters."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def _reason(e: Any) -> str:
    """Return what one of pydantic's errors means, in terms of JSON."""
    match e["type"]:
        case "missing":
            return "this field is missing"
        case name if name in _UNKNOWN_FIELD:
            return "this field is unknown"
        case "union_tag_invalid":
            field, given, known = (e["ctx"][key] for key in ("discriminator", "tag", "expected_tags"))
            return f"unknown {field.strip(_QUOTE)} {_short(given)}; known: {known.replace(_QUOTE, _DOUBLE_QUOTE)}"
        case "value_error":
            return str(e["ctx"]["error"])
        case "union_tag_not_found":
            return f"this has no {e['ctx']['discriminator']}"
        case "string_pattern_mismatch" if "\\p" in e["ctx"]["pattern"]:  # the pattern of a LayerName (model.py)
            return f"expected a text without control characters, format characters and line separators{_found(e)}"
        case "string_pattern_mismatch":
            pattern = e["ctx"]["pattern"]
            return f"expected {_NAMES.get(pattern, f'a string that matches {pattern}')}{_found(e)}"
        case name if name in _EXPECTED:
            return f"expected {_EXPECTED[name].format(**e.get('ctx', {})).replace(_QUOTE, _DOUBLE_QUOTE)}{_found(e)}"
        case _:
            return f"{e['msg'][0].lower()}{e['msg'][1:]}{_found(e)}"


def _found(e: Any) -> str:
    """Return the value that the file has instead, as the end of a message; '' if pydantic's error is without it."""
    return f", found {_short(e['input'])}" if "input" in e else ""


# What was expected, in terms of JSON, by pydantic's name of the error.
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
    "too_long": "{max_length} or fewer items",
    "string_too_short": "a string of at least {min_length} characters",
    "string_too_long": "a string of at most {max_length} characters",
}
