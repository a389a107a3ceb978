"""Does everything that the program names exist, and is every instruction valid in its stream?

E401: the header is wrong, or does not allow an instruction; E402: an instruction names what does not exist, or has a wrong list
of micro-batches or ranks; E403: what an instruction names exists, but the instruction is not valid in its place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain, islice, pairwise
from typing import assert_never

import numpy as np
import numpy.typing as npt

from chimerac.chimera_ir.counts import count_text, times_text
from chimerac.chimera_ir.diagnostics import Diagnostic, did_you_mean
from chimerac.chimera_ir.instructions import AllReduce, Op, Value, stage_group
from chimerac.chimera_ir.program import LIMITS, OVERLAP, Ints, Program
from chimerac.compiler.verify.index import MAX_FOUND

MAX_SHOWN = 4  # the most instructions that one finding names
# The most findings about the header, and the most about all instructions together. Each may be as long as an instruction.
MAX_ALL = 100


def check_wellformed(program: Program) -> list[Diagnostic]:
    """Return the findings E401 or, if there are none, E402 and E403. The other checks need a program without any of them."""
    unknown_limits = (name for name in program.header.limits if name not in LIMITS)
    limits = (Diagnostic("E401", f"unknown limit '{name}'", help=did_you_mean(name, LIMITS)) for name in unknown_limits)
    header = (Diagnostic("E401", message) for message in _header_faults(program))
    found = [*islice(chain(header, limits), MAX_ALL)]
    return (found + _evaluation_findings(program)) or _row_findings(program)


def _header_faults(program: Program) -> Iterator[str]:
    """Yield what is wrong in the header, other than unknown limits."""
    h = program.header
    if program.world != h.width * h.ranks:
        product = f"{count_text(h.width, 'replica')} x {count_text(h.ranks, 'rank')} = {h.width * h.ranks}"
        yield f"the program has {count_text(program.world, 'stream')}, but {product}"
    micro_batches_of_pipes: list[tuple[int, ...]] = []
    for pipe in h.pipes:
        if len(pipe.placement) != h.stages:
            yield f"pipe {pipe.name} places {count_text(len(pipe.placement), 'stage')}, but the program has {h.stages}"
        outside = [r for r in pipe.placement if not 0 <= r < h.ranks]
        if outside:
            yield f"pipe {pipe.name} places a stage on rank {outside[0]}, but ranks are 0 .. {h.ranks - 1}"
        micro_batches_of_pipes.append(pipe.micro_batches)
    ids = np.fromiter(chain.from_iterable(micro_batches_of_pipes), np.int64)
    if not np.array_equal(np.sort(ids), np.arange(h.micro_batches)):
        yield _ids_fault(ids, h.micro_batches)
    repeated_pipe = next(((name, times) for name, times in Counter(pipe.name for pipe in h.pipes).items() if times > 1), None)
    if repeated_pipe is not None:
        yield f"pipe {repeated_pipe[0]} is defined {times_text(repeated_pipe[1])}"
    for kind, costs in program.costs.given().items():
        if kind != "hop" and len(costs) != h.stages:
            yield f"the costs of {kind} are given for {count_text(len(costs), 'stage')}, but the program has {h.stages}"
    groups = [stage_group(s) for s in range(h.stages)] + [t.name for t in h.tied]
    if repeated := next((name for name, times in Counter(groups).items() if times > 1), None):
        yield f"two parameter groups have the name '{repeated}': all groups, of stages and of tied sets, need different names"
    for tied in h.tied:
        unknown = next((s for s in tied.stages if not 0 <= s < h.stages), None)
        if not tied.stages:
            yield f"tied {tied.name} names no stage"
        elif unknown is not None:
            yield f"tied {tied.name} names stage {unknown}, but stages are 0 .. {h.stages - 1}"


def _evaluation_findings(program: Program) -> list[Diagnostic]:
    """Return the finding about an evaluation program with instructions that only a training program may have; else []."""
    t = program.table
    allowed = (t.op == Op.FWD) | (t.has("value") & (t.value == Value.act))
    rows = np.flatnonzero(~allowed).tolist()
    if program.header.kind != "evaluation" or not rows:
        return []
    others = count_text(len(rows), "other instruction")
    message = f"an evaluation program holds only forwards, and transfers and FREEs of activations; this one has {others}"
    places = [_place(program, row) for row in rows[:MAX_SHOWN]]
    if len(rows) > MAX_SHOWN:
        places.append("...")
    help = "remove what makes, moves or sums gradients or runs a forward again, or change the kind of the program to training"
    return [Diagnostic("E401", message, notes=tuple(places), help=help, about=tuple(rows[:MAX_FOUND]))]


def _ids_fault(ids: Ints, micro_batches: int) -> str:
    """Return the message about a micro-batch that does not exist, or is listed several times, or that no pipe lists.

    Args:
        ids: the micro-batches of all pipes, one after the other.
    """
    exists = (ids >= 0) & (ids < micro_batches)
    count = np.bincount(ids[exists], minlength=micro_batches)
    is_wrong = ~exists
    is_wrong[exists] = count[ids[exists]] > 1
    if not is_wrong.any():
        return f"no pipe lists micro-batch {count.argmin()} of 0 .. {micro_batches - 1}"
    m = int(ids[is_wrong.argmax()])
    if not exists[is_wrong.argmax()]:
        return f"a pipe lists micro-batch {m}, but micro-batches are 0 .. {micro_batches - 1}"
    return f"the pipes list micro-batch {m} {times_text(int(count[m]))}; each belongs to one pipe"


class _RowFindings:
    """Findings about rows. `add` and `add_rows` add at most MAX_FOUND for one fact, and stop at MAX_ALL in all."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.found: list[Diagnostic] = []

    def add(self, code: str, wrong: npt.NDArray[np.bool_], fact: str, help: str = "") -> None:
        """Add findings about the rows of a mask, as `add_rows` does."""
        self.add_rows(code, np.flatnonzero(wrong), fact, help)

    def add_rows(self, code: str, rows: Ints, fact: str, help: str = "") -> None:
        """Add findings about the first of these rows: at most MAX_FOUND, and only until there are MAX_ALL in all."""
        for row in rows[: max(0, min(MAX_FOUND, MAX_ALL - len(self.found)))].tolist():
            self.add_row(code, row, fact, help)

    def add_row(self, code: str, row: int, fact: str, help: str) -> None:
        """Add a finding about a row."""
        self.found.append(Diagnostic(code, f"{_place(self.program, row)}: {fact}", help=help, about=(row,)))


