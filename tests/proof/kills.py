"""The kill table, of mutants of correct programs: whether the verifier rejects those that are wrong, and accepts the others.

    python -m tests.proof.kills [--seed 1]

Whether a mutant is correct is decided without the verifier: by rules of docs/semantics.md that need no run (rules.py), by the
symbolic reference under several interleavings (tests/helpers_reference.py), and by the model checker on the machine of the
mutant's header. If neither these nor the verifier find anything, most mutants also run in loopback with a model whose sums are
all exact: loss and gradients must equal those of one process bit by bit, and an evaluation must have no gradients. A wrong
mutant that the verifier accepts is "wrongly accepted". A correct mutant that it rejects is "wrongly rejected". There must be
none of either kind.
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
from tests.helpers_loopback import deep_model, run_and_compare
from tests.helpers_reference import find_error
from tests.proof import model
from tests.proof.drawn import Sizes, lower_tasks, random_tasks, with_moved_receives
from tests.proof.mutations import MUTATIONS, Mutation, codes, mutants
from tests.proof.mutations_header import HEADER
from tests.proof.record import record, stamp, table
from tests.proof.rules import first_error

SEED = 1
DRAWN, DRAWN_EVALUATIONS = 200, 100  # the numbers of random training programs and evaluations
OF_SHIPPED, OF_EVALUATIONS, OF_DRAWN = 12, 10, 4  # the most mutants of a class, for one program
MOVED = 2  # every second random program has its RECVs moved
OF_HEADER = 4  # for a class of changes of the header or the costs, those numbers are divided by this, and rounded up
INTERLEAVINGS = 5  # of the symbolic reference
TRAINING, EVALUATION = Sizes(), Sizes(kind="evaluation")
STATES = 1_000  # of the model; the exploration of a mutant with more states stops, and its result is not used


def shipped_programs() -> Iterator[tuple[str, Program]]:
    """Yield (name, program) for every schedule of the library at two sizes. Those of the smaller size have two replicas."""
    for name, (small, middle) in SMALL.items():
        yield f"{name}, width 2", program(name, width=2, **small)
        yield name, program(name, **middle)


def random_programs(seed: int, count: int, sizes: Sizes = TRAINING) -> Iterator[tuple[str, Program]]:
    """Yield (name, random program). Every second one has its RECVs moved, and the smallest window that the verifier accepts.

    If the verifier accepts none of the windows 0 to 3, the RECVs are not moved.
    """
    for number in range(seed * 10**6, seed * 10**6 + count):
        r = random.Random(number)
        p = lower_tasks(random_tasks(r, sizes), r)
        moved, windows = with_moved_receives(r, p), range(4) if number % MOVED == 0 else ()
        accepted = (q for window in windows if not codes(q := moved.with_header(window=window)))
        yield f"drawn {sizes.kind} {number}", next(accepted, p)


def evaluations_of(programs: Iterator[tuple[str, Program]]) -> Iterator[tuple[str, Program]]:
    """Yield the evaluations of these programs."""
    for name, p in programs:
        yield f"{name}, evaluation", evaluation_of(p)


def reason_of(p: Program) -> str:
    """Return why a program is wrong according to the fast checks; an empty string if they find nothing.

    These are the rules, the reference, and one run of the model.
    """
    reason = first_error(p) or find_error(p, range(INTERLEAVINGS))
    return reason or ("" if model.ends_on(p, p.header.machine) else f"in the model: it hangs on {p.header.machine}")


@dataclass
class Results:
    """The results of the mutants of one class.

    Attributes:
        outcomes: how many have each outcome; also, how many the model has "explored", and how many were "run" in loopback.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)  # codes of findings, each counted once per mutant

    def check(self, mutant: Program, run: bool, seed: int = 0) -> str:
        """Count and return the outcome of a mutant.

        Args:
            run: whether to explore it in the model and run it in loopback, if the verifier and the fast checks find nothing.
            seed: of the interleaving in loopback.
        """
        found, reason = codes(mutant), reason_of(mutant)
        if run and not found and not reason:
            reason = self.explore_and_run(mutant, seed)
        outcome = {  # by whether the verifier rejects the mutant, and whether it is wrong
            (True, True): "rejected",
            (True, False): "wrongly rejected",
            (False, True): "wrongly accepted",
            (False, False): "equivalent",
        }[bool(found), bool(reason)]
        self.outcomes[outcome] += 1
        self.codes.update(found)
        if outcome in ("wrongly rejected", "wrongly accepted"):
            print(f"{outcome}: {found} {reason}\n{program_to_text(mutant)}")
        return outcome

    def explore_and_run(self, mutant: Program, seed: int) -> str:
        """Explore and run a mutant in which nothing was found; return why it is wrong, or an empty string."""
        by_model = model.explore(mutant, mutant.header.machine, STATES)
        if by_model.states <= STATES:
            self.outcomes["explored"] += 1
            if by_model.finals != (True,):
                return f"in the model: {by_model}"
        if mutant.header.tied:  # `deep_model` has no tied parameters
            return ""
        self.outcomes["run"] += 1
        return difference(mutant, seed)


