"""The state of the order form `listing`: the tasks that each rank has listed so far."""

from __future__ import annotations

from bisect import bisect, bisect_left
from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import chain, islice

from chimerac.chimera_ir.instructions import Op
from chimerac.compiler.syntax.kinds import KINDS

FULL_BACKWARD, INPUT_GRADIENT, WEIGHT_GRADIENT = int(Op.BWD), int(Op.BWD_INPUT), int(Op.BWD_WEIGHT)
RECOMPUTATION = int(Op.RECOMPUTE)
KIND_OF = {letter: int(op) for letter, op in KINDS.items()}
# The phase of each kind: 0 forward, 1 backward, 2 weight gradient, 3 recomputation. B and I are both the backward of a
# micro-batch.
PHASE = (0, 1, 1, 2, 3)
# By phase: the bits of the kinds after which a micro-batch needs no task of the phase. After its backward a micro-batch
# needs no recomputation. After a B it needs no weight gradient either, but that is not noted here: the next W is found with
# `Cell.pending`.
_DONE = (0b00001, 0b00110, 0b01000, 0b10110)
# By kind: the phases of which a micro-batch needs no task after a task of this kind.
_PHASES = tuple(tuple(phase for phase, done in enumerate(_DONE) if done >> kind & 1) for kind in range(len(PHASE)))
# Tables for bytearray.translate. `_WITH_KIND`, by kind: each byte with the kind's bit set. `_BITS_DONE`, by phase: each byte
# with only the bits that are in `_DONE` too.
_WITH_KIND = tuple(bytes(b | 1 << kind for b in range(256)) for kind in range(len(PHASE)))
_BITS_DONE = tuple(bytes(b & done for b in range(256)) for done in _DONE)

Places = dict[tuple[int, int], list[int]]  # by kind and id() of a cell: the places of such tasks in the body of a loop


@dataclass(slots=True)
class Cell:
    """What one rank has listed of a stage of a pipe.

    Attributes:
        micro_batches: their numbers in the program; everywhere else here a micro-batch has its number in the pipe.
        listed: for each micro-batch of the pipe, a bit per kind.
        next: for each phase, the first micro-batch that still needs a task of it, or the number of micro-batches if none does.
        pending: the micro-batches with an I and no W after it, each with the number of its I on the rank.
        meanings: id() of an action -> the number of its meaning in this cell.
    """

    pipe: int
    stage: int
    micro_batches: tuple[int, ...]
    listed: bytearray
    next: list[int] = field(default_factory=lambda: [0] * len(_DONE))
    pending: OrderedDict[int, int] = field(default_factory=OrderedDict)
    meanings: dict[int, int] = field(default_factory=dict)

    def advance(self, kind: int) -> None:
        """Advance `next`, after tasks of a kind have been listed, past the micro-batches that need no more tasks of a phase."""
        listed, count = self.listed, len(self.listed)
        for phase in _PHASES[kind]:
            done, following = _DONE[phase], self.next[phase]
            while following < count and listed[following] & done:
                following += 1
            self.next[phase] = following


