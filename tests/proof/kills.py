"""The kill table: every mutant of a right program is rejected, or computes the same.

    python -m tests.proof.kills [--seed 1]

Who says "the same" is the symbolic reference (tests/helpers_reference.py), under several interleavings, and then
loopback with a model whose every sum is exact: gradients equal to one process's in every bit. A mutant is unexplained if
it is accepted and wrong, and refused for nothing if it is rejected and right. There must be none of either.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from chimera_ir.program import Program
from chimera_ir.textform import program_to_text
from tests.helpers import SMALL, program
from tests.helpers_loopback import deep_model, equal_to_one_process
from tests.helpers_reference import wrong
from tests.proof import model
from tests.proof.drawn import drawn_tasks, lowered
from tests.proof.mutations import MUTATIONS, Mutation, codes, mutants
from tests.proof.record import record, stamp, table

SEED, DRAWN = 1, 200
OF_SHIPPED, OF_DRAWN = 40, 10  # mutants of a class and program
INTERLEAVINGS = 5  # of the symbolic reference
STATES = 5_000  # of the model; a mutant with more is not explored


def shipped() -> Iterator[tuple[str, Program]]:
    """Yield every shipped schedule at two sizes, the small one with two replicas."""
    for name, (small, middle) in SMALL.items():
        yield f"{name}, width 2", program(name, width=2, **small)
        yield name, program(name, **middle)


def drawn(seed: int, count: int) -> Iterator[tuple[str, Program]]:
    """Yield schedules that nobody designed."""
    for number in range(seed * 10**6, seed * 10**6 + count):
        r = random.Random(number)
        yield f"drawn {number}", lowered(drawn_tasks(r), r)


@dataclass
class Class:
    """What became of the mutants of one class."""

    fate: Counter[str] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)  # of the findings, once per mutant

    def judge(self, mutant: Program, run: bool, seed: int = 0) -> str:
        """Say what becomes of a mutant. run: in loopback too, if it seems to be right."""
        found, reason = codes(mutant), wrong(mutant, range(INTERLEAVINGS))
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
    """Judge `count` mutants of every class of each program."""
    for name, p in programs:
        assert not codes(p) and not wrong(p), name
        for mutation in MUTATIONS:
            for number, mutant in enumerate(mutants(p, mutation, count, f"{name} {mutation.__name__}")):
                classes[mutation].judge(mutant, run, number)


def text(classes: dict[Mutation, Class]) -> str:
    """Return what docs/proof.md shows."""
    fates = ("rejected", "equivalent", "unexplained", "refused for nothing")
    head = ("class", "mutants", *fates, "codes of the findings", "why none is right")
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
        + f"Programs: {len(SMALL)} shipped schedules at two sizes, and {DRAWN} drawn ones. Of the equivalent mutants\n"
        + f"{total['run']:,} were also run in loopback, all but those with tied parameters; and {total['explored']:,},\n"
        + f"those with at most {STATES:,} states, end under every interleaving, says the model checker.\n"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=SEED)
    args = parser.parse_args()
    began = time.monotonic()
    classes: dict[Mutation, Class] = defaultdict(Class)
    killed(shipped(), OF_SHIPPED, classes)
    killed(drawn(args.seed, DRAWN), OF_DRAWN, classes)
    words = stamp(time.monotonic() - began, args.seed, ("numpy", "torch")) + text(classes)
    print(words)
    record("kills", words)
    return 1 if any(c.fate["unexplained"] or c.fate["refused for nothing"] for c in classes.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
