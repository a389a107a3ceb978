"""The best partition of a model's layers under a memory limit of each rank. docs/partition.md says what is best and why.

Without a limit, or where the balanced partition (chimera_ir/partition.py) is within the limit, the balanced one is the best.
Otherwise search.py searches for it, with a limited effort.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from itertools import pairwise

from chimerac.chimera_ir.diagnostics import ChimeraError, refuse
from chimerac.chimera_ir.model import ModelDescription
from chimerac.chimera_ir.partition import Partition, balanced
from chimerac.chimera_ir.program import Program
from chimerac.compiler.analyze.memory import NO_STATE, OptimizerState, RankMemory, memory, stages_of
from chimerac.compiler.plan.needs import Needs
from chimerac.compiler.plan.search import Cuts, Effort, Search, least_need


@dataclass(frozen=True, slots=True)
class BestPartition:
    """The best partition that was found.

    Attributes:
        slowest: the cost of its slowest stage.
        bound: a lower bound of this cost for all partitions within the limit.
    """

    partition: Partition
    slowest: int
    bound: int


def best_partition(
    program: Program,
    model: ModelDescription,
    limit_bytes: int | None = None,
    costs: Sequence[int] | None = None,
    state: OptimizerState = NO_STATE,
    recomputing: Callable[[], Program] | None = None,
) -> BestPartition:
    """Return the partition whose slowest stage is as fast as possible, of those in which no rank needs more than limit_bytes.

    The effort of the search is limited. Where `bound` is less than `slowest`, a better partition was not ruled out.

    Args:
        limit_bytes: None for no limit.
        costs: of each layer, in any unit, for instance measured times; by default those of the description.
        state: the optimizer's.
        recomputing: compiles the same schedule with recomputation everywhere: if every rank then fits, the help of E709 says
            so; None: this is not tried.

    Raises ChimeraError: E002 costs that are negative or not one for each layer, E705 more stages than layers, E709 no
    partition was found that fits.
    """
    times = [layer.cost for layer in model.layers] if costs is None else list(costs)
    if len(times) != len(model.layers) or min(times) < 0:
        message = f"{len(times)} costs for the {len(model.layers)} layers of {model.name}: give one for each, 0 or more"
        raise refuse("E002", message)
    first = balanced(model, program.header.stages, times)
    slowest = _slowest(times, first.cuts)
    if limit_bytes is None:
        return BestPartition(first, slowest, slowest)
    needs = Needs(program, model, state)
    if needs.most(first.cuts) <= limit_bytes:
        return BestPartition(first, slowest, slowest)
    most_cost, effort = slowest, Effort.of(program.header.stages, len(times))
    cuts, bound = Search(needs, times, limit_bytes, effort, most_cost).best()
    while cuts is None and most_cost < sum(times):  # ranges that cost more are tried only if cheaper ones give no cuts
        most_cost = min(2 * most_cost, sum(times))
        cuts, bound = Search(needs, times, limit_bytes, effort, most_cost).best()
    if cuts is None:
        # Cuts that need little, whatever they cost. They may fit where the search above gave up. If not, E709 is about them.
        cuts, is_least = least_need(needs, times, limit_bytes, first.cuts)
        bound = slowest
        if needs.most(cuts) > limit_bytes:
            raise _nothing_fits(needs, times, limit_bytes, cuts, is_least, recomputing)
    return BestPartition(Partition.of_cuts(model.name, cuts), _slowest(times, cuts), bound)


def _slowest(costs: Sequence[int], cuts: Sequence[int]) -> int:
    """Return the cost of the slowest stage."""
    return max(sum(costs[a:b]) for a, b in pairwise(cuts))


def _nothing_fits(
    needs: Needs, costs: Sequence[int], limit: int, best: Cuts, is_least: bool, recomputing: Callable[[], Program] | None
) -> ChimeraError:
    """Return the finding E709: the layer or the rank that cannot fit, and how many bytes would be enough.

    Args:
        best, is_least: as `least_need` returns them.
        recomputing: as in `best_partition`.
    """
    model, header = needs.model, needs.program.header
    least, partition = needs.most(best), Partition.of_cuts(model.name, best)
    by_rank = memory(replace(needs.program, partition=partition), model, needs.state)
    rank = max(range(len(by_rank)), key=lambda r: by_rank[r].peak)
    stages = stages_of(header, rank % header.ranks)
    of_one_layer = [s for s in stages if len(partition.layers[s]) == 1]
    held = ", ".join(f"stage {s} has {_layers_text(partition.layers[s])}" for s in stages)
    parts = {f.name: getattr(by_rank[rank], f.name) for f in fields(RankMemory) if f.name != "peak"}
    notes = [
        f"rank {rank}: {held}",
        "the most of each, not all at one time: " + ", ".join(f"{name} {size:,}" for name, size in parts.items() if size),
    ]
    alone = [(needs.alone(s, k), k, s) for s in of_one_layer for k in partition.layers[s]]
    if alone and max(alone)[0] > limit:
        need, layer, stage = max(alone)
        subject = (
            f"layer {layer} ({model.layers[layer].name}) of {model.name} needs {need:,} bytes even alone, as stage {stage}"
        )
        changes = "smaller micro-batches"
    else:
        which = "needs least" if is_least else "was found to need least"
        subject = f"in the partition of {model.name} that {which}, rank {rank} needs {least:,} bytes"
        changes = "more stages or smaller micro-batches"
    enough = f"give a rank {least:,} bytes{', the least that is enough' if is_least else ''}"
    help = f"{enough}; or take {changes}"
    if recomputing is not None:
        with suppress(ChimeraError):
            best_partition(recomputing(), model, limit, costs, needs.state)
            help = f"{enough}; or recompute every stage (--recompute all; tried: every rank then fits)"
    return refuse("E709", f"{subject}, and a rank has {limit:,} bytes", notes=tuple(notes), help=help)


def _layers_text(layers: range) -> str:
    """Return the layers of a stage for messages."""
    return f"layer {layers[0]}" if len(layers) == 1 else f"layers {layers[0]} to {layers[-1]}"
