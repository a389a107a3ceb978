"""The kill table: the verifier rejects every mutant of a correct program that computes a wrong result, and accepts the others.

    python -m tests.proof.kills [--seed 1]

Whether a mutant is correct is decided without the verifier: by the static rules of docs/semantics.md (rules.py), by the
symbolic reference under several interleavings (tests/helpers_reference.py), by the model checker on the program's machine,
and by loopback with a model whose sums are all exact, where loss and gradients must equal those of one process bit by bit.
A mutant that is accepted but wrong is "unexplained". A mutant that is rejected but correct is "refused for nothing". There
must be neither.
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
from tests.proof.drawn import Sizes, drawn_tasks, lowered, with_moved_receives
from tests.proof.mutations import MUTATIONS, Mutation, codes, mutants
from tests.proof.mutations_header import HEADER
from tests.proof.record import record, stamp, table
from tests.proof.rules import first_error

SEED, DRAWN, DRAWN_EVALUATIONS = 1, 200, 100
OF_SHIPPED, OF_EVALUATIONS, OF_DRAWN = 12, 10, 4  # mutants by class and program
MOVED = 2  # every second random program has its RECVs moved
OF_HEADER = 4  # for a field of the header the number of mutants is divided by this
INTERLEAVINGS = 5  # of the symbolic reference
TRAINING, EVALUATION = Sizes(), Sizes(kind="evaluation")
STATES = 1_000  # of the model; a mutant with more states is not explored


def shipped() -> Iterator[tuple[str, Program]]:
    """Yield every shipped schedule at two sizes; the smaller one has two replicas."""
    for name, (small, middle) in SMALL.items():
        yield f"{name}, width 2", program(name, width=2, **small)
        yield name, program(name, **middle)


def drawn(seed: int, count: int, sizes: Sizes = TRAINING) -> Iterator[tuple[str, Program]]:
    """Yield random programs. Some have their RECVs moved and the smallest window with which they still end."""
    for number in range(seed * 10**6, seed * 10**6 + count):
        r = random.Random(number)
        p = lowered(drawn_tasks(r, sizes), r)
        moved, windows = with_moved_receives(r, p), range(4) if number % MOVED == 0 else ()
        tight = (q for window in windows if not codes(q := moved.with_header(window=window)))
        yield f"drawn {sizes.kind} {number}", next(tight, p)


def evaluations(programs: Iterator[tuple[str, Program]]) -> Iterator[tuple[str, Program]]:
    """Yield the evaluations of these programs."""
    for name, p in programs:
        yield f"{name}, evaluation", evaluation_of(p)


def reason_of(p: Program) -> str:
    """Return why a program is wrong according to the fast checks; empty if they find nothing."""
    reason = first_error(p) or wrong(p, range(INTERLEAVINGS))
    return reason or ("" if model.ends_on(p, p.header.machine) else f"in the model: it hangs on {p.header.machine}")


@dataclass
class Results:
    """The results of the mutants of one class."""

    fate: Counter[str] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)  # codes of findings, each counted once per mutant

    def judge(self, mutant: Program, run: bool, seed: int = 0) -> str:
        """Count and return the fate of a mutant. run: also run it in loopback if the fast checks find nothing wrong."""
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
        """Explore and run a mutant that seems correct; return why it is not, or empty."""
        by_model = model.explore(mutant, mutant.header.machine, STATES)
        if by_model.states <= STATES:
            self.fate["explored"] += 1
            if by_model.finals != (True,):
                return f"in the model: {by_model}"
        if mutant.header.tied:  # the exact model has no tied parameters
            return ""
        self.fate["run"] += 1
        return difference(mutant, seed)


def difference(p: Program, seed: int) -> str:
    """Return how the results of a program differ from one process, or why it fails; empty if they are equal."""
    try:
        equal_to_one_process(p, deep_model(max(4, p.header.stages - 2)), seed, every_post=True)
    except Exception as error:
        return f"in loopback: {error}"
    return ""


def judge_mutants(
    programs: Iterator[tuple[str, Program]], count: int, classes: dict[Mutation, Results], run: bool = True
) -> None:
    """Judge `count` mutants of every class for each program, fewer for the header. Equal executions run once in loopback."""
    for name, p in programs:
        assert not codes(p) and not reason_of(p), name
        executions = {execution(p)}
        for mutation in MUTATIONS:
            limit = -(-count // OF_HEADER) if mutation in HEADER else count
            for number, mutant in enumerate(mutants(p, mutation, limit, f"{name} {mutation.__name__}")):
                classes[mutation].judge(mutant, run and execution(mutant) not in executions, number)
                executions.add(execution(mutant))


def execution(p: Program) -> object:
    """Return all parts of a program on which its execution depends."""
    h = p.header
    return h.width, h.ranks, h.window, h.machine, h.kind, h.pipes, tuple(p.stream(g) for g in range(p.world))


def text(classes: dict[Mutation, Results]) -> str:
    """Return the text for docs/proof.md."""
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
    classes: dict[Mutation, Results] = defaultdict(Results)
    judge_mutants(shipped(), OF_SHIPPED, classes)
    judge_mutants(evaluations(shipped()), OF_EVALUATIONS, classes)
    judge_mutants(drawn(args.seed, DRAWN), OF_DRAWN, classes)
    judge_mutants(drawn(args.seed, DRAWN_EVALUATIONS, EVALUATION), OF_DRAWN, classes)
    words = stamp(time.monotonic() - began, args.seed, ("numpy", "torch")) + text(classes)
    print(words)
    record("kills", words)
    return 1 if any(c.fate["unexplained"] or c.fate["refused for nothing"] for c in classes.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
