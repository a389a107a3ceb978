"""Reading streams: exactly the instructions that the types accept are accepted, and how micro-batches are numbered."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from chimerac.chimera_ir.instructions import MAX_ID, Op
from chimerac.chimera_ir.jsonform import _instruction_adapter, program_from_json, program_to_json
from chimerac.chimera_ir.program import Costs, Program
from chimerac.chimera_ir.streams import Streams, program_of
from chimerac.chimera_ir.textform import program_from_text, program_to_text
from tests.effort import examples
from tests.helpers import program

HEADER = program("1f1b", D=2, N=2).header
integers = st.sampled_from([0, 1, 2, 7, MAX_ID, MAX_ID + 1, -1, 2**63, 2**64, 10**30])
wrong_types = st.sampled_from([True, False, None, 1.0, 1.5, "0", "", [], [0], {}, float("nan")])
integer_or_wrong = integers | wrong_types
list_or_wrong = st.lists(integer_or_wrong, max_size=3) | wrong_types | integers
boolean_or_wrong = st.booleans() | wrong_types
# By field: values to draw, valid ones and others.
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "op": st.sampled_from([*Op.__members__, "FWD ", "fwd", ""]) | wrong_types,
    "value": st.sampled_from(["act", "grad", "Act"]) | wrong_types,
    "pipe": integer_or_wrong,
    "stage": integer_or_wrong,
    "micro_batches": list_or_wrong,
    "peer": integer_or_wrong,
    "group": st.sampled_from(["stage 0", "stage 12345678901", "t", "t[0]", "stage 0\n", "x" * 65, "é"]) | wrong_types,
    "ranks": list_or_wrong,
    "recompute": boolean_or_wrong,
    "overlap": boolean_or_wrong,
    "more": integer_or_wrong,  # a field that no instruction has
}
# By operation: the fields that it needs.
SHAPES = {
    "FWD": ("pipe", "stage", "micro_batches"),
    "BWD": ("pipe", "stage", "micro_batches"),
    "SEND": ("value", "pipe", "stage", "micro_batches", "peer"),
    "RECV": ("value", "pipe", "stage", "micro_batches", "peer"),
    "FREE": ("value", "pipe", "stage", "micro_batches"),
    "ALLREDUCE": ("group", "stage", "ranks"),
}
# By field: a valid value.
RIGHT = {"value": "act", "pipe": 0, "stage": 1, "micro_batches": [0], "peer": 1, "group": "t", "ranks": [0, 1]}


@st.composite
def objects(draw: st.DrawFn) -> dict[str, Any]:
    """Draw the JSON object of an instruction with up to three fields changed, added or left out."""
    op = draw(st.sampled_from(list(SHAPES)))
    fields = {"op": op} | {name: RIGHT[name] for name in SHAPES[op]}
    for name in draw(st.lists(st.sampled_from(list(VALUES)), max_size=3)):
        if draw(st.booleans()) or name not in fields:
            fields[name] = draw(VALUES[name])
        else:
            del fields[name]
    return fields


def program_of_rows(rows: Streams) -> Program:
    return rows.program(HEADER, Costs.default(HEADER.stages))


@examples(1500)
@given(objects())
def test_the_reader_accepts_exactly_the_instructions_that_the_types_accept(fields: dict[str, Any]) -> None:
    rows = Streams()
    rows.begin()
    is_added = rows.add_if_valid(fields)
    try:
        instruction = _instruction_adapter().validate_json(json.dumps(fields))
    except ValidationError:
        assert not is_added and not rows.last_length
        return
    assert is_added and rows.last_length == 1
    assert program_of_rows(rows).stream(0) == program_of(HEADER, [[instruction]]).stream(0) == (instruction,)


def test_single_micro_batches_are_numbered_first_as_in_a_compiled_program() -> None:
    """Then come groups, then ids that no pipe has. A group may have another number than in the compiled program."""
    compiled = program("chimera_halving", D=4, N=8)
    for read, write in ((program_from_json, program_to_json), (program_from_text, program_to_text)):
        reread = read(write(compiled))
        assert set(reread.micro_batch_lists) == set(compiled.micro_batch_lists)
        assert reread.micro_batch_lists[:8] == tuple((m,) for m in range(8))
        for name in ("op", "value", "pipe", "stage"):
            assert (getattr(reread.table, name) == getattr(compiled.table, name)).all(), name
        assert all(reread.micro_batch_lists[a] == compiled.micro_batch_lists[b] for a, b in operands_of(reread, compiled))
    rows = Streams()
    rows.begin()
    given = [[0], [9], [0, 1], [MAX_ID], [9], [1, 0], [0, 1]]
    for ids in given:
        assert rows.add_if_valid({"op": "FWD", "pipe": 0, "stage": 0, "micro_batches": ids})
    assert [list(i.micro_batches) for i in program_of_rows(rows).stream(0)] == given
    assert program_of_rows(rows).micro_batch_lists == ((0,), (1,), (0, 1), (1, 0), (9,), (MAX_ID,))


def operands_of(a: Program, b: Program) -> list[tuple[int, int]]:
    """Return, for every instruction that names micro-batches, the number of its list in `a` and in `b`, two equal programs."""
    rows = np.flatnonzero(a.table.op != Op.ALLREDUCE)
    return list(zip(a.table.operand[rows].tolist(), b.table.operand[rows].tolist(), strict=True))