def difference(p: Program, seed: int) -> str:
    """Return how the results of a program differ from one process, or why it fails; an empty string if they are equal."""
    try:
        # `deep_model(k)` has k + 2 layers: at least one for each stage.
        run_and_compare(p, deep_model(max(4, p.header.stages - 2)), seed, every_post=True)
    except Exception as error:
        return f"in loopback: {error}"
    return ""


def check_mutants(
    programs: Iterator[tuple[str, Program]], count: int, classes: dict[Mutation, Results], run: bool = True
) -> None:
    """Check up to `count` mutants of every class for each program.

    For the classes in HEADER the limit is count / OF_HEADER, rounded up.

    Args:
        classes: the results by class, to which these are added.
        run: whether mutants are explored and run (`Results.check`), unless their execution equals that of the program or of an
            earlier mutant of it.
    """
    for name, p in programs:
        assert not codes(p) and not reason_of(p), name
        executions = {execution(p)}
        for mutation in MUTATIONS:
            limit = -(-count // OF_HEADER) if mutation in HEADER else count
            for number, mutant in enumerate(mutants(p, mutation, limit, f"{name} {mutation.__name__}")):
                classes[mutation].check(mutant, run and execution(mutant) not in executions, number)
                executions.add(execution(mutant))


def execution(p: Program) -> object:
    """Return all parts of a program on which its execution depends, for a model without tied parameters."""
    h = p.header
    return h.width, h.ranks, h.window, h.machine, h.kind, h.pipes, tuple(p.stream(g) for g in range(p.world))


def text(classes: dict[Mutation, Results]) -> str:
    """Return the text for docs/proof.md."""
    kinds = ("rejected", "equivalent", "wrongly accepted", "wrongly rejected")
    head = ("class", "mutants", *kinds, "codes of the findings", "why all have one outcome")
    total = sum((c.outcomes for c in classes.values()), Counter())
    rows = []
    for name, outcomes, seen, why in [
        *((MUTATIONS[m][0], classes[m].outcomes, classes[m].codes, MUTATIONS[m][1]) for m in MUTATIONS),
        ("all", total, {}, ""),
    ]:
        counts = [outcomes[kind] for kind in kinds]
        rows.append((name, sum(counts), *counts, " ".join(sorted(seen)), why))
    return (
        table(head, rows)
        + f"Programs: {len(SMALL)} shipped schedules at two sizes and the evaluation of each, {DRAWN} drawn training programs\n"
        + f"and {DRAWN_EVALUATIONS} drawn evaluations, some with RECVs moved. "
        + f"Of the equivalent mutants {total['run']:,} were also run\n"
        + "in loopback: all whose execution differs from that of the others and that tie no parameters. "
        + f"{total['explored']:,} equivalent\n"
        + f"mutants have at most {STATES:,} states. The model checker found that they end under every interleaving.\n"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=SEED)
    args = parser.parse_args()
    began = time.monotonic()
    classes: dict[Mutation, Results] = defaultdict(Results)
    check_mutants(shipped_programs(), OF_SHIPPED, classes)
    check_mutants(evaluations_of(shipped_programs()), OF_EVALUATIONS, classes)
    check_mutants(random_programs(args.seed, DRAWN), OF_DRAWN, classes)
    check_mutants(random_programs(args.seed, DRAWN_EVALUATIONS, EVALUATION), OF_DRAWN, classes)
    report = stamp(time.monotonic() - began, args.seed, ("numpy", "torch")) + text(classes)
    print(report)
    record("kills", report)
    return 1 if any(c.outcomes["wrongly accepted"] or c.outcomes["wrongly rejected"] for c in classes.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
