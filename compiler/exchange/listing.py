"""A program as the text of a schedule with `order listing`, for `--emit sched`: the same tasks in the same order."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence

import numpy as np

from chimerac.chimera_ir.diagnostics import ChimeraError, Source, refuse
from chimerac.chimera_ir.instructions import FORMS, Op
from chimerac.chimera_ir.program import OVERLAP, RECOMPUTE, Program
from chimerac.compiler.exchange.listing_text import cost_formula, legal_name, pipe_names, stage_clauses, task_lines
from chimerac.compiler.format import format_schedule
from chimerac.compiler.lower.relower import launches_at_end
from chimerac.compiler.syntax.grammar import keywords


def program_to_listing(program: Program) -> str:
    """Return the text of a schedule that compiles to the tasks of a program, in the same order.

    Transfers, all-reduces and FREEs are not written. The compiler plans transfers and all-reduces again, and no FREEs.

    Raises ChimeraError E624 for a program that no listing can express, and E105 if the text has too many characters or tokens.
    """
    _check(program)
    h = program.header
    names = pipe_names([pipe.name for pipe in h.pipes])
    name = legal_name(h.schedule, "schedule")
    given = " ".join(f"{k}={v}" for k, v in h.parameters.items())
    lines = [f"# The tasks of {h.schedule}{f' with {given}' if given else ''}, in the order of its program."]
    lines += ["", f"schedule {name}_" if name in keywords() else f"schedule {name}", f"ranks {h.ranks}", f"stages {h.stages}"]
    part, whole = h.micro_batch_size
    lines += [f"size {part}/{whole}"] if part != whole else []
    suffix = _recomputed(program)
    for pipe_name, pipe in zip(names, h.pipes, strict=True):
        clauses = stage_clauses(pipe.placement, suffix)
        lines.append(f"pipe {pipe_name} {{ {clauses}   micro_batches {len(pipe.micro_batches)} }}")
    costs = program.costs
    given_costs = costs.given()
    lines += [f"cost {f.letter}{cost_formula(costs.of(f.op))}" for f in FORMS if f.letter and f.op.name in given_costs]
    lines += [f"cost hop = {costs.hop}", f"window {h.window}"]
    lines += [f"tied {tied.name} on stages {', '.join(map(str, tied.stages))}" for tied in h.tied]
    if program.collectives:
        lines.append(f"sync {'at end' if launches_at_end(program) else 'eager'}")
    lines += [f"limit {limit} <= {most}" for limit, most in h.limits.items()]
    lines.append("order listing for rank r {")
    for r in range(h.ranks):
        if words := list(_words(program, r, names)):
            lines += [f"if r == {r} {{", *task_lines(words), "}"]
    return format_schedule(Source(h.schedule, "\n".join([*lines, "}"]) + "\n"))


def _check(program: Program) -> None:
    """Raise ChimeraError E624 for a program that no listing can express."""
    h, t = program.header, program.table
    if h.kind != "training":
        raise _refused(f"the program is of kind {h.kind}, and a schedule describes training", "give the training program")
    first = 0
    for pipe in h.pipes:
        if pipe.micro_batches != tuple(range(first, first + len(pipe.micro_batches))):
            fact = f"the micro-batches of pipe {pipe.name} are not {first} .. {first + len(pipe.micro_batches) - 1}"
            raise _refused(fact, "number the micro-batches of the pipes one pipe after the other")
        first += len(pipe.micro_batches)
    rows = np.flatnonzero(t.is_task)
    replica = program.rank_of[rows] // h.ranks
    columns = np.column_stack([*(c[rows] for c in t.columns()), program.rank_of[rows] % h.ranks])
    for w in range(1, h.width):
        if not np.array_equal(columns[replica == w], columns[replica == 0]):
            raise _refused(f"replica {w} has its tasks in another order than replica 0", "give a program of one replica")
    forwards, recomputed = t.op == Op.FWD, (t.flags & RECOMPUTE) != 0
    mixed = np.intersect1d(t.stage[forwards & recomputed], t.stage[forwards & ~recomputed])
    if len(mixed):
        fact = f"only some forwards of stage {mixed[0]} are run again"
        raise _refused(fact, "let all forwards of a stage, or none, keep only their inputs")


def _refused(fact: str, help: str) -> ChimeraError:
    return refuse("E624", f"this program cannot be written as a listing: {fact}", help=help)


def _recomputed(program: Program) -> str:
    """Return the end of the stage clauses, which says which stages recompute; '' if none does."""
    chosen = program.recomputed_stages
    if len(chosen) in (0, program.header.stages):
        return " recompute" if chosen else ""
    return " recompute when " + " or ".join(f"s == {s}" for s in chosen)


def _words(program: Program, rank: int, names: Sequence[str]) -> Iterator[str]:
    """Yield the text of each task, or of each overlapped pair, of a rank.

    The micro-batch is left out where a listing supplies it: the next one of the pipe and the stage, for a W the oldest pending
    one.

    Args:
        names: of the pipes, in the listing.
    """
    h, t = program.header, program.table
    ids = {p: pipe.micro_batches for p, pipe in enumerate(h.pipes)}
    stage_counts = {p: pipe.placement.count(rank) for p, pipe in enumerate(h.pipes)}
    has_one_pipe = sum(count > 0 for count in stage_counts.values()) == 1
    # By pipe, stage and kind: how many tasks were written without their micro-batch so far. Ws are not counted.
    done: dict[tuple[int, int, str], int] = {}
    # The pipes, stages and kinds whose micro-batches are written from now on, because a task was not the next one.
    # It has no effect on W and R.
    written: set[tuple[int, int, str]] = set()
    # By pipe and stage: the micro-batches of the input gradients so far. Those at the front are removed once their weight
    # gradients are written.
    pending: dict[tuple[int, int], deque[tuple[int, ...]]] = defaultdict(deque)
    # The pipe, the stage and the micro-batches of each weight gradient so far.
    weight_gradients: set[tuple[int, int, tuple[int, ...]]] = set()
    rows = range(int(program.offsets[rank]), int(program.offsets[rank + 1]))
    parts: list[str] = []
    for row in (row for row in rows if t.is_task[row]):
        letter, p, s = FORMS[t.op[row]].letter, int(t.pipe[row]), int(t.stage[row])
        micro_batches = program.micro_batch_lists[int(t.operand[row])]
        key = (p, s, "B" if letter == "I" else letter)  # B and I are counted together
        place = done.setdefault(key, 0)
        is_next = len(micro_batches) == 1 and key not in written and ids[p][place : place + 1] == micro_batches
        if letter == "I":
            pending[p, s].append(micro_batches)
        if letter == "W":
            waiting = pending[p, s]
            while waiting and (p, s, waiting[0]) in weight_gradients:
                waiting.popleft()
            is_next = bool(waiting) and waiting[0] == micro_batches
            weight_gradients.add((p, s, micro_batches))
        if letter in "FBIW" and is_next:
            if letter != "W":
                done[key] += 1
            where = f"({s})" if stage_counts[p] > 1 else ""
            word = f"{letter}{where}" if has_one_pipe else f"{letter} {names[p]}{where}"
        else:
            written.add(key)
            first, last = (m - ids[p][0] for m in (micro_batches[0], micro_batches[-1]))  # numbered within the pipe
            word = f"{letter} {names[p]}({s}, {first if len(micro_batches) == 1 else f'{first} .. {last}'})"
        parts.append(word)
        if not t.flags[row] & OVERLAP:
            yield " & ".join(parts)
            parts = []
