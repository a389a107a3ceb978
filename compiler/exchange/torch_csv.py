"""Schedules of torch.distributed.pipelining as CSV: written from programs, and read as programs.

A line has the actions of a rank, separated by commas. `2F0` is the forward of stage 2 for micro-batch 0; B, I and W are the
full backward and its halves. `(4F7;1B2)OVERLAP_F_B` is an overlapped pair. A file with messages also has the actions SEND_F,
RECV_F, SEND_B and RECV_B. Each names the stage that sends or receives: `2SEND_F0` is the SEND of what stage 2 computed.
torch's `_PipelineScheduleRuntime._load_csv` reads files with and without messages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath

import numpy as np

from chimerac.chimera_ir import limits
from chimerac.chimera_ir.counts import count_text
from chimerac.chimera_ir.diagnostics import ChimeraError, Source, Span, refuse
from chimerac.chimera_ir.header import Header, Pipe
from chimerac.chimera_ir.instructions import FORMS, Bwd, BwdInput, BwdWeight, Fwd, Instruction, Op, Recv, Send, Task, Value
from chimerac.chimera_ir.machines import Machine
from chimerac.chimera_ir.program import OVERLAP, RECOMPUTE, Program
from chimerac.chimera_ir.streams import program_of
from chimerac.compiler.exchange.listing_text import legal_name
from chimerac.compiler.lower.lower import lower
from chimerac.compiler.lower.relower import arranged
from chimerac.compiler.pipeline import verify_program
from chimerac.compiler.size import check_sizes
from chimerac.compiler.tasks import task_times
from chimerac.compiler.verify import findings, is_about_order
from chimerac.compiler.verify.index import ProgramIndex
from chimerac.compiler.verify.progress import machines

TASKS = {"F": Fwd, "B": Bwd, "I": BwdInput, "W": BwdWeight}
OF_SHARDS = ("UNSHARD", "RESHARD", "REDUCE_GRAD")  # torch's actions of a stage for FSDP and data parallelism


def program_to_csv(program: Program, with_communication: bool) -> str:
    """Return the CSV of a program for torch.distributed.pipelining.

    Args:
        with_communication: also its messages, not only its tasks.

    A file with messages also has the actions that torch then needs: UNSHARD before the first task of a stage, REDUCE_GRAD and
    RESHARD after its last one.

    Raises ChimeraError E623 for a program that torch cannot express. With messages it also raises E623 if these would hang
    where torch executes the messages of a rank one after another, as over NCCL.
    """
    _check_expressible(program)
    if with_communication and not machines(ProgramIndex(program))["serial"]:
        why = "torch executes the messages of a rank one after another, and in this order they would wait for each other"
        message = f"{program.header.schedule} has messages that would hang: {why}"
        raise refuse("E623", message, help="arrange them: --for serial")
    lines = []
    for rank in range(program.world):
        cells = _rank_cells(program, rank) if with_communication else _task_cells(program, rank)
        lines.append(",".join(cells))
    return "\r\n".join([*lines, ""])  # as torch writes them


def _check_expressible(program: Program) -> None:
    """Raise ChimeraError E623 for a program that torch's runtime cannot express, with the first reason."""
    h, t = program.header, program.table
    ranks_of = [sorted({pipe.placement[s] for pipe in h.pipes}) for s in range(h.stages)]
    copied = next((s for s, ranks in enumerate(ranks_of) if len(ranks) > 1), None)
    unused = next((rank for rank in range(h.ranks) if not any(rank in pipe.placement for pipe in h.pipes)), None)
    grouped = next((ids for ids in program.micro_batch_lists if len(ids) > 1), None)
    part, whole = h.micro_batch_size
    # Every fact is computed, even one that does not apply: then `or 0` and `or ()` replace a None.
    for applies, fact, help in (
        (h.kind != "training", f"the program is of kind {h.kind}", "give the training program"),
        (
            copied is not None,
            f"stage {copied} is on ranks {', '.join(map(str, ranks_of[copied or 0]))}; in torch each stage is on one rank",
            "take a schedule with one copy of each stage",
        ),
        (
            unused is not None,
            f"rank {unused} has no stage; each rank of torch has one or more",
            "take a schedule with a stage on each rank",
        ),
        (
            h.width > 1,
            f"the program has {count_text(h.width, 'data-parallel replica')}; torch has them outside of its schedules",
            "export the program of width 1, and let DDP or FSDP make the replicas",
        ),
        (
            bool((t.op == Op.RECOMPUTE).any() or (t.flags & RECOMPUTE).any()),
            f"stages {', '.join(map(str, program.recomputed_stages[:8]))} run their forwards again; torch has no such task",
            "compile it with --recompute none and without R in its order, and use torch.utils.checkpoint inside the stages",
        ),
        (
            grouped is not None,
            f"one task computes micro-batches {', '.join(map(str, (grouped or ())[:8]))}; a task of torch has one",
            "take a schedule without groups of micro-batches",
        ),
        (
            part != whole,
            f"its micro-batches have {part}/{whole} of the size that a run is given; torch knows only that size",
            "take a schedule without the statement `size`",
        ),
        (
            bool(h.tied),
            f"stages {', '.join(map(str, h.tied[0].stages if h.tied else ()))} are tied; torch does not sum their gradients",
            "take a schedule without tied parameters",
        ),
    ):
        if applies:
            raise refuse("E623", f"torch.distributed.pipelining cannot express {h.schedule}: {fact}", help=help)


