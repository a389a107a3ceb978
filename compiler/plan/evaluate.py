"""How much memory one configuration needs and how long its iteration takes: lower bounds, and figures of its compiled program.

Only one replica is compiled. Each all-reduce takes as long as one over the ranks of all replicas.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import accumulate

from chimerac.chimera_ir.counts import count_text
from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.chimera_ir.instructions import Op
from chimerac.chimera_ir.model import ModelDescription, StageSum, in_half_precision
from chimerac.chimera_ir.partition import Partition, balanced
from chimerac.chimera_ir.profile import Link
from chimerac.chimera_ir.program import Header, Program
from chimerac.compiler.analyze.causes import idle_times
from chimerac.compiler.analyze.compare import ABOUT_THE_TEXT
from chimerac.compiler.analyze.durations import PER_SECOND, Network, nanoseconds, profiled_durations, stage_seconds
from chimerac.compiler.analyze.memory import OptimizerState, fixed_bytes, memory, stages_of
from chimerac.compiler.analyze.simulate import simulate
from chimerac.compiler.descriptions import find_model
from chimerac.compiler.given import stage_choice
from chimerac.compiler.pipeline import compile_replica, parse_source
from chimerac.compiler.plan.space import Configuration, Problem, parameters, sizes_text
from chimerac.compiler.resolve.budget import Budget
from chimerac.compiler.resolve.resolve import check_text, resolve
from chimerac.compiler.resolve.spec import Spec
from chimerac.compiler.resolve.values import requirements_hold
from chimerac.compiler.size import check_sizes
from chimerac.compiler.syntax.nodes import Schedule
from chimerac.compiler.syntax.parse import parse

TASKS = (Op.FWD, Op.BWD, Op.BWD_INPUT, Op.BWD_WEIGHT, Op.RECOMPUTE)
RECOMPUTE_ALL, RECOMPUTE_NONE = stage_choice("all"), stage_choice("none")


@dataclass(frozen=True, slots=True)
class Bounds:
    """What is known of a configuration without compiling it.

    Attributes:
        time: no iteration is shorter, in nanoseconds.
        memory: some rank needs at least this many bytes.
        tasks: the forwards and backwards of one replica, counted for each micro-batch, and a split backward counted once.
        reason: why the configuration is not possible, '' if it may be.
    """

    time: int = 0
    memory: int = 0
    tasks: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The figures of a configuration. Times are in nanoseconds.

    Attributes:
        zero: whether the optimizer's state is sharded over the holders of a stage.
        memory: of the rank that needs most, in bytes.
        makespan: of an iteration, with the exchange of updated weights if `zero`; None where a rank needs more than it has, or
            where the configuration is not possible.
        reason: why it is not possible, '' if it is.
        busy: how long the ranks compute, as a mean over them.
        bubble: how long they wait for a value that is not sent yet, or for the end of the iteration, as a mean.
        exposed: how long they wait for communication, as a mean: for messages on their way, full windows, all-reduces at the
            end, and with `zero` for the exchange of updated weights.
    """

    configuration: Configuration
    zero: bool = False
    memory: int = 0
    makespan: int | None = None
    busy: int = 0
    bubble: int = 0
    exposed: int = 0
    reason: str = ""

    @property
    def can_run(self) -> bool:
        """Return whether the configuration is possible and fits."""
        return self.makespan is not None

    @property
    def key(self) -> tuple[int, int, Configuration]:
        """Return a key that sorts better outcomes first: by time, then by memory, then by the order of configurations."""
        assert self.makespan is not None, "only outcomes that can run are compared"
        return self.makespan, self.memory, self.configuration


