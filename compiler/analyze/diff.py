"""What differs between two programs: their headers, and the instructions of each rank.

The instructions that a rank has in both programs are compared by their places. A longest sequence of them that is in the same
order in both streams counts as not moved, and the others count as moved. The running time grows as n log n for n instructions.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from chimerac.chimera_ir.counts import count_text
from chimerac.chimera_ir.instructions import FORMS
from chimerac.chimera_ir.program import Header, Program

# The fields of a header that are compared as they are. Pipes are compared by their parts.
FIELDS = ("ranks", "stages", "micro_batches", "width", "micro_batch_size", "kind", "window", "machine", "tied", "limits")


@dataclass(frozen=True, slots=True)
class RankDiff:
    """The stream of one rank in two programs, `a` and `b`.

    Attributes:
        same: the number of instructions that are in both and did not move.
        moved: (row in a, row in b) of those that moved.
        removed: the rows of a whose instructions this rank does not have in b.
        added: the rows of b whose instructions it does not have in a.
    """

    rank: int
    same: int
    moved: tuple[tuple[int, int], ...]
    removed: tuple[int, ...]
    added: tuple[int, ...]

    @property
    def is_equal(self) -> bool:
        """Return whether the two streams are equal."""
        return not (self.moved or self.removed or self.added)


@dataclass(frozen=True, slots=True)
class ProgramDiff:
    """Two programs beside each other.

    Attributes:
        header: the differences of their headers, in words.
        ranks: one for each global rank that either has.
        gone_to: by the row of a removed task, the rank that has this task in b.
        come_from: by the row of an added task, the rank that has it in a. Tasks that only one program has are left out. If only
            the flags of a task differ, it is removed and added on the same rank.
    """

    header: tuple[str, ...]
    ranks: tuple[RankDiff, ...]
    gone_to: dict[int, int]
    come_from: dict[int, int]

    @property
    def is_equal(self) -> bool:
        """Return whether `FIELDS`, pipes and instructions are the same.

        The names of the schedule and of pipes do not count, and neither do parameters, costs and the partition.
        """
        return not self.header and all(rank.is_equal for rank in self.ranks)


def diff(a: Program, b: Program) -> ProgramDiff:
    """Return what differs between two programs. Pipes are compared by their numbers, not by their names."""
    keys_a, keys_b = _keys(a), _keys(b)
    ranks: list[RankDiff] = []
    removed: dict[Hashable, int] = {}
    added: dict[Hashable, int] = {}
    for rank in range(max(a.world, b.world)):
        rank_diff = _rank_diff(rank, keys_a, _rows(a, rank), keys_b, _rows(b, rank))
        ranks.append(rank_diff)
        removed |= {_task_key(a, row): row for row in rank_diff.removed if a.table.is_task[row]}
        added |= {_task_key(b, row): row for row in rank_diff.added if b.table.is_task[row]}
    in_both = removed.keys() & added.keys()
    gone_to = {removed[key]: int(b.rank_of[added[key]]) for key in in_both}
    come_from = {added[key]: int(a.rank_of[removed[key]]) for key in in_both}
    return ProgramDiff(tuple(_header_differences(a.header, b.header)), tuple(ranks), gone_to, come_from)


def _rows(program: Program, rank: int) -> range:
    """Return the rows of a rank's stream, none for a rank that the program does not have."""
    if rank >= program.world:
        return range(0)
    return range(int(program.offsets[rank]), int(program.offsets[rank + 1]))


def _keys(program: Program) -> list[Hashable]:
    """Return for each row what identifies its instruction within its stream, with its flags."""
    collectives = program.collectives
    columns = zip(*(c.tolist() for c in program.table.columns()), strict=True)
    has_ranks = [("ranks" in form.fields) for form in FORMS]
    lists = program.micro_batch_lists
    return [
        collectives[operand] if has_ranks[op] else (op, value, pipe, stage, lists[operand], peer, flags)
        for op, value, pipe, stage, operand, peer, flags in columns
    ]