def _task_cells(program: Program, rank: int) -> list[str]:
    """Return the texts of the tasks of a rank."""
    return [cell for cell, _ in _tasks(program, rank)]


def _tasks(program: Program, rank: int) -> Iterator[tuple[str, list[int]]]:
    """Yield the text of each task or overlapped pair of a rank, with its rows."""
    t = program.table
    rows = np.arange(program.offsets[rank], program.offsets[rank + 1])
    pair: list[int] = []
    for row in rows[t.is_task[rows]].tolist():
        pair.append(row)
        if t.flags[row] & OVERLAP:
            continue
        words = [f"{t.stage[r]}{FORMS[t.op[r]].letter}{program.micro_batch_lists[int(t.operand[r])][0]}" for r in pair]
        yield (words[0] if len(words) == 1 else f"({';'.join(words)})OVERLAP_F_B"), pair
        pair = []


def _rank_cells(program: Program, rank: int) -> list[str]:
    """Return the texts of the tasks and messages of a rank, with torch's actions about shards."""
    t = program.table
    begin, end = int(program.offsets[rank]), int(program.offsets[rank + 1])
    tasks = {rows[0]: (cell, rows) for cell, rows in _tasks(program, rank)}
    rows = np.arange(begin, end)
    rows = rows[t.is_task[rows]]
    stages = t.stage[rows].tolist()
    # By stage, the rows of its first and its last task: of equal keys a dict keeps the last value.
    first = dict(zip(reversed(stages), reversed(rows.tolist()), strict=True))
    last = dict(zip(stages, rows.tolist(), strict=True))
    cells: list[str] = []
    for row in range(begin, end):  # FREE, ALLREDUCE and the second task of a pair have no text of their own
        op, s = Op(t.op[row]), int(t.stage[row])
        if op in (Op.SEND, Op.RECV):
            is_act, m = t.value[row] == Value.act, program.micro_batch_lists[int(t.operand[row])][0]
            if op == Op.SEND:  # a SEND names the stage that reads the value, and torch the one that made it
                cells.append(f"{s - 1}SEND_F{m}" if is_act else f"{s + 1}SEND_B{m}")
            else:
                cells.append(f"{s}RECV_{'F' if is_act else 'B'}{m}")
        elif row in tasks:
            cell, own = tasks[row]
            own_stages = list(dict.fromkeys(int(t.stage[r]) for r in own))
            cells += [f"{stage}UNSHARD" for stage in own_stages if first[stage] in own]
            cells.append(cell)
            cells += [f"{stage}{word}" for stage in own_stages if last[stage] in own for word in ("REDUCE_GRAD", "RESHARD")]
    return cells


@dataclass(frozen=True, slots=True)
class _Cell:
    """A task or a message of a file.

    Attributes:
        rank: the number of its line, from 0.
        begin, end: its offsets, or its pair's.
        letter: of a task, such as F; of a message its name, such as SEND_F.
        overlap: it is the first task of an overlapped pair.
    """

    rank: int
    begin: int
    end: int
    stage: int
    letter: str
    micro_batch: int
    overlap: bool = False

    @property
    def text(self) -> str:
        return f"{self.stage}{self.letter}{self.micro_batch}"


