"""Schedules side by side for one setting: times, bubbles, memory and communication of each, or why it cannot run.

All of them do the same work: the same micro-batches, through the same model, on the same number of ranks. But schedules cut a
model into different numbers of stages, and some cut a micro-batch. So costs and figures are in two units: the share of one
rank, which is the model divided by the ranks, and whole micro-batches. A stage of an interleaved schedule with two stages on
each rank is half a share: it takes half the time and half the bytes of a stage of 1F1B.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise

import numpy as np

from chimerac.chimera_ir.diagnostics import ChimeraError, Diagnostic, Source, did_you_mean, refuse
from chimerac.chimera_ir.instructions import Collective, Op, Value, stage_group
from chimerac.chimera_ir.model import ModelDescription
from chimerac.chimera_ir.partition import partition_for
from chimerac.chimera_ir.program import Program
from chimerac.compiler.analyze.causes import idle_times
from chimerac.compiler.analyze.durations import Durations, message_sizes, reduced_sizes
from chimerac.compiler.analyze.memory import NO_STATE, OptimizerState, check_memory, memory
from chimerac.compiler.analyze.simulate import Simulation, simulate
from chimerac.compiler.given import StageChoice
from chimerac.compiler.order.ordered import Ordered
from chimerac.compiler.pipeline import Compiled, compile_source, parse_source
from chimerac.compiler.resolve.sizes import micro_batch_size
from chimerac.compiler.syntax import nodes as n
from chimerac.compiler.verify import peaks

DEFAULT_RANKS = 4  # of a setting that gives no D
DEFAULT_ROUNDS = 2  # micro-batches for each rank, of a setting that gives no N
DEFAULT_COSTS = {"F": Fraction(1), "I": Fraction(1), "W": Fraction(1), "hop": Fraction(0)}
# Findings that do not depend on D and N: about syntax, names, types and statements, and E204 for a parameter without a value.
# E205 and E206 are about values, which depend on D and N. The entries are beginnings of codes: E1 stands for E101 to E199.
ABOUT_THE_TEXT = ("E1", "E201", "E202", "E203", "E204", "E207", "E208", "E209")

LeastAndMost = tuple[Fraction, Fraction]  # the least and the most over the ranks


@dataclass(frozen=True, slots=True)
class Setting:
    """What all compared schedules are given.

    Attributes:
        parameters: by name; a schedule gets those that it has. D is the number of ranks of a pipeline, N that of whole
            micro-batches.
        costs: F, B, I, W and R of one rank's share for one whole micro-batch, and hop of one message. Costs that are left out
            follow from the others: B is I + W; with B and one half the other half is the rest, and with B alone each half is
            half of it; R is F. All others are those of `DEFAULT_COSTS`.
        width: the number of replicas.
        recompute: replaces the schedules' own choice; None: their own.
        unit: of the times, '' for that of the costs.
    """

    parameters: Mapping[str, int] = field(default_factory=dict)
    costs: Mapping[str, Fraction] = field(default_factory=dict)
    width: int = 1
    recompute: StageChoice | None = None
    unit: str = ""

    @property
    def ranks(self) -> int:
        """Return the number of ranks of a pipeline."""
        return self.parameters.get("D", DEFAULT_RANKS)

    @property
    def micro_batches(self) -> int:
        """Return the number of whole micro-batches."""
        return self.parameters.get("N", DEFAULT_ROUNDS * self.ranks)

    def all_costs(self) -> dict[str, Fraction]:
        """Return every cost, those that were not given too."""
        given = dict(self.costs)
        if "B" in given:
            backward = given["B"]
            input_half = given.get("I", backward - given["W"] if "W" in given else backward / 2)
            given = {"I": input_half, "W": backward - input_half, **given}
        found = {**DEFAULT_COSTS, **given}
        return {"B": found["I"] + found["W"], "R": found["F"], **found}


@dataclass(frozen=True, slots=True)
class ForModel:
    """A model, for the figures in bytes.

    Attributes:
        describe: returns the program with its partition, and the description for the size of its micro-batches.
        state: of the optimizer.
        limit: the most bytes that a rank may need; None: any number.
        durations: of a program on given hardware, in the place of costs; None: the costs of the setting.
    """

    describe: Callable[[Program], tuple[Program, ModelDescription]]
    state: OptimizerState = NO_STATE
    limit: int | None = None
    durations: Callable[[Program, ModelDescription], Durations] | None = None


@dataclass(frozen=True, slots=True)
class Bytes:
    """Three numbers of bytes, each of the rank with most of them.

    Attributes:
        memory: what the rank holds at its peak.
        messages: what it sends to other ranks in an iteration.
        all_reduced: what it sends in its all-reduces.
    """

    memory: int
    messages: int
    all_reduced: int


@dataclass(frozen=True, slots=True)
class Figures:
    """One iteration of a schedule.

    Attributes:
        makespan: in the unit of the setting, as all times.
        exposed: the exposed communication of the rank with most of it.
        bubble_ratio: the idle share of all ranks' time.
        wall_bubble: idle time of a rank.
        activations: alive at the peak of a rank, where a share of the model for a whole micro-batch counts as 1.
        weights: copies of stages on a rank, in shares.
        messages: values that the rank with most of them sends, in whole micro-batches.
        all_reduced: what the rank with most of it sends in the all-reduces of stages, in shares. In a ring of r ranks each rank
            sends 2 (r - 1) / r times the size of the gradients. The all-reduces of tied sets are not counted.
        recomputed: stages that recompute.
        description: of the model, for the size of the schedule's micro-batches.
        bytes: what the model needs; both are None without a model.
    """

    makespan: Fraction
    exposed: Fraction
    bubble_ratio: float
    wall_bubble: LeastAndMost
    activations: LeastAndMost
    weights: LeastAndMost
    messages: Fraction
    all_reduced: Fraction
    recomputed: tuple[int, ...]
    simulation: Simulation = field(repr=False, compare=False)
    ordered: Ordered = field(repr=False, compare=False)
    description: ModelDescription | None = field(default=None, repr=False, compare=False)
    bytes: Bytes | None = None


@dataclass(frozen=True, slots=True)
class Compared:
    """A schedule and its figures, or the reason why it cannot run at this setting."""

    schedule: str
    figures: Figures | None
    reason: str = ""


def compare(schedules: Mapping[str, Source], setting: Setting, model: ForModel | None = None) -> list[Compared]:
    """Return each schedule, in the given order, with its figures or the reason why it cannot run.

    Args:
        schedules: texts by name.

    Raises ChimeraError for a text that is wrong at every size, E002 for costs that contradict each other, E203 for a parameter
    that none of the schedules has, and E204 for one that has no default and is not given.
    """
    _check_costs(setting.all_costs())
    trees = {name: parse_source(source) for name, source in schedules.items()}
    _check_names(setting.parameters, {name for tree in trees.values() for name in _parameters(tree)})
    return [_compared(name, schedules[name], tree, setting, model) for name, tree in trees.items()]


def fastest_first(rows: Sequence[Compared]) -> list[Compared]:
    """Return the schedules in the order of their makespans, then those that cannot run."""
    return sorted(rows, key=lambda row: (row.figures is None, row.figures.makespan if row.figures else 0))


def _parameters(schedule: n.Schedule) -> list[str]:
    """Return the names of a schedule's parameters."""
    return [s.name.name for s in schedule.statements if isinstance(s, n.Param)]