def _task_key(program: Program, row: int) -> Hashable:
    """Return what identifies a task within its program, whatever its flags and its rank within its replica are."""
    t, replica = program.table, int(program.rank_of[row]) // program.header.ranks
    return replica, int(t.op[row]), int(t.pipe[row]), int(t.stage[row]), program.micro_batch_lists[int(t.operand[row])]


def _rank_diff(rank: int, keys_a: Sequence[Hashable], rows_a: range, keys_b: Sequence[Hashable], rows_b: range) -> RankDiff:
    """Return what differs between the streams of a rank in two programs.

    Args:
        keys_a, keys_b: what `_keys` returns for the programs.
        rows_a, rows_b: the rows of the two streams.
    """
    # By the key of an instruction and how often this key came before: a program that is not verified may repeat an instruction.
    row_in_b: dict[tuple[Hashable, int], int] = {}
    seen: Counter[Hashable] = Counter()
    for row in rows_b:
        key = keys_b[row]
        row_in_b[key, seen[key]] = row
        seen[key] += 1
    seen.clear()
    removed: list[int] = []
    pairs: list[tuple[int, int]] = []
    for row in rows_a:
        key = keys_a[row]
        row_b = row_in_b.pop((key, seen[key]), None)
        seen[key] += 1
        if row_b is None:
            removed.append(row)
        else:
            pairs.append((row, row_b))
    stays = _longest_ascending([row_b for _, row_b in pairs])
    moved = tuple(pair for pair, stay in zip(pairs, stays, strict=True) if not stay)
    return RankDiff(rank, len(pairs) - len(moved), moved, tuple(removed), tuple(sorted(row_in_b.values())))


def _longest_ascending(numbers: Sequence[int]) -> list[bool]:
    """Return for each of these numbers, which all differ, whether it belongs to one longest ascending subsequence."""
    # At index k: the smallest number with which an ascending subsequence of k + 1 numbers ends, and its place.
    tails: list[int] = []
    tail_places: list[int] = []
    before: list[int] = []  # by place: the place of the number before it in its subsequence, -1 if it is the first
    for place, number in enumerate(numbers):
        k = bisect_left(tails, number)
        tails[k : k + 1] = [number]
        tail_places[k : k + 1] = [place]
        before.append(tail_places[k - 1] if k else -1)
    chosen = [False] * len(numbers)
    place = tail_places[-1] if tail_places else -1
    while place >= 0:
        chosen[place] = True
        place = before[place]
    return chosen


def _header_differences(a: Header, b: Header) -> list[str]:
    """Return in words how `FIELDS` and pipes of two headers differ."""
    found = [
        f"{name.replace('_', ' ')}: {getattr(a, name)} and {getattr(b, name)}"
        for name in FIELDS
        if getattr(a, name) != getattr(b, name)
    ]
    if len(a.pipes) != len(b.pipes):
        return [*found, f"pipes: {len(a.pipes)} and {len(b.pipes)}"]
    for p, q in zip(a.pipes, b.pipes, strict=True):
        if len(p.placement) == len(q.placement) and p.placement != q.placement:
            differing = [s for s, (x, y) in enumerate(zip(p.placement, q.placement, strict=True)) if x != y]
            s = differing[0]
            others = len(differing) - 1
            more = f"; {count_text(others, 'other stage')} {'differs' if others == 1 else 'differ'}, too" if others else ""
            found.append(f"pipe {p.name}: stage {s} is on rank {p.placement[s]} in a, and on rank {q.placement[s]} in b{more}")
        if p.micro_batches != q.micro_batches and a.micro_batches == b.micro_batches:
            counts = f"{len(p.micro_batches)} in a, and {len(q.micro_batches)} in b"
            found.append(f"pipe {p.name}: its micro-batches are not the same: {counts}")
    return found