def program_from_csv(source: Source, width: int = 1, machine: Machine = "window", arrange: bool = False) -> Program:
    """Return the verified program of a CSV of torch.distributed.pipelining.

    The ranks, the stages, the micro-batches and the rank of each stage follow from the file. If it has tasks alone, transfers
    and all-reduces are planned as for a schedule with `sync eager`, for `width` replicas. A file with messages has one replica.
    Its messages stay where they are. If `arrange` is True, they are planned again instead, unless the tasks wait for each other
    in a cycle.

    Args:
        machine, arrange: as in `compile_schedule` (compiler/__init__.py).

    Actions of OF_SHARDS are left out.

    Raises ChimeraError: E621 a file that is not of this format, E622 actions that are no schedule, E002 a width above 1 for a
    file with messages, E211 a width that is below 1 or too large, and E4xx of the verifier.
    """
    streams = _parse(source)
    cells = [cell for stream in streams for cell in stream]
    placement, micro_batches = _sizes(source, cells)
    has_messages = any(cell.letter not in TASKS for cell in cells)
    if has_messages and width > 1:
        message = f"{source.name} has messages, so it is the program of one replica: leave out --width"
        raise refuse("E002", message, help="a file with tasks alone can have more replicas")
    pipe = Pipe("main", tuple(placement), tuple(range(micro_batches)))
    header = Header(
        legal_name(PurePath(source.name).stem, "s"), {}, len(streams), len(placement), micro_batches, (pipe,), machine=machine
    )
    if excess := header.excess():
        raise refuse("E622", f"{source.name} has {excess}")
    program = program_of(header, ((_instruction(cell, placement) for cell in stream) for stream in streams))
    check_sizes(source.name, header, program.costs, width)
    if has_messages:
        if arrange and all(map(is_about_order, findings(program))):  # other findings are not corrected, so they are reported
            program = arranged(program, machine) or program
        return verify_program(program)
    timing = task_times(program)
    if timing.stuck:
        cell = cells[timing.stuck[0]]  # all cells are tasks, so row k of the program is cell k
        message = f"{source.name}: the order deadlocks: rank {cell.rank} never reaches {cell.text}"
        ranks = ", ".join(f"rank {cells[r].rank} waits before {cells[r].text}" for r in timing.stuck[:8])
        raise refuse("E622", message, _span(source, cell), "waits for ever", notes=(ranks,))
    return verify_program(lower(program, timing, "eager", width, machine, arrange))


_ID = "[0-9]{1,9}"
_TASK = re.compile(rf"({_ID})([FBIW])({_ID})")
_MESSAGE = re.compile(rf"({_ID})((?:SEND|RECV)_[FB])({_ID})")
_SHARD = re.compile(rf"{_ID}(?:{'|'.join(OF_SHARDS)})")
_PAIR = re.compile(rf"\(\s*({_TASK.pattern})\s*;\s*({_TASK.pattern})\s*\)\s*OVERLAP_F_B")
_EXPECTED = (
    "write a task as STAGE KIND MICRO_BATCH without spaces, such as 2F0, where KIND is F, B, I or W; "
    "a message has SEND_F, RECV_F, SEND_B or RECV_B in the place of KIND; a pair of tasks is (4F7;1B2)OVERLAP_F_B"
)


