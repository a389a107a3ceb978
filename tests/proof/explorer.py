"""Compares the verifier with two explorers of all interleavings of small programs, on every machine.

    python -m tests.proof.explorer [--programs 12000] [--seed 1]

One explorer is the scheduler of loopback (scheduler.py), the other a model checker written from docs/semantics.md
(model.py). The scheduler explores only the smaller ones of the programs. The explorers and the verifier must agree on every
program and machine. All runs of a program on a machine must end in the same way.
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
from chimerac.compiler.verify.index import ProgramIndex
from chimerac.compiler.verify.progress import executed, machines, waits_on
from chimerac.compiler.verify.waits import END, POST, QUEUE, READ, WINDOW, Waits
from tests.proof import model, scheduler
from tests.proof.disorder import with_own_orders
from tests.proof.drawn import MACHINES, Sizes, lower_tasks, random_tasks, with_late_receives, with_moved_receives
from tests.proof.mutations import INSTRUCTIONS, codes, mutants
from tests.proof.record import record, stamp, table

PROGRAMS, SEED = 12_000, 1
SIZES = Sizes(ranks=3, stages=4, pipes=2, micro_batches=2)
MESSAGES = range(3, 13)  # how many SENDs a program may have
# A program has one number of states in the model for each machine. The next three lines are about the largest of them.
STATES = 500  # loopback explores the programs with at most this number of states
LARGE = 20_000  # programs with more states are left out
SMALL = STATES // 20  # a program with at most this number of states is small
THOROUGH = 10  # loopback explores every 10th small program in full (`thorough` in scheduler.py)
ORDER = {"E440", "E453"}  # a deadlock; collectives without a common order

# By kind of program: its row in docs/proof.md.
KINDS = {
    "as lowered": "valid, as the compiler lowers them, some with FREE",
    "receives moved": "as in the first row, but with RECVs posted elsewhere",
    "receives late": "lowered for machines with queues, then every RECV posted as late as possible, window 0",
    "mutants": "as in the first row, but with one instruction changed; every value still reaches its readers",
    "own orders": "every rank in its own random order",
}

# By kind of wait (compiler/verify/waits.py): its row in docs/proof.md.
WAITS = {
    READ: "a task, for the value that it reads",
    POST: "a SEND, for a RECV of its channel",
    WINDOW: "a SEND or the instruction after it, for a transfer of its channel",
    END: "a transfer or collective, for its ends to be posted",
    QUEUE: "a transfer or collective, for the one before it in a queue",
}

# By machine: the kinds of waits without which the verifier misses a deadlock. On `serial` the waits in queues alone form a
# cycle if a program hangs. The other machines have no further kinds of waits.
NEEDED: dict[Machine, set[int]] = {
    "posted": {READ},
    "window": {READ, POST},
    "rendezvous": {READ, POST},
    "paired": {READ, WINDOW, END, QUEUE},
    "serial": {QUEUE},
}


def candidates(seed: int) -> Iterator[tuple[str, Program]]:
    """Yield (kind, random program), endlessly. The machine of the header is random."""
    r = random.Random(seed)
    while True:
        kind = r.choice([*KINDS, "own orders"])  # own orders twice as often as any other kind
        tasks = random_tasks(r, SIZES)
        late = kind == "receives late"
        p = with_own_orders(r, tasks) if kind == "own orders" else lower_tasks(tasks, r, queued=True if late else None)
        if late:
            p = with_late_receives(p)
        if kind == "receives moved":
            p = with_moved_receives(r, p)
        if kind == "mutants":
            p = next(mutants(p, r.choice([*INSTRUCTIONS]), 1, str(r.random())), p)  # p itself if no mutant differs
        yield kind, p.with_header(machine=r.choice(MACHINES))


def programs(seed: int) -> Iterator[tuple[str, Program, dict[str, bool]]]:
    """Yield (kind, program, whether the verifier accepts it, by machine), endlessly.

    All programs are different. If the verifier refuses one, then only with codes of ORDER.
    """
    seen = set()
    for kind, p in candidates(seed):
        messages = sum(i.op == "SEND" for g in range(p.world) for i in p.stream(g))
        digest = p.with_header(machine="window").digest  # the same for programs that differ only in the machine
        if messages not in MESSAGES or digest in seen or (found := codes(p)) - ORDER:
            continue
        seen.add(digest)
        terminates = machines(ProgramIndex(p))
        assert "E453" in found or ("E440" in found) == (not terminates[p.header.machine]), "verify() and machines() disagree"
        yield kind, p, {machine: terminates[machine] and "E453" not in found for machine in MACHINES}


def needed_waits(p: Program, machine: Machine) -> Iterator[int]:
    """Yield each kind of wait without which the verifier finds no deadlock of a program that deadlocks on this machine.

    Nothing is yielded if the program does not deadlock.
    """
    index = ProgramIndex(p)
    waits = waits_on(index, machine)
    if executed(index, machine, waits).all():
        return
    for reason in WAITS:
        kept = waits.reason != reason
        other_waits = Waits(waits.nodes, waits.target[kept], waits.source[kept], waits.reason[kept])
        if executed(index, machine, other_waits).all():
            yield reason


@dataclass
class Tally:
    """The results, by machine unless a comment says otherwise.

    Attributes:
        limit, large: the values of STATES and LARGE for this run.
    """

    limit: int = STATES
    large: int = LARGE
    kinds: Counter[str] = field(default_factory=Counter)  # programs of each kind
    small: int = 0  # small programs
    thorough: int = 0  # programs that loopback explored in full
    model_only: int = 0  # programs that loopback did not explore
    accepted: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    states: Counter[str] = field(default_factory=Counter)  # of loopback
    model_states: Counter[str] = field(default_factory=Counter)
    disagreements: Counter[str] = field(default_factory=Counter)
    # By kind of wait and machine: deadlocks that the verifier misses without this kind of wait.
    missed: Counter[tuple[int, str]] = field(default_factory=Counter)

    def add(self, kind: str, p: Program, verdicts: dict[str, bool]) -> None:
        """Explore a program on every machine and count the results, unless it is too large.

        Args:
            verdicts: whether the verifier accepts the program, by machine.
        """
        by_model = {m: model.explore(p, m, self.large) for m in MACHINES}
        largest = max(x.states for x in by_model.values())
        if largest > self.large:
            return
        self.kinds[kind] += 1
        self.model_only += int(largest > self.limit)
        is_small = largest <= SMALL
        self.small += int(is_small)
        thorough = is_small and self.small % THOROUGH == 0
        self.thorough += int(thorough)
        for machine, of_model in by_model.items():
            (self.accepted if verdicts[machine] else self.refused)[machine] += 1
            self.missed.update((wait, machine) for wait in needed_waits(p, machine))
            finals = {"model": of_model.finals, "verifier": (verdicts[machine],)}
            self.model_states[machine] += of_model.states
            if largest <= self.limit:
                by_loopback = scheduler.explore(p, machine)
                self.states[machine] += by_loopback.states
                finals["loopback"] = by_loopback.finals
                if thorough:
                    finals["loopback, thorough"] = scheduler.explore(p, machine, thorough=True).finals
            if len({*finals.values()}) > 1:
                self.disagreements[machine] += 1
                print(f"disagreement on {machine}: {finals}\n{program_to_text(p)}")

    def text(self) -> str:
        """Return the text for docs/proof.md."""
        head = ("machine", "accepted", "refused", "states of loopback", "states of the model", "disagreements")
        columns = (self.accepted, self.refused, self.states, self.model_states, self.disagreements)
        rows = [(m, *(column[m] for column in columns)) for m in MACHINES]
        total = ("all", *(column.total() for column in columns))
        kinds = [(KINDS[k], self.kinds[k]) for k in KINDS]
        return (
            table(("programs", "number"), [*kinds, ("all, no two of them equal", self.kinds.total())])
            + table(head, [*rows, total])
            + f"{self.model_only:,} of them are large and were explored by the model alone. On {self.thorough:,} small ones "
            + "loopback took\nevery choice in every state, and the contents of its transport were compared.\n\n"
            + table(
                ("wait that is left out", *MACHINES),
                [(WAITS[k], *(self.missed[k, m] for m in MACHINES)) for k in WAITS],
            )
        )


def explored(seed: int, count: int, limit: int = STATES, large: int = LARGE) -> Tally:
    """Explore `count` random programs on every machine; return the results.

    Args:
        limit, large: as STATES and LARGE.
    """
    tally = Tally(limit, large)
    for kind, p, verdicts in programs(seed):
        tally.add(kind, p, verdicts)
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
