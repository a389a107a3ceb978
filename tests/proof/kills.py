"""The kill table: every mutant of a right program is rejected, or computes the same.

    python -m tests.proof.kills [--seed 1]

Who says "the same" knows nothing of the verifier: the rules of docs/semantics.md that need no run (rules.py), the symbolic
reference (tests/helpers_reference.py) under several interleavings, the model checker on the program's machine, and then
loopback with a model whose every sum is exact: loss and gradients equal to one process's in every bit. A mutant is
unexplained if it is accepted and wrong, and refused for nothing if it is rejected and right. There must be none of either.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from chimerac.chimera_ir.program import Program
from chimerac.chimera_ir.textform import program_to_text
from chimerac.compiler import evaluation_of
from tests.helpers import SMALL, program
from tests.helpers_loopback import deep_model, equal_to_one_process
from tests.helpers_reference import wrong
from tests.proof import model
from tests.proof.drawn import Sizes, disturbed, drawn_tasks, lowered
from tests.proof.mutations import MUTATIONS, Mutation, codes, mutants
from tests.proof.mutations_header import HEADER
from tests.proof.record import record, stamp, table
from tests.proof.rules import broken

SEED, DRAWN, DRAWN_EVALUATIONS = 1, 200, 100
OF_SHIPPED, OF_EVALUATIONS, OF_DRAWN = 12, 10, 4  # mutants of a class and program
MOVED = 2  # one of so many drawn programs has its RECVs moved
OF_HEADER = 4  # of a field of the header so many times fewer
INTERLEAVINGS = 5  # of the symbolic reference
TRAINING, EVALUATION = Sizes(), Sizes(kind="evaluation")
STATES = 1_000  # of the model; a mutant with more is not explored


def shipped() -> Iterator[tuple[str, Program]]:
    """Yield every shipped schedule at two sizes, the small one with two replicas."""
    for name, (small, middle) in SMALL.items():
        yield f"{name}, width 2", program(name, width=2, **small)
        yield name, program(name, **middle)


def drawn(seed: int, count: int, sizes: Sizes = TRAINING) -> Iterator[tuple[str, Program]]:
    """Yield schedules that nobody designed; some with RECVs moved and no larger a window than they need then."""
    for number in range(seed * 10**6, seed * 10**6 + count):
        r = random.Random(number)
        p = lowered(drawn_tasks(r, sizes), r)
        moved, windows = disturbed(r, p), range(4) if number % MOVED == 0 else ()
        tight = (q for window in windows if not codes(q := moved.with_header(window=window)))
        yield f"drawn {sizes.kind} {number}", next(tight, p)


def evaluations(programs: Iterator[tuple[str, Program]]) -> Iterator[tuple[str, Program]]:
    """Yield the evaluations of these programs."""
    for name, p in programs:
        yield f"{name}, evaluation", evaluation_of(p)


def reason_of(p: Program) -> str:
    """Return why a program is wrong, by all that is quickly asked; nothing if it seems to be right."""
    reason = broken(p) or wrong(p, range(INTERLEAVINGS))
    return reason or ("" if model.ends_on(p, p.header.machine) else f"in the model: it hangs on {p.header.machine}")


@dataclass
class Class:
    """What became of the mutants of one class."""

    fate: Counter[str] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)  # of the findings, once per mutant

    def judge(self, mutant: Program, run: bool, seed: int = 0) -> str:
        """Say what becomes of a mutant. run: in loopback too, if it seems to be right."""
        found, reason = codes(mutant), reason_of(mutant)
        if run and not found and not reason:
            reason = self.run(mutant, seed)
        fate = ("rejected" if reason else "refused for nothing") if found else "unexplained" if reason else "equivalent"
        self.fate[fate] += 1
        self.codes.update(found)
        if fate in ("refused for nothing", "unexplained"):
            print(f"{fate}: {found} {reason}\n{program_to_text(mutant)}")
        return fate

    def run(self, mutant: Program, seed: int) -> str:
        """Run a mutant that seems to be right in every way there is; return why it is not."""
        by_model = model.explore(mutant, mutant.header.machine, STATES)
        if by_model.states <= STATES:
            self.fate["explored"] += 1
            if by_model.finals != (True,):
                return f"in the model: {by_model}"
        if mutant.header.tied:  # the exact model ties nothing
            return ""
        self.fate["run"] += 1
        return differs(mutant, seed)


def differs(p: Program, seed: int) -> str:
    """Return how a program's gradients differ from one process's, or why it has none; nothing if they are equal."""
    try:
        equal_to_one_process(p, deep_model(max(4, p.header.stages - 2)), seed, every_post=True)
    except Exception as error:
        return f"in loopback: {error}"
    return ""


def killed(programs: Iterator[tuple[str, Program]], count: int, classes: dict[Mutation, Class], run: bool = True) -> None:
    """Judge `count` mutants of every class of each program, fewer of a header. What runs alike is run once."""
    for name, p in programs:
        assert not codes(p) and not reason_of(p), name
        ran = {executed(p)}
        for mutation in MUTATIONS:
            most = -(-count // OF_HEADER) if mutation in HEADER else count
            for number, mutant in enumerate(mutants(p, mutation, most, f"{name} {mutation.__name__}")):
                classes[mutation].judge(mutant, run and executed(mutant) not in ran, number)
                ran.add(executed(mutant))


def executed(p: Program) -> object:
    """Return all that a run of a program depends on."""
    h = p.header
    return h.width, h.ranks, h.window, h.machine, h.kind, h.pipes, tuple(p.stream(g) for g in range(p.world))


def text(classes: dict[Mutation, Class]) -> str:
    """Return what docs/proof.md shows."""
    fates = ("rejected", "equivalent", "unexplained", "refused for nothing")
    head = ("class", "mutants", *fates, "codes of the findings", "why all share one fate")
    total = sum((c.fate for c in classes.values()), Counter())
    rows = []
    for what, fate, seen, why in [
        *((words, classes[m].fate, classes[m].codes, why) for m, (words, why) in MUTATIONS.items()),
        ("all", total, {}, ""),
    ]:
        counts = [fate[x] for x in fates]
        rows.append((what, sum(counts), *counts, " ".join(sorted(seen)), why))
    return (
        table(head, rows)
        + f"Programs: {len(SMALL)} shipped schedules at two sizes and the evaluation of each, {DRAWN} drawn training programs\n"
        + f"and {DRAWN_EVALUATIONS} drawn evaluations, some with RECVs moved. "
        + f"Of the equivalent mutants {total['run']:,} were also run\n"
        + "in loopback: all that change what is run and tie no parameters. And "
        + f"{total['explored']:,}, those with at most {STATES:,} states,\n"
        + "end under every interleaving, says the model checker.\n"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=SEED)
    args = parser.parse_args()
    began = time.monotonic()
    classes: dict[Mutation, Class] = defaultdict(Class)
    killed(shipped(), OF_SHIPPED, classes)
    killed(evaluations(shipped()), OF_EVALUATIONS, classes)
    killed(drawn(args.seed, DRAWN), OF_DRAWN, classes)
    killed(drawn(args.seed, DRAWN_EVALUATIONS, EVALUATION), OF_DRAWN, classes)
    words = stamp(time.monotonic() - began, args.seed, ("numpy", "torch")) + text(classes)
    print(words)
    record("kills", words)
    return 1 if any(c.fate["unexplained"] or c.fate["refused for nothing"] for c in classes.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