def _row_findings(program: Program) -> list[Diagnostic]:
    """Return the findings E402 and E403, of a program whose header is correct."""
    findings = _RowFindings(program)
    for check in (_check_stages_and_micro_batches, _check_transfers, _check_values, _check_pairs, _check_collectives):
        check(program, findings)
    return findings.found


def _check_stages_and_micro_batches(program: Program, findings: _RowFindings) -> None:
    h, t = program.header, program.table
    collective = t.has("ranks")
    pipe_of = np.full(h.micro_batches, -1, np.int64)
    for p, pipe in enumerate(h.pipes):
        pipe_of[list(pipe.micro_batches)] = p
    # By number of a list of micro-batches: the pipe to which all of them belong; -1 if the list is empty, or has an unknown id,
    # an id twice, or ids of two pipes. The entry after the last list is -1 too: it is for rows without micro-batches.
    pipe_of_list = np.full(len(program.micro_batch_lists) + 1, -1, np.int64)
    for k, ids in enumerate(program.micro_batch_lists):
        is_valid = all(0 <= m < h.micro_batches for m in ids) and len(set(ids)) == len(ids)
        pipes = {int(pipe_of[m]) for m in ids} if is_valid else {-1}
        pipe_of_list[k] = pipes.pop() if len(pipes) == 1 else -1
    findings.add("E402", (t.stage < 0) | (t.stage >= h.stages), f"stages are 0 .. {h.stages - 1}")
    has_pipe = (t.pipe >= 0) & (t.pipe < len(h.pipes))
    findings.add("E402", ~collective & ~has_pipe, f"pipes are 0 .. {len(h.pipes) - 1}")
    pipe_of_ids = pipe_of_list[np.where(collective, len(program.micro_batch_lists), t.operand)]  # by row
    for row in np.flatnonzero(~collective & has_pipe & (pipe_of_ids != t.pipe))[:MAX_FOUND].tolist():
        findings.add_row("E402", row, *_micro_batches_fault(program, row, pipe_of))


