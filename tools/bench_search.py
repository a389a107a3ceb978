"""What a search over orders finds: python -m tools.bench_search [--time SECONDS] [--group GROUP] [OPTIONS].

There are three groups of settings: `uneven`, 20 with uneven stages and links; `small`, 20 small ones, also uneven; `published`,
placements with equal stages. Each setting is searched for some time. A row has the best schedule of the library that needs no
more memory, what was found, and the bound. It also has the makespan of the best such schedule whose order no search has found.
The best order of each search is written as a text and compiled, and its certificate is checked. --shipped searches nothing: it
compares what is recorded in docs/searched/ with the library of today, which may have more schedules. --unproved searches only
settings whose recorded order is not proved optimal. --placements searches the settings of `uneven` with other placements, and
adds what it finds to their rows. --write records settings and rows in docs/searched/.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.chimera_ir.instructions import Op
from chimerac.compiler import compile_schedule, compile_text
from chimerac.compiler.command.search_orders import PLACEMENTS
from chimerac.compiler.library import names
from chimerac.compiler.search.certificate import certificate
from chimerac.compiler.search.check import problems
from chimerac.compiler.search.from_program import problem_of
from chimerac.compiler.search.given import Given
from chimerac.compiler.search.known_orders import library_orders, order_of
from chimerac.compiler.search.orders import State, search
from chimerac.compiler.search.placements import best_placement
from chimerac.compiler.search.problem import Pipe, Problem
from chimerac.compiler.search.text import schedule_text
from tools import ROOT

FOLDER = ROOT / "docs/searched"
FOUND_HERE = ("chimera_fill",)  # shipped schedules whose orders such searches have found
GROUPS = ("published", "uneven", "small")


@dataclass(frozen=True)
class Setting:
    """A problem to search.

    Attributes:
        group: one of GROUPS.
        seed: of the random setting and of the search.
        split, costs, links: as in `Given`, with fractions as texts; if links is one text, it is the time of every message.
        limit: the most activations of each rank.
    """

    group: str
    seed: int
    schedule: str
    parameters: dict[str, int]
    split: bool
    costs: dict[str, list[str]]
    links: list[list[str]] | str
    limit: int

    def problem(self) -> Problem:
        """Return the problem of a search: the placement of the schedule, with these costs, links and limits."""
        program = compile_schedule(self.schedule, self.parameters).program
        ranks = program.header.ranks
        links = [[self.links] * ranks] * ranks if isinstance(self.links, str) else self.links
        given = Given(
            costs={k: [Fraction(x) for x in v] for k, v in self.costs.items()},
            links=[[Fraction(x) for x in row] for row in links],
            limits=self.limit,
            split=self.split,
        )
        return problem_of(program, given)


def drawn(group: str, seed: int) -> Setting:
    """Return a random setting: a placement, stages whose costs vary by up to about 30 %, and links of 0.1 to 0.5.

    A forward costs about 1.

    Args:
        group: `uneven` or `small`.
    """
    r = random.Random(f"{group} {seed}")
    small = group == "small"
    ranks = r.choice((2, 4, 6) if small else (4, 6, 8))
    schedule = r.choice(("1f1b", "chimera_any", "zb_v") if small else ("1f1b", "chimera_any"))
    is_v = schedule == "zb_v"  # with two stages on a rank, and at least 2D - 1 micro-batches
    ranks = min(ranks, 3) if is_v else ranks
    micro_batches = r.choice((4, 6, 8, 10, 12)) if small else ranks * r.choice((2, 3, 4))
    micro_batches = max(micro_batches, 2 * ranks - 1) if is_v else micro_batches
    stages = 2 * ranks if is_v else ranks
    split = r.random() < 0.6 or is_v
    kinds = "FIW" if split else "FB"
    base = {"F": 10, "B": 20, "I": r.choice((10, 11, 12)), "W": r.choice((7, 8, 10))}  # costs, in tenths
    factors = [r.uniform(0.75, 1.25) for _ in range(stages)]
    costs = {k: [str(Fraction(round(base[k] * f * r.uniform(0.95, 1.05)), 10)) for f in factors] for k in kinds}
    links = [[str(Fraction(r.randint(1, 5), 10)) if a != b else "0" for b in range(ranks)] for a in range(ranks)]
    limit = stages + r.choice((0, 0, 1, 2))
    parameters = {"D": ranks, "N": micro_batches}
    return Setting(group, seed, schedule, parameters, split, costs, links, limit)


def published() -> Iterator[Setting]:
    """Yield the settings of two pipes in opposite directions with equal stages, at most D activations on a rank."""
    for ranks, micro_batches, hop, split in (
        (8, 32, "0", False), (8, 32, "0", True), (12, 24, "0", True), (12, 48, "0", True), (32, 64, "0", True),
        (4, 16, "1/10", True), (8, 16, "1/10", True), (8, 32, "1/10", True), (16, 32, "1/10", True), (8, 32, "1/2", True),
    ):  # fmt: skip
        costs = {"F": ["1"] * ranks} | ({"I": ["1"] * ranks, "W": ["1"] * ranks} if split else {"B": ["2"] * ranks})
        parameters = {"D": ranks, "N": micro_batches}
        yield Setting("published", 0, "chimera_zb", parameters, split, costs, links=hop, limit=ranks)


def makespans_of_library(problem: Problem) -> dict[str, int]:
    """Return, by name, the makespan of each schedule of the library that needs no more memory than the problem allows.

    Orders are taken as they are written. Such a schedule has as many ranks, stages and micro-batches as the problem,
    keeps the limits, and has at most as many copies of weights on a rank. Its placement may differ. A schedule that recomputes
    is left out. If the problem splits the backward, a schedule that does not split it has B = I + W. If the problem does not
    split it, schedules that do are left out. Makespans are integers, like the times of the problem.
    """
    found: dict[str, int] = {}
    copies = weight_copies(problem.pipes)
    sizes = {"D": problem.ranks, "N": sum(pipe.micro_batches for pipe in problem.pipes)}
    # The durations of `problem` are those of F and B, or of F, I and W.
    unsplit = replace(
        problem, kinds="FB", durations=(problem.durations[0], tuple(map(sum, zip(*problem.durations[1:], strict=True))))
    )
    for name in names():
        # The defaults, as many pairs of pipes as the problem has, and the second policy of `dapple`: the best one counts.
        for more in ({}, {"f": len(problem.pipes) // 2}, {"policy": 2}):
            try:
                program = compile_schedule(name, {**sizes, **more}).program
            except ChimeraError:  # it has no such parameter, or cannot run at these sizes
                continue
            h, is_split = program.header, bool((program.table.op == Op.BWD_INPUT).any())
            # With the micro-batch size (1, 1), micro-batches have the given size, and not a fraction of it.
            has_sizes = (h.ranks, h.stages, h.micro_batches, h.micro_batch_size) == (*sizes_of(problem), (1, 1))
            if not has_sizes or program.recomputed_stages or (is_split and problem.kinds == "FB"):
                continue
            pipes = tuple(Pipe(p.name, p.placement, len(p.micro_batches)) for p in h.pipes)
            if weight_copies(pipes) <= copies:
                order = order_of(replace(problem if is_split else unsplit, pipes=pipes), program)
                if order is not None:
                    found[name] = min(order.makespan, found.get(name, order.makespan))
    return found


def shipped_figures(problem: Problem) -> dict[str, Any]:
    """Return the figures of a row that are about the library: the best schedule, and the best not in FOUND_HERE."""
    makespans = makespans_of_library(problem)
    shipped = min(makespans, key=lambda x: makespans[x], default=None)
    not_searched = min((m for name, m in makespans.items() if name not in FOUND_HERE), default=None)
    return {
        "shipped": shipped or "none fits",
        "shipped_makespan": None if shipped is None else float(makespans[shipped] / problem.scale),
        "not_searched_makespan": None if not_searched is None else float(not_searched / problem.scale),
    }


def sizes_of(problem: Problem) -> tuple[int, int, int]:
    """Return the numbers of ranks, stages and micro-batches."""
    return problem.ranks, problem.stages, sum(pipe.micro_batches for pipe in problem.pipes)


def weight_copies(pipes: Sequence[Pipe]) -> int:
    """Return the number of copies of stages on the rank that has most."""
    held = {(r, s) for pipe in pipes if pipe.micro_batches for s, r in enumerate(pipe.placement)}
    return max(Counter(r for r, _ in held).values())


def run(setting: Setting, seconds: float) -> dict[str, Any]:
    """Search one setting for some seconds, check the result, and return its row, with times in the unit of the costs."""
    problem = setting.problem()
    shipped = shipped_figures(problem)
    begun = time.monotonic()
    state = search(problem, library_orders(problem), seconds, setting.seed)
    makespan, busy = checked_makespan(state), max(problem.busy())
    return {
        **shipped,
        "makespan": float(makespan / problem.scale),
        "bound": float(state.bound / problem.scale),
        "bubble": float((makespan - busy) / problem.scale),
        "least_bubble": float((state.bound - busy) / problem.scale),
        "proved": state.is_proved,
        "by": state.best_by,
        "seconds": round(time.monotonic() - begun, 1),
    }


def checked_makespan(state: State) -> int:
    """Return the makespan of the best order. This order is written as a text and compiled, and its certificate is checked."""
    assert state.best is not None, "the search found no order"
    text, compiled = schedule_text(state.problem, state.best, "found", [], ["sync eager"])
    found = json.loads(certificate(state, "found", compiled.program.digest))
    assert not list(problems(found, compile_text(text).program)), "the certificate of what was found is wrong"
    return state.best.makespan


def run_placements(setting: Setting, seconds: float) -> dict[str, Any]:
    """Search one setting as `chimerac search --placements` does, check the result, and return its figures."""
    problem, begun = setting.problem(), time.monotonic()
    placed = best_placement(problem, library_orders(problem), PLACEMENTS * seconds, setting.seed)
    state = search(placed.problem, [("placed", placed.order)], (1 - PLACEMENTS) * seconds, setting.seed)
    return {
        "placements": [pipe.placement for pipe in state.problem.pipes],
        "makespan": float(checked_makespan(state) / problem.scale),
        "bound": float(state.bound / problem.scale),
        "bound_of_every_placement": float(placed.bound / problem.scale),
        "proved": state.is_proved,
        "seconds": round(time.monotonic() - begun, 1),
    }


def with_shipped(setting: Setting, found: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a setting with the best schedule of today's library."""
    return {**found, **shipped_figures(setting.problem())}


