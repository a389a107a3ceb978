"""Building a program from instructions, added one at a time: each takes some tens of bytes.

Where a list of numbers from a file is the key of a dictionary, it is stored as bytes, not as a tuple: a file could be
constructed so that the hashes of tuples collide.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields as fields_of
from typing import Any, cast

import numpy as np

from chimerac.chimera_ir import limits
from chimerac.chimera_ir.instructions import FORMS, GROUP, MAX_ID, Collective, Form, Instruction, Task, Value
from chimerac.chimera_ir.partition import Partition
from chimerac.chimera_ir.program import Costs, Header, Program, Table
from chimerac.chimera_ir.table import FLAGS

_COLUMNS = len(fields_of(Table))
_VALUES: dict[str, int] = {value.name: int(value) for value in Value}
_INT = {int}


class _Shape:
    """A `Form`, prepared for fast reading.

    Attributes:
        flags: the bit of each flag.
        required: the number of fields that are no flags.
    """

    def __init__(self, form: Form) -> None:
        self.op, self.form, self.is_task = int(form.op), form, issubclass(form.cls, Task)
        self.has_value, self.has_peer, self.is_collective = (name in form.fields for name in ("value", "peer", "ranks"))
        self.flags = {name: bit for name, bit in FLAGS.items() if name in form.fields}
        self.required = len(form.fields) - len(self.flags)


_SHAPES = {form.op.name: _Shape(form) for form in FORMS}


class Streams:
    """The instructions added so far, rank after rank."""

    def __init__(self) -> None:
        self._rows = array("q")  # the numbers of a table, row after row
        self._offsets = array("q")  # the first row of each stream
        self._groups: dict[bytes, int] = {}  # lists of several micro-batches or of none, as bytes, to their numbers
        self._collectives: dict[tuple[Any, ...], int] = {}  # an op and the values of its fields, ranks as bytes, to a number
        self._tasks = self._all_reduces = 0  # how many instructions of these kinds there are

    def __len__(self) -> int:
        """Return the number of streams so far."""
        return len(self._offsets)

    @property
    def last_length(self) -> int:
        """Return the number of instructions of the last stream."""
        return len(self._rows) // _COLUMNS - self._offsets[-1]

    def begin(self) -> None:
        """Begin the stream of the next rank."""
        self._offsets.append(len(self._rows) // _COLUMNS)

    def excess(self) -> str:
        """Return in words which limit the streams or their instructions exceed, or an empty string."""
        for what, count, most in (
            ("streams", len(self._offsets), limits.RANKS),
            ("tasks", self._tasks, limits.TASKS),
            ("ALLREDUCE", self._all_reduces, limits.CELLS),
            ("instructions", len(self._rows) // _COLUMNS, limits.INSTRUCTIONS),
        ):
            if count > most:
                return f"more than {most} {what}"
        return ""

    def add_if_valid(self, fields: Mapping[str, Any]) -> bool:
        """Add the instruction with these fields of its JSON object, and return True.

        Return False, and add nothing, if a field is invalid, missing or unknown. This check accepts exactly what pydantic
        accepts by the types of `Instruction`, and is faster. For what it rejects, the caller lets pydantic write the messages.
        """
        try:
            shape = _SHAPES[fields["op"]]
            if shape.is_collective:
                return self._add_collective_if_valid(shape, [fields[name] for name in shape.form.fields], len(fields))
            pipe, stage, ids = fields["pipe"], fields["stage"], fields["micro_batches"]
            value = peer = flags = 0
            if not (_is_id(pipe) and _is_id(stage) and type(ids) is list and _are_ids(ids)):
                return False
            if shape.has_value:
                value = _VALUES[fields["value"]]
            if shape.has_peer and not _is_id(peer := fields["peer"]):
                return False
            valid_count = 1 + shape.required
            if len(fields) > valid_count:
                for name, bit in shape.flags.items():
                    given = fields.get(name)
                    if type(given) is bool:
                        valid_count += 1
                        flags |= bit if given else 0
            if len(fields) != valid_count:
                return False
        except (KeyError, TypeError):  # a missing field, or a value of a wrong type
            return False
        self._add(shape, value, pipe, stage, ids, peer, flags)
        return True

    def add(self, i: Instruction) -> None:
        """Add an instruction."""
        shape = _SHAPES[i.op]
        fields = {name: getattr(i, name) for name in shape.form.fields}
        if shape.is_collective:
            self._add_collective(shape, list(fields.values()))
            return
        value = _VALUES[fields["value"]] if shape.has_value else 0
        flags = sum(bit for name, bit in shape.flags.items() if fields[name])
        self._add(shape, value, fields["pipe"], fields["stage"], fields["micro_batches"], fields.get("peer", 0), flags)

    def _add(self, shape: _Shape, value: int, pipe: int, stage: int, ids: Any, peer: int, flags: int) -> None:
        # A single micro-batch is stored as its id, any other list as a number from -1 downwards. `program` replaces both by
        # indices of its lists.
        operand = ids[0] if len(ids) == 1 else ~self._groups.setdefault(array("q", ids).tobytes(), len(self._groups))
        self._rows.extend((shape.op, value, pipe, stage, operand, peer, flags))
        if shape.is_task:
            self._tasks += 1

    def _add_collective_if_valid(self, shape: _Shape, values: list[Any], given: int) -> bool:
        """Add an instruction with `ranks` if the values of its fields are valid.

        Args:
            given: the number of its fields in JSON.
        """
        names = shape.form.fields
        valid = given == 1 + len(names) and all(_VALID[name](value) for name, value in zip(names, values, strict=True))
        if valid:
            self._add_collective(shape, values)
        return valid

    def _add_collective(self, shape: _Shape, values: list[Any]) -> None:
        names = shape.form.fields
        key = (shape.op, *(array("q", v).tobytes() if k == "ranks" else v for k, v in zip(names, values, strict=True)))
        number = self._collectives.setdefault(key, len(self._collectives))
        stage = values[names.index("stage")] if "stage" in names else 0
        self._rows.extend((shape.op, 0, 0, stage, number, 0, 0))
        self._all_reduces += 1

    def program(self, header: Header, costs: Costs, partition: Partition | None = None) -> Program:
        """Return the program of these streams. Ids are stored as they are; the verifier checks whether they exist."""
        rows = np.frombuffer(self._rows or b"", np.int64).reshape(-1, _COLUMNS)
        table = Table(*(column.copy() for column in rows.T))
        # The lists are numbered as in a compiled program: the header's micro-batches come first, so that list m is (m,). Groups
        # follow, then single micro-batches that the header does not have.
        operand, micro_batches, has_ids = table.operand, header.micro_batches, table.has("micro_batches")
        is_unknown = has_ids & (operand >= micro_batches)
        unknown = np.unique(operand[is_unknown])
        groups = [_ids_of(ids) for ids in self._groups]
        operand[is_unknown] = micro_batches + len(groups) + np.searchsorted(unknown, operand[is_unknown])
        is_group = has_ids & (operand < 0)
        operand[is_group] = micro_batches + ~operand[is_group]
        return Program(
            header,
            costs,
            table,
            np.array([*self._offsets, len(rows)], np.int64),
            (*((m,) for m in range(micro_batches)), *groups, *((m,) for m in unknown.tolist())),
            tuple(_collective_of(*key) for key in self._collectives),
            partition,
        )


def program_of(header: Header, streams: Iterable[Iterable[Instruction]], costs: Costs | None = None) -> Program:
    """Return the program of these streams, one per global rank.

    Args:
        costs: by default those of a program that names none.

    Ids are stored as they are; the verifier checks whether they exist.
    """
    built = Streams()
    for stream in streams:
        built.begin()
        for i in stream:
            built.add(i)
    return built.program(header, Costs.default(header.stages) if costs is None else costs)


def _collective_of(op: int, *values: Any) -> Collective:
    names = FORMS[op].fields
    fields = {k: _ids_of(v) if k == "ranks" else v for k, v in zip(names, values, strict=True)}
    return cast(Collective, FORMS[op].cls(**fields))


def _ids_of(stored: bytes) -> tuple[int, ...]:
    return tuple(np.frombuffer(stored, np.int64).tolist())


def _is_id(number: Any) -> bool:
    return type(number) is int and 0 <= number <= MAX_ID


def _are_ids(numbers: list[Any]) -> bool:
    if len(numbers) == 1:  # the most frequent case, without the call of `_is_id`
        return type(numbers[0]) is int and 0 <= numbers[0] <= MAX_ID
    return 0 < len(numbers) <= limits.RANKS and set(map(type, numbers)) == _INT and min(numbers) >= 0 and max(numbers) <= MAX_ID


# Whether a value is valid, for each field of an instruction with `ranks`.
_VALID: dict[str, Callable[[Any], bool]] = {
    "group": lambda name: type(name) is str and GROUP.fullmatch(name) is not None,
    "stage": _is_id,
    "ranks": lambda ranks: type(ranks) is list and _are_ids(ranks),
}
