"""The canonical JSON of a program: one instruction a line, fields in one order.

Equal programs with equal costs and partitions have equal bytes, and a diff of two files shows what changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import fields

from chimerac.chimera_ir.costs import Costs
from chimerac.chimera_ir.header import FORMAT, VERSION, Header
from chimerac.chimera_ir.instructions import FORMS, Collective, Form, Op, Value
from chimerac.chimera_ir.partition import Partition
from chimerac.chimera_ir.table import FLAGS, Ints, Table


def json_lines(
    header: Header,
    costs: Costs | None,
    partition: Partition | None,
    table: Table,
    offsets: Ints,
    micro_batch_lists: Sequence[tuple[int, ...]],
    collectives: Sequence[Collective],
) -> Iterator[str]:
    """Yield the JSON text of a program in pieces. The arguments are the fields of `Program` (program.py).

    Args:
        costs, partition: None leaves its line out.
    """
    yield f'{{"format": "{FORMAT}", "version": {VERSION},\n'
    for f in fields(Header):
        value = getattr(header, f.name)
        if f.name in ("pipes", "tied"):
            listed = ",\n  ".join(json.dumps({k.name: getattr(row, k.name) for k in fields(row)}) for row in value)
            yield f'"{f.name}": [{listed}],\n'
        else:
            yield f'"{f.name}": {json.dumps(dict(value) if f.name in ("parameters", "limits") else value)},\n'
        if f.name == "pipes" and costs is not None:
            yield f'"costs": {json.dumps(costs.given())},\n'
        if f.name == "pipes" and partition is not None:
            yield f'"partition": {json.dumps(partition.to_json())},\n'
    micro_batches = [json.dumps(ids) for ids in micro_batch_lists]
    collective_texts = [_collective(c) for c in collectives]
    yield '"streams": [\n'
    for g in range(len(offsets) - 1):
        stream = slice(int(offsets[g]), int(offsets[g + 1]))
        rows = zip(*(c[stream].tolist() for c in table.columns()), strict=True)
        yield " [" + ",\n  ".join(_row(row, micro_batches, collective_texts) for row in rows) + "]"
        yield ",\n" if g + 2 < len(offsets) else "\n"
    yield "]}\n"


def _collective(i: Collective) -> str:
    return json.dumps({"op": i.op, **{name: getattr(i, name) for name in FORMS[Op[i.op]].fields}})


def _row(row: tuple[int, ...], micro_batches: list[str], collectives: list[str]) -> str:
    """Return the text of a row.

    Args:
        micro_batches, collectives: the texts to which column `operand` refers.
    """
    # Written from columns, not from instruction values: a program of a million instructions is written in seconds.
    op, value, pipe, stage, operand, peer, flags = row
    template = _TEMPLATES[op]
    if not template:
        return collectives[operand]
    return template.format(_VALUES[value], pipe, stage, micro_batches[operand], peer, _FLAGS[flags])


# The placeholder of each field in a template: the number of the argument that `_row` passes to `format`. {5} has the flags.
_ARGUMENTS = {"value": '"{0}"', "pipe": "{1}", "stage": "{2}", "micro_batches": "{3}", "peer": "{4}"}


def _template(form: Form) -> str:
    """Return the format of the instructions of one operation, or an empty string for collectives, whose texts are made once."""
    if "ranks" in form.fields:
        return ""
    named = [f'"{name}": {_ARGUMENTS[name]}' for name in form.fields if name not in FLAGS]
    return "{{" + ", ".join([f'"op": "{form.op.name}"', *named]) + "{5}}}"


_TEMPLATES = [_template(form) for form in FORMS]
_VALUES = [value.name for value in Value]
# The text of the flags, for each value of the column `flags`.
_FLAGS = ["".join(f', "{name}": true' for name, bit in FLAGS.items() if bits & bit) for bits in range(1 << len(FLAGS))]
