"""Config files: the settings of a run as YAML, each key an option. Values are checked against the types of RunSettings.

The files are YAML 1.2, in which `1e-4` is a number and `no` a text. A key is the name of an option without its two dashes at
the start, or `schedule` or `parameters`; `seq-len` and `seq_len` are the same key.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from io import StringIO
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

from chimerac.chimera_ir.diagnostics import ChimeraError, did_you_mean
from chimerac.chimera_ir.files import read
from chimerac.interpreter.launch.settings import RunSettings, as_mapping


def config_values(path: Path) -> dict[str, Any]:
    """Return the values of a config file by field of RunSettings.

    Raises ValueError, whose message names the file and what is wrong, and the key if one is wrong.
    """
    try:
        text = read(path)
    except ChimeraError as error:
        raise ValueError(f"argument --config: {error.diagnostics[0].message}") from None
    values: dict[str, Any] = {}
    for key, value in mapping_of(path, text).items():
        name = key.replace("-", "_") if isinstance(key, str) else ""
        if name not in field_types():
            near = did_you_mean(name, field_types())
            help = near if near.startswith("did you mean") else "parameters of the schedule are below the key 'parameters'"
            raise ValueError(f"{path}: unknown key '{key}'; {help}")
        if name in values:
            raise ValueError(f"{path}: {key}: this key is given twice")
        try:
            values[name] = convert(name, value, strict=True)
        except ValueError as error:
            raise ValueError(f"{path}: {key}: {error}") from None
    return values


def as_yaml(settings: RunSettings) -> str:
    """Return the settings as the text of a config file."""
    out = StringIO()
    _yaml().dump(as_mapping(settings), out)
    return out.getvalue()


def convert(name: str, value: Any, strict: bool) -> Any:
    """Return a value converted to the type of the field `name` of RunSettings.

    Args:
        strict: the value comes from a YAML file, and must have its type already. Otherwise it comes from a command line, where
            all values but those of switches are texts, or lists or mappings of texts.

    Raises ValueError, which says what is wrong with the value.
    """
    # pydantic takes 0.1 s to import, which --help does not need.
    from pydantic import ValidationError

    kind, is_optional = field_types()[name]
    if value is None and is_optional:
        return None
    if name == "parameters":
        kind = dict[str, int]
    if name == "split" and isinstance(value, str):  # 1,3,2 is a text on the command line and in YAML
        value, strict = value.split(","), False
    adapter = _adapter(kind)
    try:
        # In JSON, strict validation accepts a list as a tuple and a text as a path, but no text as a number.
        converted = adapter.validate_json(json.dumps(value), strict=True) if strict else adapter.validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = "".join(f"{part}: " if isinstance(part, str) else f"value {part + 1}: " for part in first["loc"])
        raise ValueError(f"{place}expected {expected(first)}, found {short(first['input'])}") from None
    except (TypeError, ValueError, RecursionError):  # a date, or a list that contains itself
        raise ValueError(f"a value of this kind is not allowed: {short(value)}") from None
    return tuple(converted.items()) if name == "parameters" else converted


def expected(error: Any) -> str:
    """Return in words what pydantic expected.

    Args:
        error: one of `ValidationError.errors()`.
    """
    limits = error.get("ctx", {})
    match error["type"].split("_"):
        case ["int", *_]:
            return "an integer"
        case ["float", *_]:
            return "a number"
        case ["bool", *_]:
            return "true or false"
        case ["literal", "error"]:
            return str(limits["expected"])
        case ["greater", "than", "equal"]:
            return f"{limits['ge']:g} or more"
        case ["greater", "than"]:
            return f"more than {limits['gt']:g}"
        case ["less", "than", "equal"]:
            return f"{limits['le']:.15g} or less"
        case ["less", "than"]:
            return "a finite number" if limits["lt"] == math.inf else f"less than {limits['lt']:g}"
        case ["too", "long" | "short"] | ["missing"]:
            return "a list of two numbers"
        case ["tuple", *_]:
            return "a list of numbers, as in [1, 2]"
        case ["dict", *_]:
            return "lines of the form 'NAME: NUMBER'"
        case ["string" | "path", *_]:
            return "a text"
        case _:
            return f"another value ({error['msg']})"


@cache
def field_types() -> dict[str, tuple[Any, bool]]:
    """Return by name the type of each field of RunSettings without its None, and whether None is allowed."""
    hints = get_type_hints(RunSettings, include_extras=True)
    by_name = {}
    for name in (f.name for f in fields(RunSettings)):
        parts = [part for part in get_args(hints[name]) if part is not NoneType]
        is_optional = NoneType in get_args(hints[name])
        by_name[name] = (parts[0] if is_optional else hints[name], is_optional)
    return by_name


@cache
def _adapter(kind: Any) -> Any:
    """Return pydantic's checker of a type."""
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def mapping_of(path: Path, text: str) -> Mapping[Any, Any]:
    """Return the keys and values of a YAML text, none for an empty text.

    Args:
        path: of its file, for messages.

    Raises ValueError if the text is not YAML, or if its content is no mapping.
    """
    # ruamel.yaml takes 0.05 s to import, which a run without a config file does not need.
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        content = _yaml().load(text)
    except MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ValueError(f"{path}{line}: {error.problem}") from None
    except (YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not YAML: {error}") from None
    if content is None:  # an empty file
        return {}
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected lines of the form 'key: value', found {short(content)}")
    return content


def _yaml() -> Any:
    from ruamel.yaml import YAML

    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    return yaml


def short(value: object) -> str:
    """Return a value for a message, as Python writes it: the first 57 characters of a long one."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
