"""Can the program get stuck? (E440) One question for each machine of docs/semantics.md.

Every wait of a stream is for something that a definite other instruction does: nothing is decided at run time. So a
program either ends under every interleaving or under none, and one run decides it. On `posted`, `window` and
`rendezvous` an instruction waits only for instructions of other ranks, and running the ranks round-robin takes one look
at every wait. On `paired` and `serial` transfers also wait for each other; there the waits are a graph of instructions
and completions, and the program ends exactly if it has no cycle.
"""

from __future__ import annotations

import graphlib
from dataclasses import dataclass
from typing import get_args

import numpy as np

from chimera_ir.diagnostics import Diagnostic
from chimera_ir.instructions import Op, Value
from chimera_ir.program import Ints, Machine
from compiler.verify.matching import channels
from compiler.verify.view import View


@dataclass(frozen=True, slots=True)
class _Waits:
    """Row `target` waits until row `source`, of another rank, has been executed; sorted by target."""

    target: Ints
    source: Ints


def check_progress(view: View) -> list[Diagnostic]:
    """Return the cycle of waits if the program cannot end on the machine that its header names."""
    return _stuck_on(view, view.header.machine)


def machines(view: View) -> dict[str, bool]:
    """Return for every machine whether the program ends on it. The window is the program's own."""
    return {machine: not _stuck_on(view, machine) for machine in get_args(Machine)}


def _stuck_on(view: View, machine: Machine) -> list[Diagnostic]:
    if machine in ("posted", "window", "rendezvous"):
        return _run(view, machine, _waits(view, {"posted": None, "rendezvous": 0}.get(machine, view.header.window)))
    return _search(view, machine)


def _reads(view: View) -> tuple[Ints, Ints]:
    """Return (reader row, RECV row) for every received value: the wait of the first instruction that reads it."""
    pairs = []
    for value in Value:
        rows, keys = view.transfers[Op.RECV, value]
        pairs.append((view.reader(value)[keys], rows))
    return np.concatenate([p[0] for p in pairs]), np.concatenate([p[1] for p in pairs])


def _waits(view: View, window: int | None) -> _Waits:
    """Return the waits of the machine whose channels hold `window` sends; None holds any number."""
    channel, send, receive = channels(view)
    sent = np.full(len(view.program), -1, np.int64)
    sent[receive] = send
    reader, received = _reads(view)
    target, source = [reader], [sent[received]]
    if window is not None:
        # SEND number i waits until receive number i - window is posted; with no window at all, until its own is.
        earlier = np.arange(len(send)) - window
        blocked = np.flatnonzero(earlier >= 0)
        blocked = blocked[channel[earlier[blocked]] == channel[blocked]]
        target.append(send[blocked])
        source.append(receive[earlier[blocked]])
    targets, sources = np.concatenate(target), np.concatenate(source)
    order = np.argsort(targets, kind="stable")
    return _Waits(targets[order], sources[order])


def _run(view: View, machine: Machine, waits: _Waits) -> list[Diagnostic]:
    """Run all ranks as far as they get; report the waits that are left."""
    p = view.program
    target, source = waits.target.tolist(), waits.source.tolist()
    partner = view.rank[waits.source].tolist()
    bounds = np.searchsorted(waits.target, p.offsets).tolist()
    place, last = bounds[:-1], bounds[1:]  # each rank's next wait
    stops = p.offsets[1:].tolist()
    reached = p.offsets[:-1].tolist()  # rows before it are executed
    sleeping: list[list[int]] = [[] for _ in range(p.world)]  # rank -> ranks that wait for it
    ready = list(range(p.world))
    while ready:
        rank = ready.pop()
        w, end = place[rank], last[rank]
        while w < end and source[w] < reached[partner[w]]:
            w += 1
        place[rank] = w
        if w < end:
            sleeping[partner[w]].append(rank)
        row = target[w] if w < end else stops[rank]
        if row > reached[rank]:
            reached[rank] = row
            ready += sleeping[rank]
            sleeping[rank] = []
    stuck = {rank: place[rank] for rank in range(p.world) if place[rank] < last[rank]}
    if not stuck:
        return []
    return [_explain(view, machine, [(target[w], source[w]) for w in _cycle({r: partner[w] for r, w in stuck.items()}, stuck)])]