def _check_transfers(program: Program, findings: _RowFindings) -> None:
    h, t, rank = program.header, program.table, program.rank_of
    transfer = t.has("peer")
    findings.add("E402", transfer & ((t.peer < 0) | (t.peer >= program.world)), f"ranks are 0 .. {program.world - 1}")
    findings.add(
        "E403",
        transfer & (t.peer == rank),
        "a value that stays on its rank needs no transfer",
        "remove it, or name the rank that has the other end",
    )
    to_other_replica = transfer & (t.peer >= 0) & (t.peer < program.world) & (t.peer // h.ranks != rank // h.ranks)
    help = "name the rank of the same replica that has the other end"
    findings.add("E403", to_other_replica, "the peer is in another replica", help)


def _check_values(program: Program, findings: _RowFindings) -> None:
    t = program.table
    has_value = t.has("value")
    findings.add(
        "E403",
        has_value & (t.value == Value.act) & (t.stage == 0),
        "stage 0 receives no activation",
        "remove it: stage 0 reads the samples",
    )
    findings.add(
        "E403",
        has_value & (t.value == Value.grad) & (t.stage == program.header.stages - 1),
        "the last stage receives no gradient",
        "remove it: the last stage begins with the loss",
    )


def _check_pairs(program: Program, findings: _RowFindings) -> None:
    t, rank = program.table, program.rank_of
    task = t.is_task
    overlaps = (t.flags & OVERLAP).astype(bool)
    # By row: whether the next row is a task of the same rank that begins no pair.
    follows = np.concatenate([task[1:] & ~overlaps[1:] & (rank[1:] == rank[:-1]), [False]]) if len(t) else task
    findings.add(
        "E403",
        overlaps & ~follows,
        "no task comes right after it, or one that begins a pair itself",
        "put the other task right after it, or leave overlap out",
    )


def _check_collectives(program: Program, findings: _RowFindings) -> None:
    h, t, rank = program.header, program.table, program.rank_of
    # By name of a parameter group: the stage that its ALLREDUCE names.
    groups = {stage_group(s): s for s in range(h.stages)} | {tied.name: min(tied.stages) for tied in h.tied}
    # Sorted by collective: the rows of number k begin at bounds[k], and end before bounds[k + 1].
    collective_rows = np.flatnonzero(t.has("ranks"))
    collective_rows = collective_rows[np.argsort(t.operand[collective_rows], kind="stable")]
    bounds = np.searchsorted(t.operand[collective_rows], np.arange(len(program.collectives) + 1)).tolist()
    for c, (begin, end) in zip(program.collectives, pairwise(bounds), strict=True):
        if len(findings.found) >= MAX_ALL:
            break
        rows = collective_rows[begin:end]
        match c:
            case AllReduce():
                is_known = groups.get(c.group) == c.stage
                unknown = "" if is_known else f"there is no parameter group '{c.group}' at stage {c.stage}"
            case _:
                assert_never(c)
        if unknown:
            findings.add_rows("E402", rows, unknown)
        elif not c.ranks:
            findings.add_rows("E402", rows, "it names no rank")
        elif list(c.ranks) != sorted(set(c.ranks)) or not 0 <= c.ranks[0] <= c.ranks[-1] < program.world:
            findings.add_rows("E402", rows, f"ranks must ascend and lie in 0 .. {program.world - 1}")
        else:
            findings.add_rows(
                "E403",
                rows[~np.isin(rank[rows], c.ranks)],
                "this rank is not a member",
                "remove it, or add this rank to its ranks",
            )


def _micro_batches_fault(program: Program, row: int, pipe_of: Ints) -> tuple[str, str]:
    """Return the fact and the help about a row whose micro-batches are not all of its pipe, or not all different, or missing.

    Args:
        pipe_of: by micro-batch, its pipe.
    """
    p, ids = int(program.table.pipe[row]), program.micro_batch_lists[program.table.operand[row]]
    for m in ids:
        if not 0 <= m < len(pipe_of) or pipe_of[m] != p:
            ids_of_pipe = program.header.pipes[p].micro_batches
            listed = f"{', '.join(map(str, ids_of_pipe[:8]))}{', ...' if len(ids_of_pipe) > 8 else ''}" or "none"
            return f"micro-batch {m} is not of this pipe", f"the micro-batches of {program.pipe_names[p]}: {listed}"
    if not ids:
        return "it names no micro-batch", "name at least one"
    m, times = Counter(ids).most_common(1)[0]
    return f"micro-batch {m} is named {times_text(times)}", "name it once"


def _place(program: Program, row: int) -> str:
    """Return the place of a row and its text; for a row whose pipe does not exist, its op and the pipe instead of the text."""
    rank = int(program.rank_of[row])
    pipe_exists = 0 <= program.table.pipe[row] < len(program.header.pipes)  # an instruction without a pipe has 0 in this column
    text = program.text(row) if pipe_exists else f"{Op(program.table.op[row]).name} of pipe {program.table.pipe[row]}"
    return f"rank {rank}, instruction {row - int(program.offsets[rank])}: {text}"
