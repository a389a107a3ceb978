"""Streams as they are read: columns that grow by one instruction at a time, so that a program of millions of them takes some
tens of bytes for each. Nothing is kept by tuples of numbers from a file: their hashes could be made to collide."""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping
from typing import Any

import numpy as np

from chimerac.chimera_ir import limits
from chimerac.chimera_ir.instructions import MAX_ID, AllReduce, Free, Instruction, Op, Recv, Send, Task, Value
from chimerac.chimera_ir.program import OVERLAP, RECOMPUTE, Header, Program, Table

_OPS: dict[str, int] = {op.name: int(op) for op in Op}
_VALUES: dict[str, int] = {value.name: int(value) for value in Value}
_FLAGS = {"overlap": OVERLAP, "recompute": RECOMPUTE}
_GROUP = re.compile(r"(?:stage [0-9]{1,10}|[A-Za-z_][A-Za-z0-9_]{0,63})")
_INT = {int}
SEND, RECV, ALLREDUCE, FREE = int(Op.SEND), int(Op.RECV), int(Op.ALLREDUCE), int(Op.FREE)


class Streams:
    """The instructions read so far, rank after rank."""

    def __init__(self) -> None:
        self._rows = array("q")  # seven numbers for each: the columns of a table
        self._offsets = array("q")
        self._groups: dict[bytes, int] = {}  # micro-batches of a task that has several, or of one that no pipe may have
        self._collectives: dict[tuple[str, int, bytes], int] = {}
        self._tasks = self._sums = 0

    def __len__(self) -> int:
        """Return how many streams have begun."""
        return len(self._offsets)

    @property
    def last(self) -> int:
        """Return how many instructions the last stream has."""
        return len(self._rows) // 7 - self._offsets[-1]

    def begin(self) -> None:
        """Begin the stream of the next rank."""
        self._offsets.append(len(self._rows) // 7)

    def excess(self) -> str:
        """Return which limit the instructions exceed, in words; nothing if there is none."""
        for what, count, most in (
            ("streams", len(self._offsets), limits.RANKS),
            ("tasks", self._tasks, limits.TASKS),
            ("ALLREDUCE", self._sums, limits.CELLS),
            ("instructions", len(self._rows) // 7, limits.INSTRUCTIONS),
        ):
            if count > most:
                return f"more than {most} {what}"
        return ""

    def fits(self, fields: Mapping[str, Any]) -> bool:
        """Add an instruction, given as the fields of its JSON object; or return False where anything about them is wrong.

        What is accepted here is what the types of `Instruction` say. They are the rule, and say what is wrong.
        """
        try:
            op, stage = _OPS[fields["op"]], fields["stage"]
            if type(stage) is not int or not 0 <= stage <= MAX_ID:
                return False
            if op == ALLREDUCE:
                return len(fields) == 4 and self._sum(fields["group"], stage, fields["ranks"])
            pipe, ids = fields["pipe"], fields["micro_batches"]
            if type(pipe) is not int or not 0 <= pipe <= MAX_ID:
                return False
            known, value, peer, flags = 4, 0, 0, 0
            if op >= SEND:
                known, value = 5, _VALUES[fields["value"]]
                if op != FREE:
                    known, peer = 6, fields["peer"]
                    if type(peer) is not int or not 0 <= peer <= MAX_ID:
                        return False
            elif len(fields) > 4:
                for name, bit in _FLAGS.items():
                    given = fields.get(name)
                    if given is None or (type(given) is not bool) or (bit == RECOMPUTE and op):
                        continue
                    known, flags = known + 1, flags | bit * given
            if len(fields) != known or type(ids) is not list or not _are_ids(ids):
                return False
        except (KeyError, TypeError):  # a field that is not there, or a value that no field has
            return False
        self._add(op, value, pipe, stage, ids, peer, flags)
        return True

    def add(self, i: Instruction) -> None:
        """Add an instruction."""
        match i:
            case AllReduce():
                self._collective(i.group, i.stage, array("q", i.ranks))
            case Send() | Recv():
                self._add(_OPS[i.op], _VALUES[i.value], i.pipe, i.stage, i.micro_batches, i.peer, 0)
            case Free():
                self._add(FREE, _VALUES[i.value], i.pipe, i.stage, i.micro_batches, 0, 0)
            case Task():
                flags = RECOMPUTE * getattr(i, "recompute", False) + OVERLAP * i.overlap
                self._add(_OPS[i.op], 0, i.pipe, i.stage, i.micro_batches, 0, flags)

    def _add(self, op: int, value: int, pipe: int, stage: int, ids: Any, peer: int, flags: int) -> None:
        # One micro-batch is its own number; what must be looked up counts down from -1.
        batch = ids[0] if len(ids) == 1 else ~self._groups.setdefault(array("q", ids).tobytes(), len(self._groups))
        self._rows.extend((op, value, pipe, stage, batch, peer, flags))
        self._tasks += op < SEND

    def _sum(self, group: Any, stage: int, ranks: Any) -> bool:
        fit = type(group) is str and _GROUP.fullmatch(group) and type(ranks) is list and _are_ids(ranks)
        if fit:
            self._collective(group, stage, array("q", ranks))
        return bool(fit)

    def _collective(self, group: str, stage: int, ranks: array[int]) -> None:
        number = self._collectives.setdefault((group, stage, ranks.tobytes()), len(self._collectives))
        self._rows.extend((ALLREDUCE, 0, 0, stage, number, 0, 0))
        self._sums += 1

    def program(self, header: Header) -> Program:
        """Return the program of these streams. Ids are stored as they are; whether they exist is for the verifier to say."""
        rows = np.frombuffer(self._rows or b"", np.int64).reshape(-1, 7)
        columns = [column.copy() for column in rows.T]
        # Single micro-batches come first, so that batch m is (m,) in every program that the compiler makes.
        batch, known = columns[4], header.micro_batches
        single = columns[0] != ALLREDUCE
        unknown = np.unique(batch[single & (batch >= known)])
        groups = [tuple(np.frombuffer(ids, np.int64).tolist()) for ids in self._groups]
        alone = single & (batch >= known)
        batch[alone] = known + len(groups) + np.searchsorted(unknown, batch[alone])
        batch[single & (batch < 0)] = known + ~batch[single & (batch < 0)]
        collectives = tuple(AllReduce(g, s, tuple(np.frombuffer(r, np.int64).tolist())) for g, s, r in self._collectives)
        return Program(
            header,
            Table(*columns),
            np.array([*self._offsets, len(rows)], np.int64),
            (*((m,) for m in range(known)), *groups, *((m,) for m in unknown.tolist())),
            collectives,
        )


def _are_ids(numbers: list[Any]) -> bool:
    if len(numbers) == 1:
        return type(numbers[0]) is int and 0 <= numbers[0] <= MAX_ID
    return 0 < len(numbers) <= limits.RANKS and set(map(type, numbers)) == _INT and min(numbers) >= 0 and max(numbers) <= MAX_ID