def _parse(source: Source) -> list[list[_Cell]]:
    """Return the tasks and messages of each line. Raises ChimeraError E621."""
    lines = source.text.rstrip().split("\n")
    if len(lines) > limits.RANKS:
        raise refuse("E621", f"{source.name} has {count_text(len(lines), 'line')}, one for each rank; at most {limits.RANKS}")
    streams: list[list[_Cell]] = []
    at, count = 0, 0
    for rank, line in enumerate(lines):
        streams.append([])
        for text in line.split(","):
            begin = at + len(text) - len(text.lstrip())
            word = text.strip()
            if len(word) > 1 and word[0] == word[-1] == '"':
                word, begin = word[1:-1], begin + 1
            end = begin + len(word)
            if found := _TASK.fullmatch(word) or _MESSAGE.fullmatch(word):
                streams[-1].append(_Cell(rank, begin, end, int(found[1]), found[2], int(found[3])))
            elif found := _PAIR.fullmatch(word):  # its groups: each task, followed by the three groups of _TASK
                for k, overlap in ((2, True), (6, False)):
                    streams[-1].append(_Cell(rank, begin, end, int(found[k]), found[k + 1], int(found[k + 2]), overlap))
            elif word and not _SHARD.fullmatch(word):  # an empty one is an idle slot
                shown = word if len(word) <= 40 else f"{word[:37]}..."
                span = source.span(begin, max(end, begin + 1))
                raise refuse(
                    "E621", f"{source.name}: line {rank + 1} has '{shown}', which is no action", span, "here", help=_EXPECTED
                )
            at += len(text) + 1
        count += len(streams[-1])
        if count > limits.INSTRUCTIONS:
            raise refuse("E621", f"{source.name} has more than {limits.INSTRUCTIONS} tasks and messages")
    if not count:
        help = "write one with chimerac SCHEDULE --emit torch-csv -o x.csv, or with _dump_csv of a schedule of torch"
        raise refuse("E621", f"{source.name} has no action that is a task or a message", help=help)
    return streams


def _span(source: Source, cell: _Cell) -> Span:
    return source.span(cell.begin, cell.end)


def _sizes(source: Source, cells: Sequence[_Cell]) -> tuple[list[int], int]:
    """Return the rank of each stage, and the number of micro-batches.

    Raises ChimeraError E622 unless every task is there once, and all tasks of a stage are on one rank.
    """
    tasks: dict[tuple[int, str, int], _Cell] = {}
    first_task: dict[int, _Cell] = {}  # by stage
    for cell in cells:
        if cell.letter not in TASKS:
            continue
        first = first_task.setdefault(cell.stage, cell)
        if first.rank != cell.rank:
            fact = f"stage {cell.stage} is on rank {first.rank}, by {first.text}, and on rank {cell.rank}, by {cell.text}"
            raise _no_schedule(source, fact, "give each stage one rank", cell)
        key = (cell.stage, cell.letter, cell.micro_batch)
        if key in tasks:
            raise _no_schedule(source, f"{cell.text} appears twice", "leave one of them out", cell)
        tasks[key] = cell
    stages, micro_batches = max(first_task, default=-1) + 1, max((m for _, _, m in tasks), default=-1) + 1
    # Numbers in a file may be huge, but the loops end at the first missing task: after at most len(tasks) that are there.
    for s in range(stages):
        for m in range(micro_batches):
            if (s, "F", m) not in tasks:
                largest = f"the largest stage is {stages - 1} and the largest micro-batch {micro_batches - 1}"
                raise _no_schedule(source, f"{s}F{m} is missing; {largest}", "list every task of every stage once")
            has = {letter for letter in "BIW" if (s, letter, m) in tasks}
            if has not in ({"B"}, {"I", "W"}):
                shown = " and ".join(f"{s}{letter}{m}" for letter in sorted(has)) or "none"
                fact = f"stage {s} has for micro-batch {m} as backward: {shown}"
                raise _no_schedule(source, fact, f"list {s}B{m}, or {s}I{m} and {s}W{m}", tasks[s, "F", m])
    return [first_task[s].rank for s in range(stages)], micro_batches


def _no_schedule(source: Source, fact: str, help: str, cell: _Cell | None = None) -> ChimeraError:
    span = None if cell is None else _span(source, cell)
    return refuse("E622", f"{source.name}: {fact}", span, "here" if cell else "", help=help)


def _instruction(cell: _Cell, placement: Sequence[int]) -> Instruction:
    """Return the instruction of an action, in pipe 0, the only one.

    A message from or to a stage that does not exist is left to the verifier.
    """
    ids = (cell.micro_batch,)
    if cell.letter in TASKS:
        task: type[Task] = TASKS[cell.letter]
        return task(0, cell.stage, ids, overlap=cell.overlap)  # type: ignore[return-value]
    is_act, is_send = cell.letter.endswith("F"), cell.letter.startswith("SEND")
    # Activations come from the previous stage and go to the next one, gradients the other way.
    neighbour = cell.stage + (1 if is_act == is_send else -1)
    peer = placement[neighbour] if 0 <= neighbour < len(placement) else 0
    reader = max(neighbour, 0) if is_send else cell.stage
    return (Send if is_send else Recv)("act" if is_act else "grad", 0, reader, ids, peer)
