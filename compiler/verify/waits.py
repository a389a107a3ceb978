"""The waits of a program on one machine, and how far a program that hangs gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, assert_never

import numpy as np
import numpy.typing as npt

from chimerac.chimera_ir.instructions import Op
from chimerac.chimera_ir.program import Ints, Machine


class Reason(IntEnum):
    """The reason why a node waits for another.

    Attributes:
        READ: a reader waits for the SEND of its value or, on machines whose transfers queue, for the completion of its
            transfer.
        POST: a SEND waits for a RECV of its channel: with window K, SEND number i for RECV number i - K. Only on machines
            without queues.
        END: the completion of a transfer or of a collective waits until one of its ends is posted; it has one such wait for
            each end. Only on machines with queues.
        QUEUE: a completion waits for the one before it in a queue. Only on machines with queues.
        WINDOW: a SEND waits for an earlier transfer of its channel to complete; with window 0, the instruction after the SEND
            waits for the SEND's transfer. Only on machines with queues; on the others POST is the wait for the window.
    """

    READ = 0
    POST = 1
    END = 2
    QUEUE = 3
    WINDOW = 4


READ, POST, END, QUEUE, WINDOW = Reason

Condition = Literal["values", "window"]


def blocks(op: Op) -> Condition | None:
    """Return the condition under which the rank continues after it has reached an instruction; None if it always does.

    values: the values that the instruction reads have arrived; window: fewer sends of its channel are incomplete than the
    window of the machine allows, or with window 0 its own send is complete. What this means on each machine is in progress.py.
    """
    match op:
        case Op.FWD | Op.BWD | Op.BWD_INPUT:
            return "values"
        case Op.SEND:
            return "window"
        case Op.BWD_WEIGHT | Op.RECOMPUTE | Op.RECV | Op.ALLREDUCE | Op.FREE:
            return None
        case _:
            assert_never(op)


CONDITIONS: tuple[Condition, ...] = tuple(dict.fromkeys(condition for op in Op if (condition := blocks(op))))


def completion_of(op: Op) -> Literal["", "message", "collective"]:
    """Return what an instruction posts one end of: a message or a collective, which completes after all ends are posted.

    Return '' for an instruction that posts nothing. A rank joins a collective once (E451), so each of `Program.collectives` has
    one completion.
    """
    match op:
        case Op.FWD | Op.BWD | Op.BWD_INPUT | Op.BWD_WEIGHT | Op.RECOMPUTE | Op.FREE:
            return ""
        case Op.SEND | Op.RECV:
            return "message"
        case Op.ALLREDUCE:
            return "collective"
        case _:
            assert_never(op)


COLLECTIVES = tuple(op for op in Op if completion_of(op) == "collective")


@dataclass(frozen=True, slots=True)
class Waits:
    """Columns of equal length, sorted by target: node `target` waits until node `source` has been executed.

    Attributes:
        nodes: the number of nodes. They are the rows of the program and, on `paired` and `serial`, the completions of transfers
            and collectives, numbered after the rows.
        reason: the `Reason` of each wait.
    """

    nodes: int
    target: Ints
    source: Ints
    reason: Ints

    @staticmethod
    def of(nodes: int, parts: Sequence[tuple[Ints, Ints, int]]) -> Waits:
        """Return the waits of all parts. Each part is (targets, sources, the reason of all its waits)."""
        target, source = (np.concatenate([part[k] for part in parts]) for k in (0, 1))
        reason = np.concatenate([np.full(len(part[0]), part[2]) for part in parts])
        order = np.argsort(target, kind="stable")
        return Waits(nodes, target[order], source[order], reason[order])


@dataclass(frozen=True, slots=True)
class Hang:
    """A state in which no rank can continue and some have not finished.

    Attributes:
        done: by node, whether it was executed.
    """

    machine: Machine
    waits: Waits
    done: npt.NDArray[np.bool_]

    @property
    def executed_count(self) -> int:
        """Return the number of nodes that were executed."""
        return int(np.count_nonzero(self.done))
