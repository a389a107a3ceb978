"""Explorer against check: every interleaving of small programs, on every machine, beside what the verifier says.

    python -m tests.proof.explorer [--programs 12000] [--seed 1]

Two explorers visit every state: loopback's own scheduler (scheduler.py) and a model checker written from
docs/semantics.md (model.py). They and the verifier must agree on each program and machine, and all runs of a program on
a machine must come to one end.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from chimerac.chimera_ir.program import Machine, Program
from chimerac.chimera_ir.textform import program_to_text
from chimerac.compiler.verify.progress import executed, machines, waits_on
from chimerac.compiler.verify.view import View
from chimerac.compiler.verify.waits import END, POST, QUEUE, READ, WINDOW, Waits
from tests.proof import model, scheduler
from tests.proof.disorder import disorderly
from tests.proof.drawn import MACHINES, Sizes, disturbed, drawn_tasks, lowered
from tests.proof.mutations import INSTRUCTIONS, codes, mutants
from tests.proof.record import record, stamp, table

PROGRAMS, SEED = 12_000, 1
SIZES = Sizes(ranks=3, stages=4, pipes=2, micro_batches=2)
MESSAGES = range(3, 13)  # SENDs of a program
STATES, LARGE = 500, 20_000  # of the model: with more than the first only the model explores it, then nobody
THOROUGH = 20  # one program in so many, and a small one, is explored without any reduction
ORDER = {"E440", "E453"}  # findings that are about who waits for whom, and not about what is there

KINDS = {
    "as lowered": "valid, as the compiler lowers them, some with FREE",
    "receives moved": "the same with RECVs posted elsewhere",
    "mutants": "the same with one instruction changed, where every value still flows",
    "own orders": "every rank in an order of its own",
}

FORGOTTEN = {
    READ: "a task, for the value that it reads",
    POST: "a SEND, for an earlier RECV of its channel",
    WINDOW: "a SEND, for an earlier transfer of its channel",
    END: "a transfer or sum, for its ends to be posted",
    QUEUE: "a transfer or sum, for the one before it in a queue",
}

# The kinds that decide on a machine whether some program ends; the others are not there, or follow from these.
DECIDE: dict[Machine, set[int]] = {
    "posted": {READ},
    "window": {READ, POST},
    "rendezvous": {READ, POST},
    "paired": {READ, WINDOW, END, QUEUE},
    "serial": {QUEUE},
}


def candidates(seed: int) -> Iterator[tuple[str, Program]]:
    """Yield drawn programs without end, and of which kind each is. Each promises to end on some machine."""
    r = random.Random(seed)
    while True:
        kind = r.choice([*KINDS, "own orders"])
        tasks = drawn_tasks(r, SIZES)
        p = disorderly(r, tasks) if kind == "own orders" else lowered(tasks, r)
        if kind == "receives moved":
            p = disturbed(r, p)
        if kind == "mutants":
            p = next(mutants(p, r.choice([*INSTRUCTIONS]), 1, str(r.random())), p)
        yield kind, p.with_header(machine=r.choice(MACHINES))


def programs(seed: int) -> Iterator[tuple[str, Program, dict[str, bool]]]:
    """Yield different programs without end, of which kind each is, and on which machines the verifier lets it run.

    Nothing is wrong with any of them but, maybe, the order of transfers or of collectives.
    """
    seen = set()
    for kind, p in candidates(seed):
        messages = sum(i.op == "SEND" for g in range(p.world) for i in p.stream(g))
        streams = p.with_header(machine="window").digest
        if messages not in MESSAGES or streams in seen or (found := codes(p)) - ORDER:
            continue
        seen.add(streams)
        ends = machines(View(p))
        assert "E453" in found or ("E440" in found) == (not ends[p.header.machine]), "the check and its parts disagree"
        yield kind, p, {machine: ends[machine] and "E453" not in found for machine in MACHINES}


def forgettable(p: Program, machine: Machine) -> Iterator[int]:
    """Yield the kinds of waits without which the verifier would let a program that hangs run on a machine."""
    view = View(p)
    waits = waits_on(view, machine)
    if executed(view, machine, waits).all():
        return
    for why in FORGOTTEN:
        kept = waits.why != why
        fewer = Waits(waits.nodes, waits.target[kept], waits.source[kept], waits.why[kept])
        if executed(view, machine, fewer).all():
            yield why


@dataclass
class Tally:
    """What was found, by machine unless said otherwise. limit, large: as STATES and LARGE."""

    limit: int = STATES
    large: int = LARGE
    kinds: Counter[str] = field(default_factory=Counter)  # programs of each kind
    thorough: int = 0  # programs explored without any reduction
    model_only: int = 0
    accepted: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    states: Counter[str] = field(default_factory=Counter)  # of loopback
    model_states: Counter[str] = field(default_factory=Counter)
    disagreements: Counter[str] = field(default_factory=Counter)
    forgotten: Counter[tuple[int, str]] = field(default_factory=Counter)  # by kind of wait too: it alone hangs the program

    def add(self, kind: str, p: Program, says: dict[str, bool]) -> None:
        """Explore a program on every machine, unless it is too large."""
        by_model = {m: model.explore(p, m, self.large) for m in MACHINES}
        largest = max(x.states for x in by_model.values())
        if largest > self.large:
            return
        self.kinds[kind] += 1
        self.model_only += largest > self.limit
        thorough = largest <= STATES // 20 and self.kinds.total() % THOROUGH == 0
        self.thorough += thorough
        for machine, found in by_model.items():
            (self.accepted if says[machine] else self.refused)[machine] += 1
            self.forgotten.update((why, machine) for why in forgettable(p, machine))
            opinions = {"model": found.finals, "verifier": (says[machine],)}
            self.model_states[machine] += found.states
            if largest <= self.limit:
                explored = scheduler.explore(p, machine)
                self.states[machine] += explored.states
                opinions["loopback"] = explored.finals
                if thorough:
                    opinions["loopback, thorough"] = scheduler.explore(p, machine, thorough=True).finals
            if len({*opinions.values()}) > 1:
                self.disagreements[machine] += 1
                print(f"disagreement on {machine}: {opinions}\n{program_to_text(p)}")

    def text(self) -> str:
        """Return what docs/proof.md shows."""
        head = ("machine", "accepted", "refused", "states of loopback", "states of the model", "disagreements")
        columns = (self.accepted, self.refused, self.states, self.model_states, self.disagreements)
        rows = [(m, *(column[m] for column in columns)) for m in MACHINES]
        total = ("all", *(column.total() for column in columns))
        kinds = [(KINDS[k], self.kinds[k]) for k in KINDS]
        return (
            table(("programs", "number"), [*kinds, ("all, no two of them equal", self.kinds.total())])
            + table(head, [*rows, total])
            + f"{self.model_only:,} of them are large and were explored by the model alone. On {self.thorough:,} small ones "
            + "loopback took\nevery choice of every state, and what its world held there was compared.\n\n"
            + table(
                ("wait that is forgotten", *MACHINES),
                [(FORGOTTEN[k], *(self.forgotten[k, m] for m in MACHINES)) for k in FORGOTTEN],
            )
        )


def explored(seed: int, count: int, limit: int = STATES, large: int = LARGE) -> Tally:
    """Explore so many programs on every machine."""
    tally = Tally(limit, large)
    for kind, p, says in programs(seed):
        tally.add(kind, p, says)
        if sys.stderr.isatty() and tally.kinds.total() % 20 == 0:
            print(f"\rexplorer: {tally.kinds.total()} of {count}", end="", file=sys.stderr)
        if tally.kinds.total() >= count:
            break
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--programs", type=int, default=PROGRAMS)
    parser.add_argument("--seed", type=int, default=SEED)
    args = parser.parse_args()
    began = time.monotonic()
    tally = explored(args.seed, args.programs)
    text = stamp(time.monotonic() - began, args.seed, ("numpy", "torch", "greenlet")) + tally.text()
    print(text)
    record("explorer", text)
    return 1 if tally.disagreements else 0


if __name__ == "__main__":
    sys.exit(main())