def _cycle(waits_for: dict[int, int], stuck: dict[int, int]) -> list[int]:
    """Return the waits of the shortest cycle among stuck ranks, each of which waits for one other."""
    best: list[int] = []
    seen: set[int] = set()
    for start in waits_for:
        path: list[int] = []
        rank = start
        while rank not in seen:
            seen.add(rank)
            path.append(rank)
            rank = waits_for[rank]
        if rank in path:  # a new cycle; every rank is walked once
            cycle = path[path.index(rank) :]
            best = cycle if not best or len(cycle) < len(best) else best
    return [stuck[rank] for rank in best]


def _explain(view: View, machine: Machine, cycle: list[tuple[int, int]]) -> Diagnostic:
    p, notes = view.program, []
    for target, source in cycle:
        why = "whose value it reads" if p.table.op[target] != Op.SEND else "which must be posted first"
        notes.append(f"{p.place(target)}\n    waits for {p.place(source)}, {why}")
    name = f"window({view.header.window})" if machine == "window" else machine
    message = f"deadlock on the {name} machine: {len(cycle)} ranks wait for each other in a circle"
    help = "on one of these ranks, move the awaited instruction before the waiting one"
    return Diagnostic("E440", message, notes=tuple(notes), help=help)


def _search(view: View, machine: Machine) -> list[Diagnostic]:
    """Look for a cycle among instructions and completions on a machine whose transfers queue.

    A transfer or collective completes when all its members have posted it and the one before it in each of its queues
    is complete; `paired` has a queue per unordered pair of ranks, `serial` one per rank for everything.
    """
    p = view.program
    _, send, receive = channels(view)
    completion = {}  # row of a SEND, RECV or ALLREDUCE -> its completion, numbered after the rows
    for number, (a, b) in enumerate(zip(send.tolist(), receive.tolist(), strict=True)):
        completion[a] = completion[b] = len(p) + number
    if machine == "serial":
        for row in view.rows(Op.ALLREDUCE).tolist():
            completion[row] = len(p) + len(send) + int(p.table.batch[row])
    graph: graphlib.TopologicalSorter[int] = graphlib.TopologicalSorter()
    for rank in range(p.world):
        queues: dict[int, int] = {}
        for row in range(int(p.offsets[rank]), int(p.offsets[rank + 1])):
            graph.add(row, *([row - 1] if row > p.offsets[rank] else []))
            if row in completion:
                queue = int(p.table.peer[row]) if machine == "paired" else 0
                graph.add(completion[row], row, *([queues[queue]] if queue in queues else []))
                queues[queue] = completion[row]
    for target, source in zip(*(x.tolist() for x in _reads(view)), strict=True):
        graph.add(target, completion[source])
    waits = _waits(view, view.header.window)
    # With no window a SEND posts and then waits for its own completion; else it first waits for an earlier one.
    after = 1 if view.header.window == 0 else 0
    for target, source in zip(waits.target.tolist(), waits.source.tolist(), strict=True):
        if p.table.op[target] == Op.SEND and target + after < p.offsets[view.rank[target] + 1]:
            graph.add(target + after, completion[source])
    try:
        graph.prepare()
    except graphlib.CycleError as error:
        rows = [row for row in error.args[1] if row < len(p)]
        message = f"deadlock on the {machine} machine: transfers that queue behind each other wait in a circle"
        help = f"compile the schedule with --for {machine}, which arranges its transfers in one order"
        return [Diagnostic("E440", message, notes=tuple(p.place(row) for row in rows[:12]), help=help)]
    return []