class Evaluator:
    """Evaluates configurations of a problem. Those with equal sizes share a description and a partition, computed once."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._description = cache(self._describe)
        self._partition = cache(self._cut)

    @cached_property
    def trees(self) -> dict[str, Schedule]:
        """Return the syntax trees of all schedules, by name. Raises ChimeraError with the errors of the first wrong text."""
        return {name: parse(source) for name, source in self.problem.schedules.items()}

    def check(self) -> None:
        """Raise ChimeraError for errors that need no configuration to be found.

        They are the syntax errors of a schedule, the errors of `find_model`, and E714 for a profile of another model.
        """
        for source in self.problem.schedules.values():
            parse_source(source)
        self.problem.profile.check_fits(self._describe(self.problem.profile.sizes[0].samples))

    def bounds(self, c: Configuration) -> Bounds:
        """Return what is known of a configuration without compiling it.

        Raises ChimeraError for errors in the text of its schedule. Errors that depend on sizes become the reason.
        """
        try:
            return self._bounds(c)
        except ChimeraError as error:
            if any(d.code.startswith(ABOUT_THE_TEXT) for d in error.diagnostics):
                raise
            return Bounds(reason=f"{error.diagnostics[0].code}: {error.diagnostics[0].message}")

    def _bounds(self, c: Configuration) -> Bounds:
        """Return the bounds. Raises ChimeraError also for errors that depend on sizes."""
        tree = self.trees[c.schedule]
        check_text(tree, parameters(c, tree), Budget())
        if not requirements_hold(tree, parameters(c, tree), Budget()):
            return Bounds(reason=f"E210: {c.schedule} does not allow {sizes_text(parameters(c, tree))}")
        spec = self._spec(c)
        h = spec.header
        numerator, denominator = h.micro_batch_size
        if h.ranks != c.ranks or h.micro_batches * numerator != c.micro_batches * denominator:
            sizes = f"{count_text(h.ranks, 'rank')} and {count_text(h.micro_batches, 'micro-batch')}"
            return Bounds(reason=f"the program has {sizes}, not as many as planned")
        check_sizes(self.problem.schedules[c.schedule].name, h, spec.costs, c.width)  # a run expands the program to the width
        samples = h.samples(c.micro_batch)
        model, (partition, stages) = self._description(samples), self._partition(samples, h.stages)
        need = max(sum(fixed_bytes(h, model, stages, self._least_state(c), r)) for r in range(h.ranks))
        return Bounds(self._least_time(spec, samples, partition), need, 2 * h.stages * h.micro_batches)

    def _least_time(self, spec: Spec, samples: int, partition: Partition) -> int:
        """Return a lower bound of the iteration's time, in nanoseconds.

        For each rank, the time until a first micro-batch can reach it plus its busy time is a bound. The largest is returned. A
        backward counts as full or as split, whichever is shorter.
        """
        h = spec.header
        seconds = stage_seconds(self.problem.profile, samples, partition.layers)
        forward, full, inputs, weights, recomputation = ([nanoseconds(x) for x in seconds[op]] for op in TASKS)
        backward = [min(b, i + w) for b, i, w in zip(full, inputs, weights, strict=True)]
        reached = [0, *accumulate(forward)]  # by stage: when its first micro-batch can reach it
        busy, begins = [0] * h.ranks, [sum(forward)] * h.ranks  # by rank: its busy time, and when it can begin
        for pipe, recompute in zip(h.pipes, spec.recompute, strict=True):
            for s, rank in enumerate(pipe.placement):
                busy[rank] += len(pipe.micro_batches) * (forward[s] + backward[s] + recomputation[s] * recompute[s])
                if pipe.micro_batches:
                    begins[rank] = min(begins[rank], reached[s])
        return max((begin + time for begin, time in zip(begins, busy, strict=True) if time), default=0)

    def outcome(self, c: Configuration) -> Outcome:
        """Return the figures of a configuration, from its compiled program. An error becomes the reason."""
        try:
            return self._outcome(c)
        except ChimeraError as error:
            return Outcome(c, reason=f"{error.diagnostics[0].code}: {error.diagnostics[0].message}")

    def _outcome(self, c: Configuration) -> Outcome:
        """Return the figures. Raises ChimeraError if the configuration is not possible."""
        p, program = self.problem, self.replica(c)
        model = self._description(program.header.samples(c.micro_batch))
        for zero in (False, True) if p.zero is None and p.state.per_gradient else (bool(p.zero),):
            need = max(x.peak for x in memory(program, model, replace(p.state, zero=zero, replicas=c.width)))
            if need <= p.limit:
                break
        else:
            return Outcome(c, zero, need)
        network = Network(p.network or p.profile.point_to_point, all_reduce_s=self._all_reduce_s(c.width))
        times = simulate(program, durations=profiled_durations(program, model, p.profile, network))
        idle, ranks = idle_times(times), len(times.busy)
        exposed = sum(x.exposed for x in idle) // ranks
        gathered = self._gathering(program.header, model, c.width) if zero else 0
        return Outcome(
            c,
            zero,
            need,
            times.makespan + gathered,
            sum(times.busy) // ranks,
            sum(times.wall_bubbles) // ranks - exposed,
            exposed + gathered,
        )

    def replica(self, c: Configuration) -> Program:
        """Return the first replica of a configuration's program, with its partition. Raises ChimeraError without help."""
        spec = self._spec(c)
        program = compile_replica(self.trees[c.schedule], spec, c.width)
        return program.with_partition(self._partition(spec.header.samples(c.micro_batch), spec.header.stages)[0])

    def layers(self, c: Configuration) -> list[int]:
        """Return the number of layers of each stage."""
        h = self._spec(c).header
        return [len(ids) for ids in self._partition(h.samples(c.micro_batch), h.stages)[0].layers]

    def _spec(self, c: Configuration) -> Spec:
        tree = self.trees[c.schedule]
        return resolve(tree, parameters(c, tree), Budget(), RECOMPUTE_ALL if c.recompute else RECOMPUTE_NONE)

    def _describe(self, samples: int) -> ModelDescription:
        p = self.problem
        # `samples` is already the size of the program's micro-batches, so it is passed on unchanged.
        model = find_model(p.model, lambda given: given, samples, default_seq_len=p.profile.seq_len)
        return model if p.profile.precision == "float32" else in_half_precision(model, p.profile.precision)

    def _cut(self, samples: int, stages: int) -> tuple[Partition, tuple[StageSum, ...]]:
        """Return the partition that is balanced by the profile's times, and the sums of its stages."""
        model = self._description(samples)
        partition = balanced(model, stages, self.problem.profile.layer_nanoseconds(model))
        return partition, model.stage_sums(partition.layers)

    def _least_state(self, c: Configuration) -> OptimizerState:
        """Return the state of the optimizer, sharded if it may be."""
        return replace(self.problem.state, zero=self.problem.zero is not False, replicas=c.width)

    def _all_reduce_s(self, width: int) -> Callable[[int, int], float]:
        """Return the function (ranks of one replica, bytes) -> seconds of an all-reduce over these ranks of all replicas."""
        link: Link | None = self.problem.network
        all_reduce_s = self.problem.profile.all_reduce_s if link is None else link.all_reduce_s
        return lambda ranks, size: all_reduce_s(ranks * width, size)

    def _gathering(self, h: Header, model: ModelDescription, width: int) -> int:
        """Return how long the holders of stages take to send each other the weights that each has updated, in nanoseconds.

        For each stage it takes half of an all-reduce. A rank does this for one stage after the other; the slowest rank counts.
        """
        stage_sums, all_reduce_s = self._partition(model.samples, h.stages)[1], self._all_reduce_s(width)
        seconds = [all_reduce_s(len(h.holders([s])), stage_sums[s].weight_bytes) / 2 for s in range(h.stages)]
        return max(nanoseconds(sum(seconds[s] for s in stages_of(h, r))) for r in range(h.ranks))


def samples_per_second(batch: int, makespan: int) -> float:
    """Return the throughput.

    Args:
        batch: samples of an iteration.
        makespan: in nanoseconds.
    """
    return batch * PER_SECOND / makespan
