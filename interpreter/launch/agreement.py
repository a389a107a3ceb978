"""The comparison of all ranks before they run. A rank with other settings could hang the others or give wrong results.

Every field of the settings is compared, so a new field needs no code here. The exceptions are NOT_COMPARED and
COMPARED_INDIRECTLY.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from chimerac.chimera_ir.diagnostics import refuse
from chimerac.interpreter.launch.options import option_names
from chimerac.interpreter.transport import Transport, ranks_text

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

# Only rank 0 writes log_file and tensorboard. work_dir and data_dir may differ between hosts. But paths that start from
# work_dir, such as save_dir, are compared with it in front of them.
NOT_COMPARED = {"log_file", "tensorboard", "work_dir", "data_dir"}
# The program, its partition and the data that result from these settings are compared instead.
COMPARED_INDIRECTLY = {"schedule", "parameters", "width", "split", "partition", "data", "tokenizer"}
HELP = "start every rank with the same files, options and versions"

# Something derived from the settings: the code of its finding, its name, and a text that identifies it, such as a digest.
Derived = tuple[str, str, str]


def compare(
    transport: Transport,
    settings: DataclassInstance,
    program: Sequence[Derived],
    data: Sequence[Derived] = (),
    defaults: Mapping[str, object] = MappingProxyType({}),
) -> None:
    """Compare the settings, and what is derived from them, between all ranks; called by all ranks together.

    Args:
        program, data: what the settings result in, for the program and for the data.
        defaults: by name, the values that replace None. So leaving out an option equals giving it its default.

    Raises ChimeraError on all ranks if two ranks differ: in `program`, with the code there; otherwise in the settings, with
    E809; otherwise in `data`, with the code there.
    """
    given = {f.name: getattr(settings, f.name) for f in fields(settings) if f.name not in NOT_COMPARED}
    values = {name: _text(defaults.get(name) if value is None else value) for name, value in given.items()}
    own = {"settings": values, "derived": {name: value for _, name, value in (*program, *data)}}
    by_rank = [json.loads(text) for text in transport.all_gather(json.dumps(own))]
    settings_by_rank = [rank["settings"] for rank in by_rank]
    derived = [rank["derived"] for rank in by_rank]
    different = dict(_different_settings(settings_by_rank))
    notes = tuple(different.values())
    _compare_derived(program, derived, notes)
    compared = {name: text for name, text in different.items() if name not in COMPARED_INDIRECTLY}
    if compared:
        name, text = next(iter(compared.items()))
        other = _first_different_rank([of_rank.get(name) for of_rank in settings_by_rank])
        message = f"rank 0 and rank {other} have a different training (settings): {text}"
        raise refuse("E809", message, notes=tuple(compared.values())[1:], help=HELP)
    _compare_derived(data, derived, notes)


def _compare_derived(own: Sequence[Derived], by_rank: Sequence[Mapping[str, str]], notes: tuple[str, ...]) -> None:
    """Raise ChimeraError for the first derived text that differs between two ranks.

    Args:
        own: the derived texts of this rank, with their codes.
        by_rank: for each rank its derived texts by name.
        notes: the settings that differ, which may be the reason.
    """
    for code, name, _ in own:
        values = [derived.get(name, "none") for derived in by_rank]
        if len(set(values)) > 1:
            other = _first_different_rank(values)
            # A text of 60 characters or more begins with a digest, of which 12 characters are enough.
            first, second = (value if len(value) < 60 else value[:12] for value in (values[0], values[other]))
            message = f"rank 0 and rank {other} have a different {name}: {first} and {second}"
            raise refuse(code, message, notes=notes, help=HELP)


def _first_different_rank(values: Sequence[object]) -> int:
    """Return the first rank whose value differs from that of rank 0."""
    return next(rank for rank, value in enumerate(values) if value != values[0])


def _different_settings(by_rank: Sequence[Mapping[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield the name of each setting that differs, and a text such as `--lr is 0.001 on ranks 0, 2 and 0.01 on rank 1`."""
    names = option_names()
    for name in dict.fromkeys(name for settings in by_rank for name in settings):
        holders: dict[str, list[int]] = {}
        for rank, settings in enumerate(by_rank):
            holders.setdefault(settings.get(name, "unknown"), []).append(rank)
        if len(holders) > 1:
            values = [f"{value} on {ranks_text(ranks)}" for value, ranks in holders.items()]
            yield name, f"{names.get(name, name)} is {', '.join(values[:-1])} and {values[-1]}"


def _text(value: object) -> str:
    """Return the value of a setting as text, for the comparison and for messages."""
    match value:
        case None:
            return "not given"
        case bool():
            return "yes" if value else "no"
        case (float() | int(), *_):
            return " ".join(map(str, value))
        case tuple():  # parameters: their order makes no difference
            return " ".join(f"{name}={number}" for name, number in sorted(value)) or "not given"
        case str() | int() | float() | Path():
            return str(value)
        case _:
            raise AssertionError(f"a setting of a type that cannot be compared: {value!r}")
