"""The evaluation of the Chimera paper (Li and Hoefler, SC'21, GPT-2 with 64 layers), predicted.

    python -m tools.paper_evaluation            print the tables
    python -m tools.paper_evaluation --write    and record them in docs/plan.md

Every scheme gets its fastest configuration that fits, at each of several links (LINKS). PipeDream and PipeDream-2BW are closed
forms (tools/asynchronous.py), and not executable. The configurations of the other schemes are those that `chimerac plan` finds.
The times of layers are those of the shipped profile: the published times of one layer on a P100, scaled by the costs of
the layers. Nothing is fitted to the published throughputs.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.chimera_ir.host import processors
from chimerac.chimera_ir.instructions import Op
from chimerac.chimera_ir.model import StageSum
from chimerac.chimera_ir.profile import Link
from chimerac.compiler.analyze.durations import Network, profiled_durations, stage_seconds
from chimerac.compiler.analyze.formula import closed_equation
from chimerac.compiler.analyze.memory import memory
from chimerac.compiler.command.values import state_of
from chimerac.compiler.descriptions import find_model
from chimerac.compiler.library import find
from chimerac.compiler.plan.evaluate import Evaluator, Outcome, samples_per_second
from chimerac.compiler.plan.explore import search
from chimerac.compiler.plan.space import Configuration, Problem
from chimerac.compiler.profiles import find_profile
from tests.proof.record import record, stamp, table
from tools import ROOT
from tools.asynchronous import Scheme, Stage, peak_bytes, seconds_per_micro_batch

PAGE = ROOT / "docs" / "plan.md"
MODEL, PROFILE, MEMORY = "gpt2-64", "p100", 16 * 2**30
# From a fast network to a slow one: 10 GB/s is about what a Cray Aries node injects, 1 GB/s what TCP and copies through the
# host leave of it.
MIDDLE = Link(2e-5, 3e9)  # latency in seconds, bytes per second
LINKS = (Link(5e-6, 1e10), Link(1e-4, 1e10), MIDDLE, Link(5e-6, 1e9), Link(1e-4, 1e9))
DEPTHS, MICRO_BATCH_SIZES = (2, 4, 8, 16, 32, 64), (1, 2, 4, 8, 16, 32)  # of the closed forms
RANKS = 2048  # an iteration has one sample for each rank
# By the name in the tables, the values of f that are tried.
CHIMERA: Mapping[str, tuple[int, ...]] = {"Chimera, two pipes": (1,), "Chimera, 2, 4 or 8 pipes": (1, 2, 4)}
CHIMERA_SCHEDULES = ("chimera", "chimera_doubling", "chimera_halving")
SYNCHRONOUS: Mapping[str, tuple[str, ...]] = {  # the other synchronous schemes, with their schedules
    "DAPPLE": ("dapple",),
    "GPipe": ("gpipe",),
    "GEMS": ("gems",),
}
ASYNCHRONOUS: tuple[Scheme, ...] = ("PipeDream-2BW", "PipeDream")
# How many times faster than these schemes Chimera is, in the paper.
PUBLISHED = {"PipeDream-2BW": 1.16, "DAPPLE": 1.38, "GPipe": 1.42, "PipeDream": 2.01, "GEMS": 2.34}
SMALLER = 512  # ranks of the table of choices
# D and W on SMALLER ranks, in the paper: the choice of its performance model, and the fastest configuration that it measured.
MODEL_CHOICE, MEASURED_BEST = (32, 16), (8, 64)


@dataclass(frozen=True, slots=True)
class Speed:
    """The speed of a configuration at one link.

    Attributes:
        ranks, width, micro_batch, recompute: as in `Configuration`. ranks is D, of one replica.
        what: the schedule with its parameters besides D and N; empty for a closed form.
        shares: of the iteration's time, for computing, bubble and communication; empty for a closed form.
    """

    samples_per_s: float
    ranks: int
    width: int
    micro_batch: int
    recompute: bool
    what: str = ""
    shares: tuple[float, ...] = ()

    def text(self) -> str:
        """Return the configuration in words."""
        what = f"{self.what}, " if self.what else ""
        recomputation = ", recomputation" if self.recompute else ""
        return f"{what}D={self.ranks}, W={self.width}, micro-batches of {self.micro_batch}{recomputation}"


def problem(schedules: Sequence[str], ranks: int, link: Link, pairs: Sequence[int] = (1,)) -> Problem:
    """Return the problem of a plan for GPT-2, as `chimerac plan --zero never` has it, with one sample for each rank.

    Args:
        ranks: of all replicas together.
        pairs: the values of f that are tried; Chimera has 2f pipes.
    """
    profile = find_profile(PROFILE, MODEL)
    state = state_of(optimizer=None, zero=False, precision=profile.precision, profile=profile)
    sources = {name: find(name) for name in schedules}
    return Problem(sources, MODEL, profile, ranks, batch=ranks, limit=MEMORY, state=state, network=link, own={"f": pairs})


def synchronous(schedules: Sequence[str], link: Link, pairs: Sequence[int] = (1,), ranks: int = RANKS) -> Speed:
    """Return the fastest configuration of some schedules, by the simulation of their programs. Arguments: as for `problem`."""
    return speed(search(problem(schedules, ranks, link, pairs), processors()).best, ranks)


def speed(outcome: Outcome, batch: int) -> Speed:
    """Return the speed of a configuration that fits.

    Args:
        batch: samples of an iteration.
    """
    c, total = outcome.configuration, outcome.makespan
    assert total is not None, "the configuration does not fit"
    own = "".join(f" {name}={value}" for name, value in c.own)
    shares = tuple(x / total for x in (outcome.busy, outcome.bubble, outcome.exposed))
    return Speed(samples_per_second(batch, total), c.ranks, c.width, c.micro_batch, c.recompute, f"{c.schedule}{own}", shares)


def asynchronous(scheme: Scheme, link: Link, hidden: bool, ranks: int = RANKS) -> Speed:
    """Return the fastest configuration of a closed form that fits.

    Args:
        hidden: as for `seconds_per_micro_batch`.
    """
    return max(_asynchronous(scheme, link, hidden, ranks), key=lambda found: found.samples_per_s)


def _asynchronous(scheme: Scheme, link: Link, hidden: bool, ranks: int) -> Iterator[Speed]:
    """Yield the speeds of all configurations that fit.

    In an iteration a replica of D ranks has D samples. 2BW needs at least D micro-batches, so each of them has one sample.
    """
    for depth, micro_batch, recompute in product(DEPTHS, MICRO_BATCH_SIZES, (False, True)):
        width, rest = divmod(ranks, depth)
        count = depth // micro_batch  # micro-batches of a replica in an iteration, for 2BW only: PipeDream ignores it
        if rest or (scheme == "PipeDream-2BW" and count < depth):
            continue
        of_stages = _stages(depth, micro_batch, recompute)
        if of_stages is None:
            continue
        times_and_sums, peaks = of_stages
        stages = [
            Stage(tasks_s, link.all_reduce_s(width, sums.gradient_bytes), sums.weight_bytes) for tasks_s, sums in times_and_sums
        ]
        if peak_bytes(scheme, peaks, stages) <= MEMORY:
            seconds = seconds_per_micro_batch(scheme, stages, count, hidden)
            yield Speed(width * micro_batch / seconds, depth, width, micro_batch, recompute)


@cache
def _stages(depth: int, micro_batch: int, recompute: bool) -> tuple[list[tuple[float, StageSum]], list[int]] | None:
    """Return `tasks_s` of each stage with the sums over its layers, and the peak bytes of each rank under 1F1B.

    Return None if the model or the profile does not allow the configuration.
    """
    given = problem(["1f1b"], depth, MIDDLE)  # the result depends on no link
    try:
        program = Evaluator(given).replica(
            Configuration(depth, recompute, micro_batch, "1f1b", own=(), width=1, micro_batches=depth)
        )
    except ChimeraError:
        return None
    model = find_model(MODEL, samples=lambda b: b, micro_batch=micro_batch, default_seq_len=given.profile.seq_len)
    assert program.partition is not None, "the plan has no partition"
    layers = program.partition.layers
    seconds = stage_seconds(given.profile, micro_batch, layers)
    ops = (Op.FWD, Op.BWD, *([Op.RECOMPUTE] if recompute else []))
    times_and_sums = [(sum(seconds[op][s] for op in ops), sums) for s, sums in enumerate(model.stage_sums(layers))]
    return times_and_sums, [x.peak for x in memory(program, model, given.state)]


def speeds(link: Link) -> dict[str, tuple[Speed, ...]]:
    """Return the fastest configuration of every scheme at one link; of a closed form, with and without hidden all-reduces."""
    found = {name: (synchronous(CHIMERA_SCHEDULES, link, pairs),) for name, pairs in CHIMERA.items()}
    found |= {name: (synchronous(schedules, link),) for name, schedules in SYNCHRONOUS.items()}
    return found | {name: tuple(asynchronous(name, link, hidden) for hidden in (True, False)) for name in ASYNCHRONOUS}


def ratios(by_link: Mapping[Link, Mapping[str, Sequence[Speed]]], chimera: str, name: str) -> list[float]:
    """Return how many times faster Chimera is than a scheme, at every link and with both of a closed form's configurations.

    Args:
        chimera: a name of CHIMERA.
        name: that of the scheme.
    """
    return [found[chimera][0].samples_per_s / other.samples_per_s for found in by_link.values() for other in found[name]]


def ratio_table(by_link: Mapping[Link, Mapping[str, Sequence[Speed]]]) -> str:
    """Return the table of the ratios: the published one, and the interval of those at all links."""
    rows = []
    for name, published in PUBLISHED.items():
        source = "compiled program" if name in SYNCHRONOUS else "closed form, not executable"
        cells = [name, source, f"{published:.2f}x"]
        for chimera in CHIMERA:
            found = ratios(by_link, chimera, name)
            least, most = round(min(found), 2), round(max(found), 2)  # as many digits as published ratios have
            cells.append(f"{least:.2f}x to {most:.2f}x: {verdict(published, least, most)}")
        rows.append(cells)
    return table(("Chimera is faster than", "from", "published", *CHIMERA), rows)


def verdict(published: float, least: float, most: float) -> str:
    """Return whether a published ratio lies in a predicted interval, and if not, on which side."""
    if least <= published <= most:
        return "in it"
    return "above it" if published > most else "below it"


def share_table(by_link: Mapping[Link, Mapping[str, Sequence[Speed]]]) -> str:
    """Return the table of all schemes at the link MIDDLE: throughput, where the time goes, and the configuration.

    The all-reduces of the closed forms are hidden.
    """
    head = ("scheme", "samples/s", "computing", "bubble", "waiting for communication", "configuration")
    rows = []
    for name, (found, *_) in by_link[MIDDLE].items():
        shares = [f"{share:.0%}" for share in found.shares] or ["", "", ""]
        rows.append((name, f"{found.samples_per_s:.0f}", *shares, found.text()))
    return table(head, rows)


@dataclass(frozen=True, slots=True)
class Choice:
    """Configurations of Chimera on 512 ranks at one link. Throughputs are in samples per second.

    Attributes:
        best: the planner's choice.
        of_model, of_measured: the throughputs of MODEL_CHOICE and of MEASURED_BEST, simulated.
        equations: the throughputs of these two by the paper's equation.
    """

    link: Link
    best: Speed
    of_model: float
    of_measured: float
    equations: tuple[float, float]


def choice(link: Link) -> Choice:
    """Return what the planner takes for Chimera on 512 ranks, beside the two configurations that the paper names."""
    whole = problem(["chimera"], SMALLER, link)
    best = speed(search(whole, processors()).best, SMALLER)
    named = [search(replace(whole, own={"f": [1], "D": [depth]}), 1).best for depth, _ in (MODEL_CHOICE, MEASURED_BEST)]
    model, measured = (speed(x, SMALLER).samples_per_s for x in named)
    equations = tuple(by_equation(whole, x.configuration, link) for x in named)
    return Choice(link, best, model, measured, (equations[0], equations[1]))


def by_equation(given: Problem, c: Configuration, link: Link) -> float:
    """Return the throughput of a configuration of a problem by the paper's equation, in samples per second."""
    program = Evaluator(given).replica(c)
    model = find_model(MODEL, program.header.samples, c.micro_batch, default_seq_len=given.profile.seq_len)
    network = Network(link, all_reduce_s=lambda ranks, size: link.all_reduce_s(ranks * c.width, size))
    equation = closed_equation(program, profiled_durations(program, model, given.profile, network))
    return given.batch * equation.scale * 1e3 / equation.total  # `scale` units of time are a millisecond


def choice_table(choices: Sequence[Choice]) -> str:
    """Return the table of the choices on 512 ranks."""
    named = [f"W={width}, D={depth}" for depth, width in (MODEL_CHOICE, MEASURED_BEST)]
    head = ("link", "planner takes", "samples/s", *named, "both by the paper's equation")
    rows = [
        (
            f"{1e6 * c.link.latency_s:g} us, {c.link.bytes_per_s / 1e9:g} GB/s",
            c.best.text().removeprefix("chimera f=1, "),
            *(f"{throughput:.0f}" for throughput in (c.best.samples_per_s, c.of_model, c.of_measured)),
            " and ".join(f"{throughput:.0f}" for throughput in c.equations),
        )
        for c in choices
    ]
    return table(head, rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="record the tables in docs/plan.md")
    options = parser.parse_args(arguments)
    start = time.monotonic()
    by_link = {}
    for link in LINKS:
        print(f"{link}", file=sys.stderr, flush=True)
        by_link[link] = speeds(link)
    choices = [choice(link) for link in LINKS]
    text = ratio_table(by_link) + share_table(by_link) + choice_table(choices)
    print(text)
    if options.write:
        record("paper_evaluation", stamp(time.monotonic() - start, "none", ("numpy",)) + text, PAGE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