@dataclass(slots=True)
class Rank:
    """What one rank has listed so far.

    Attributes:
        candidates: id() of an action -> the cells that it could mean, if no loop changes them.
        rows: the meaning and the operand of each task, in one flat list, because the garbage collector would visit tuples.
        inputs: how many I it has listed, counted for each micro-batch.
    """

    number: int
    cells: list[Cell] = field(default_factory=list)
    candidates: dict[int, list[Cell]] = field(default_factory=dict)
    rows: list[int] = field(default_factory=list)
    inputs: int = 0

    def add(self, meaning: int, kind: int, cell: Cell, first: int, last: int, operand: int) -> int | None:
        """List a task of micro-batches first .. last of a cell, and return None.

        If a task of this kind was listed before for one of them, return this micro-batch instead.
        """
        listed, bit = cell.listed, 1 << kind
        for m in range(first, last + 1):
            if listed[m] & bit:
                return m
            listed[m] |= bit
            if kind == INPUT_GRADIENT:
                cell.pending[m] = self.inputs
                self.inputs += 1
            elif kind == WEIGHT_GRADIENT:
                cell.pending.pop(m, None)
        cell.advance(kind)
        self.rows += (meaning, operand)
        return None

    def repeat(self, actions: list[tuple[int, int, Cell]], repetitions: int) -> bool:
        """List the tasks of these actions `repetitions` times, in this order.

        Each is of the next micro-batch of its cell, a W of the one that is pending longest there. The result is that of listing
        them one by one, in much less time.

        Args:
            actions: meaning, kind and cell of each.

        Returns False, and lists nothing, where `_repeated_micro_batches` returns None.
        """
        cells = {id(cell): cell for _, _, cell in actions}
        places: Places = {}
        for k, (_, kind, cell) in enumerate(actions):
            places.setdefault((kind, id(cell)), []).append(k)
        micro_batches = _repeated_micro_batches(cells, places, repetitions)
        if micro_batches is None:
            return False
        width = 2 * len(actions)  # entries of `rows` for one repetition
        inputs = [k for k, (_, kind, _) in enumerate(actions) if kind == INPUT_GRADIENT]
        rows = [0] * (width * repetitions)
        for (kind, key), following in micro_batches.items():
            cell, positions = cells[key], places[kind, key]
            low, high = min(following), min(following) + len(following)
            cell.listed[low:high] = cell.listed[low:high].translate(_WITH_KIND[kind])
            if cell.next[PHASE[kind]] == low:
                cell.next[PHASE[kind]] = high
            cell.advance(kind)
            if kind == INPUT_GRADIENT:
                places_in_body = [bisect_left(inputs, k) for k in positions]  # among the I of the body
                numbers = [self.inputs + turn * len(inputs) + n for turn in range(repetitions) for n in places_in_body]
                # How many of these I have their W in these repetitions too: the W first take what was pending before.
                completed = max(0, repetitions * len(places.get((WEIGHT_GRADIENT, key), ())) - len(cell.pending))
                cell.pending.update(zip(following[completed:], numbers[completed:], strict=True))
            elif kind == WEIGHT_GRADIENT:
                for m in following:
                    cell.pending.pop(m, None)
            operands = [cell.micro_batches[m] for m in following]
            for n, k in enumerate(positions):
                rows[2 * k :: width] = [actions[k][0]] * repetitions
                rows[2 * k + 1 :: width] = operands[n :: len(positions)]
        self.inputs += repetitions * len(inputs)
        self.rows += rows
        return True


def _repeated_micro_batches(
    cells: dict[int, Cell], places: Places, repetitions: int
) -> dict[tuple[int, int], list[int]] | None:
    """Return, by kind and id() of a cell, the micro-batches that the repetitions of a body list, in order.

    Args:
        cells: by id().

    None if a task could not be listed, and in some cases in which tasks are to be listed one by one: the micro-batches of a
    kind and cell are not consecutive, or a cell has both B and I in the body, or an R may come after the backward.
    """
    result: dict[tuple[int, int], list[int]] = {}
    for kind, key in sorted(places):  # I before W, which takes what is pending
        cell, positions, input_positions = cells[key], places[kind, key], places.get((INPUT_GRADIENT, key), [])
        count = repetitions * len(positions)
        if count > len(cell.listed):
            return None
        if kind == WEIGHT_GRADIENT:
            for n, k in enumerate(positions):
                # How many weight gradients are pending before this W, in the first and in the last repetition.
                pending_first = len(cell.pending) + bisect(input_positions, k) - n
                pending_last = pending_first + (repetitions - 1) * (len(input_positions) - len(positions))
                if min(pending_first, pending_last) < 1:
                    return None
            following = list(islice(chain(cell.pending, result.get((INPUT_GRADIENT, key), ())), count))
        else:
            first = cell.next[PHASE[kind]]
            following = list(range(first, first + count))
        low, high = min(following), max(following) + 1
        if high - low != len(following) or high > len(cell.listed) or (kind == FULL_BACKWARD and input_positions):
            return None
        if any(cell.listed[low:high].translate(_BITS_DONE[PHASE[kind]])):
            return None
        if kind == RECOMPUTATION and not _is_before_backwards(cell, positions, places):
            return None
        result[kind, key] = following
    return result


def _is_before_backwards(cell: Cell, positions: list[int], places: Places) -> bool:
    """Return whether each recomputation of a repeated body is certain to come before the backward of its micro-batch.

    Args:
        positions: of the cell's recomputations in the body.
        places: of all tasks of the body.
    """
    backwards = sorted(places.get((FULL_BACKWARD, id(cell)), []) + places.get((INPUT_GRADIENT, id(cell)), []))
    # By how many micro-batches the recomputations are ahead of the backwards.
    lead = cell.next[PHASE[RECOMPUTATION]] - cell.next[PHASE[FULL_BACKWARD]]
    if len(positions) < len(backwards):
        return False
    return lead >= len(backwards) or (lead >= 0 and all(r < b for r, b in zip(positions, backwards, strict=False)))