def stored(group: str) -> list[dict[str, Any]]:
    """Return the recorded rows of a group."""
    rows = json.loads((FOLDER / f"{group}.json").read_text(encoding="utf-8"))
    return [row["found"] for row in rows]


def settings_of(group: str) -> list[Setting]:
    """Return the settings of a group."""
    return list(published()) if group == "published" else [drawn(group, seed) for seed in range(20)]


def main() -> None:
    """Search the settings, and print each row when it is found; with --write, record the rows with their settings."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--time", type=float, default=60, help="seconds for each setting, default 60")
    parser.add_argument("--group", choices=GROUPS, help="only the settings of this group")
    parser.add_argument("--placements", action="store_true", help="search other placements of the settings of uneven")
    parser.add_argument("--shipped", action="store_true", help="only compare the recorded orders with the library again")
    parser.add_argument(
        "--unproved", action="store_true", help="search only settings whose recorded order is not proved optimal"
    )
    parser.add_argument("--write", action="store_true", help=f"write settings and rows to {FOLDER.relative_to(ROOT)}/")
    options = parser.parse_args()
    if options.placements and (options.shipped or options.unproved or options.group not in (None, "uneven")):
        parser.error("--placements is for the group uneven, without --shipped and --unproved")
    groups = ["uneven"] if options.placements else [options.group] if options.group else GROUPS
    for group in groups:
        settings = settings_of(group)
        rows = stored(group)
        for k, setting in enumerate(settings):
            if options.unproved and rows[k]["proved"]:
                continue
            if options.placements:
                rows[k]["placed"] = run_placements(setting, options.time)
            else:
                new = with_shipped(setting, rows[k]) if options.shipped else run(setting, options.time)
                rows[k] = {**rows[k], **new}
            print(json.dumps(rows[k]), flush=True)
            if options.write:  # after each row: the others are kept as they were recorded
                lines = ",\n".join(f"  {json.dumps({**vars(s), 'found': row})}" for s, row in zip(settings, rows, strict=True))
                (FOLDER / f"{group}.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")
        found = [{**x, **x["placed"]} for x in rows] if options.placements else rows
        gains = [1 - x["makespan"] / x["shipped_makespan"] for x in found if x["shipped_makespan"]]
        proved = sum(x["proved"] for x in found)
        print(f"{group}: median gain {statistics.median(gains):.1%}, least {min(gains):.1%}, proved {proved} of {len(rows)}")


if __name__ == "__main__":
    main()
