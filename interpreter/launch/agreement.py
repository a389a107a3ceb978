"""What all ranks must have alike, compared in one exchange before anything else is said: a rank that does something else
would hang the others, or spoil their numbers.

Every option of the command line is compared by itself, those of tomorrow too. The exceptions are named here.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from chimerac.chimera_ir.diagnostics import refuse
from chimerac.interpreter.launch.options import option_names
from chimerac.interpreter.transport import Transport, ranks_text

NOBODY_ELSES = {"log_file"}  # rank 0 alone writes it
BY_WHAT_THEY_MAKE = {"schedule", "parameters", "width", "data"}  # a program and a text, which are compared themselves
HELP = "start every rank with the same files, options and versions"

Made = tuple[str, str, str]  # code of the finding, what it is, and its digest or another text that is equal for equals


def compare(transport: Transport, options: argparse.Namespace, program: Sequence[Made], data: Sequence[Made] = ()) -> None:
    """Compare with all ranks; called by all together. Raises ChimeraError on all of them where two differ.

    program, data: what was made of the options; the options themselves are compared after the former: E809.
    """
    mine = {
        "options": {name: _text(value) for name, value in vars(options).items() if name not in NOBODY_ELSES},
        "made": {what: value for _, what, value in (*program, *data)},
    }
    heard = [json.loads(words) for words in transport.tell_all(json.dumps(mine))]
    of_options = dict(_different([words["options"] for words in heard]))
    of_made = dict(_different([words["made"] for words in heard]))
    notes = tuple(of_options.values())
    for code, what, _ in program:
        if what in of_made:
            raise _refusal(code, what, [words["made"].get(what, "none") for words in heard], notes)
    compared = {name: words for name, words in of_options.items() if name not in BY_WHAT_THEY_MAKE}
    if compared:
        first, *others = compared.values()
        which = next(iter(compared))
        other = _other([words["options"].get(which) for words in heard])
        message = f"rank 0 and rank {other} have a different training (settings): {first}"
        raise refuse("E809", message, notes=tuple(others), help=HELP)
    for code, what, _ in data:
        if what in of_made:
            raise _refusal(code, what, [words["made"].get(what, "none") for words in heard], notes)


def _refusal(code: str, what: str, values: Sequence[str], notes: tuple[str, ...]) -> Exception:
    other = _other(values)
    mine, its = (value if len(value) < 60 else value[:12] for value in (values[0], values[other]))  # digests are cut
    return refuse(code, f"rank 0 and rank {other} have a different {what}: {mine} and {its}", notes=notes, help=HELP)


def _other(values: Sequence[object]) -> int:
    """Return the first rank that has another value than rank 0."""
    return next(rank for rank, value in enumerate(values) if value != values[0])


def _different(heard: Sequence[Mapping[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield what differs, and in words who has which value: `--lr is 0.001 on ranks 0, 2 and 0.01 on rank 1`."""
    names = option_names()
    for name in dict.fromkeys(name for said in heard for name in said):
        holders: dict[str, list[int]] = {}
        for rank, said in enumerate(heard):
            holders.setdefault(said.get(name, "unknown"), []).append(rank)
        if len(holders) > 1:
            values = [f"{value} on {ranks_text(ranks)}" for value, ranks in holders.items()]
            yield name, f"{names.get(name, name)} is {', '.join(values[:-1])} and {values[-1]}"


def _text(value: object) -> str:
    """Return the value of an option as a person gives it."""
    match value:
        case None:
            return "not given"
        case bool():
            return "yes" if value else "no"
        case list():  # parameters, whose order means nothing
            return " ".join(f"{name}={number}" for name, number in sorted(value)) or "not given"
        case str() | int() | float() | Path():
            return str(value)
        case _:
            raise AssertionError(f"an option of a type that nobody compares yet: {value!r}")
