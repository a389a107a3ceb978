"""Every operation in the JSON form, the text form and the columns of a program, with all VALUES of its fields."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest

from chimerac.chimera_ir.instructions import FIELDS, FORMS, Collective, Form, Instruction, Op, Task
from chimerac.chimera_ir.jsonform import program_from_json, program_to_json
from chimerac.chimera_ir.program import Program
from chimerac.chimera_ir.streams import Streams, program_of
from chimerac.chimera_ir.table import Table
from chimerac.chimera_ir.textform import program_from_text, program_to_text
from chimerac.chimera_ir.textline import instruction, instruction_text
from tests.helpers import program

HEADER = program("1f1b", D=2, N=3).header
VALUES: dict[str, list[Any]] = {  # of each field, in a program of HEADER
    "value": ["act", "grad"],
    "group": ["stage 1", "shared"],
    "pipe": [0],
    "stage": [1],
    "micro_batches": [(2,), (0, 2, 1)],
    "peer": [1],
    "ranks": [(0, 1)],
    "recompute": [False, True],
    "overlap": [False, True],
}


def instructions(form: Form) -> list[Instruction]:
    """Return instructions of one operation. Together their fields have all of VALUES."""
    most = max(len(VALUES[name]) for name in form.fields)
    return [form.cls(**{name: VALUES[name][k % len(VALUES[name])] for name in form.fields}) for k in range(most)]


def program_of_form(form: Form) -> Program:
    return program_of(HEADER, [instructions(form), []])


def test_every_operation_has_one_class() -> None:
    assert [form.op for form in FORMS] == list(Op)
    assert {form.cls for form in FORMS} == set(get_args(Instruction)) and set(VALUES) == set(FIELDS)
    collectives = set(get_args(Collective) or (Collective,))  # a union of one class is the class itself
    assert {form.cls for form in FORMS if "ranks" in form.fields} == collectives


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.op.name)
def test_an_operation_is_equal_after_writing_and_reading(form: Form) -> None:
    p = program_of_form(form)
    assert p.stream(0) == tuple(instructions(form))
    for read, write in ((program_from_json, program_to_json), (program_from_text, program_to_text)):
        reread = read(write(p))
        assert reread == p and reread.stream(0) == p.stream(0) and write(reread) == write(p)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.op.name)
def test_the_fields_of_an_operation_are_accepted_and_others_refused(form: Form) -> None:
    """Parsers fill the columns by `add_if_valid`. It creates no instruction, and refuses an unknown field or a missing `op`."""
    pipes = {name: k for k, name in enumerate(program_of_form(form).pipe_names)}
    for i in instructions(form):
        rows = Streams()
        written = json.loads(program_to_json(program_of(HEADER, [[i], []])))["streams"][0][0]
        assert written["op"] == form.op.name
        rows.begin()
        assert rows.add_if_valid(written)
        assert rows.add_if_valid(instruction(instruction_text(i, tuple(pipes)), pipes))
        assert not rows.add_if_valid(written | {"more": 1})
        assert not rows.add_if_valid({k: v for k, v in written.items() if k != "op"})


def test_the_masks_of_a_table_are_those_of_the_classes_of_its_instructions() -> None:
    table: Table = program("chimera_zb", D=4, width=2).table
    for mask, predicate in (
        (table.is_task, lambda form: issubclass(form.cls, Task)),
        (table.has("peer"), lambda form: bool(form.arrow)),
    ):
        assert mask.tolist() == [predicate(FORMS[op]) for op in table.op.tolist()]