def _check_names(given: Collection[str], known: set[str]) -> None:
    if unknown := [name for name in given if name not in known]:
        message = f"none of these schedules has a parameter '{unknown[0]}'"
        raise refuse("E203", message, help=did_you_mean(unknown[0], known))


def _check_costs(costs: Mapping[str, Fraction]) -> None:
    halves = costs["I"] + costs["W"]
    if costs["B"] != halves or min(costs["I"], costs["W"]) < 0:
        shown = ", ".join(f"{name}={float(costs[name]):g}" for name in "BIW")
        message = f"a backward costs as much as its halves, each 0 or more, and the costs are {shown}"
        raise refuse("E002", message, help="give B = I + W, with I and W 0 or more; one of the three may be left out")


def _compared(name: str, source: Source, tree: n.Schedule, setting: Setting, model: ForModel | None) -> Compared:
    part, whole = micro_batch_size(tree)
    given = {**setting.parameters, "D": setting.ranks, "N": setting.micro_batches * whole // part}
    sizes = {parameter: value for parameter, value in given.items() if parameter in _parameters(tree)}
    try:
        compiled = compile_source(source, sizes, setting.width, recompute=setting.recompute)
        if reason := _other_work(compiled.program, setting):
            return Compared(name, None, reason)
        return Compared(name, _figures(compiled, setting, model))
    except ChimeraError as error:
        if any(d.code.startswith(ABOUT_THE_TEXT) for d in error.diagnostics):
            raise
        return Compared(name, None, _reason(error.diagnostics[0], part == whole))


def _other_work(program: Program, setting: Setting) -> str:
    """Return in words how a program's ranks or micro-batches are not those of the setting; '' if they are."""
    h = program.header
    micro_batches = Fraction(h.micro_batches) * Fraction(*h.micro_batch_size)
    for what, actual, wanted in (("ranks", h.ranks, setting.ranks), ("micro-batches", micro_batches, setting.micro_batches)):
        if actual != wanted:
            return f"it has {actual} {what}, and the setting has {wanted}"
    return ""


def _reason(d: Diagnostic, is_n_of_setting: bool) -> str:
    """Return a finding in one line. The help is added only for E210, which advises another value of a parameter.

    Args:
        is_n_of_setting: whether the schedule's N is that of the setting. If it is not, the advice would be wrong.
    """
    has_help = d.code == "E210" and d.help and is_n_of_setting
    return f"{d.code}: {d.message}" + (f"; {d.help}" if has_help else "")


def _figures(compiled: Compiled, setting: Setting, model: ForModel | None) -> Figures:
    program, h = compiled.program, compiled.program.header
    share = Fraction(h.ranks, h.stages)  # the size of a stage, where the share of one rank is 1
    size = Fraction(*h.micro_batch_size)
    costs = {name: cost if name == "hop" else cost * share * size for name, cost in setting.all_costs().items()}
    durations, description, peak = None, None, peaks(program)
    if model is not None:
        program, description = model.describe(program)
        durations = model.durations(program, description) if model.durations else None
    times = simulate(program, costs, durations)
    return Figures(
        makespan=Fraction(times.makespan, times.scale),
        exposed=Fraction(max(idle.exposed for idle in idle_times(times)), times.scale),
        bubble_ratio=times.bubble_ratio,
        wall_bubble=_least_and_most(times.wall_bubbles, Fraction(1, times.scale)),
        activations=_least_and_most(peak.activations, share * size),
        weights=_least_and_most(peak.weight_copies, share),
        messages=max(_sent(program, lambda value, stage, count: count)) * size,
        all_reduced=max(_all_reduced(program, lambda x: share if x.group == stage_group(x.stage) else 0)),
        recomputed=program.recomputed_stages,
        simulation=times,
        ordered=compiled.ordered,
        description=description,
        bytes=None if model is None or description is None else _bytes(program, description, model),
    )


def _least_and_most(values: Sequence[int], unit: Fraction) -> LeastAndMost:
    """Return the least and the most of these values, each times `unit`."""
    return min(values) * unit, max(values) * unit


def _bytes(program: Program, description: ModelDescription, model: ForModel) -> Bytes:
    if model.limit is not None:
        check_memory(program, description, model.limit, state=model.state)
    stages = description.stage_sums(partition_for(program.partition, description, program.header.stages).layers)
    return Bytes(
        max(rank.peak for rank in memory(program, description, model.state)),
        max(_sent(program, message_sizes(stages))),
        round(max(_all_reduced(program, reduced_sizes(program, description, stages)))),
    )


def _sent(program: Program, amount: Callable[[Value, int, int], int]) -> Iterator[int]:
    """Yield what each rank sends.

    Args:
        amount: of a message, by its value, its stage and the number of its micro-batches.
    """
    t = program.table
    for begin, end in pairwise(program.offsets.tolist()):
        rows = begin + np.flatnonzero(t.op[begin:end] == Op.SEND)
        columns = zip(t.value[rows].tolist(), t.stage[rows].tolist(), t.operand[rows].tolist(), strict=True)
        yield sum(amount(Value(value), stage, len(program.micro_batch_lists[k])) for value, stage, k in columns)


def _all_reduced(program: Program, amount: Callable[[Collective], Fraction | int]) -> Iterator[Fraction]:
    """Yield what each rank sends in all-reduces, each over a ring.

    Args:
        amount: of the gradients of an all-reduce.
    """
    t = program.table
    for begin, end in pairwise(program.offsets.tolist()):
        rows = begin + np.flatnonzero(t.op[begin:end] == Op.ALLREDUCE)
        joined = [program.collectives[k] for k in t.operand[rows].tolist()]
        yield sum((Fraction(2 * (len(x.ranks) - 1), len(x.ranks)) * amount(x) for x in joined), Fraction(0))
