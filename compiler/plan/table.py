"""The table of a partition: what each stage has and needs, then what each rank needs, as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from chimerac.chimera_ir.counts import count_text
from chimerac.chimera_ir.lifetimes import ACTIVATIONS, Kind, activations, held, sizes
from chimerac.chimera_ir.model import ModelDescription
from chimerac.chimera_ir.partition import partition_for
from chimerac.chimera_ir.program import Program
from chimerac.compiler.analyze.memory import OptimizerState, memory
from chimerac.compiler.analyze.report import memory_lines, table


def partition_table(program: Program, model: ModelDescription, state: OptimizerState, costs: Sequence[int] | None) -> str:
    """Return the tables of the stages and of the ranks under the program's partition.

    Args:
        costs: of each layer, in the place of the description's; None: the description's.
    """
    return "\n".join([*_stages(program, model, state, costs), "", *memory_lines(model, memory(program, model, state))]) + "\n"


def _stages(program: Program, model: ModelDescription, state: OptimizerState, costs: Sequence[int] | None) -> Iterator[str]:
    """Yield the lines about the stages: what is partitioned, the slowest stage, the table, and a note."""
    h = program.header
    partition = partition_for(program.partition, model, h.stages)
    stages = model.stage_sums(partition.layers)
    times = [layer.cost for layer in model.layers] if costs is None else costs
    stage_costs = [sum(times[k] for k in ids) for ids in partition.layers]
    layers_text = f"{count_text(len(model.layers), 'layer')}, {model.parameters:,} parameters"
    yield f"{model.name}: {layers_text}, on {h.schedule} with {count_text(h.stages, 'stage')}"
    slowest, total = max(stage_costs), max(1, sum(stage_costs))
    yield f"slowest stage {stage_costs.index(slowest)}: {slowest * h.stages / total:.3f} times the mean"
    yield ""
    alive, kept = _activations(program, model)
    rows = []
    for s, (ids, stage) in enumerate(zip(partition.layers, stages, strict=True)):
        holders = h.holders([s])
        optimizer = state.bytes(stage.gradient_bytes, len(holders))
        sizes_by_part = (stage.weight_bytes, stage.gradient_bytes, optimizer, kept[s])
        local_ranks = sorted({p.placement[s] for p in h.pipes})
        layers = str(ids[0]) if len(ids) == 1 else f"{ids[0]}-{ids[-1]}"
        share = f"{100 * stage_costs[s] / total:.1f} %"
        recomputes = ["yes" if s in program.recomputed_stages else "no"] if program.recomputed_stages else []
        rows.append(
            [
                str(s),
                layers,
                f"{stage.parameters:,}",
                share,
                *(f"{x:,}" for x in sizes_by_part),
                str(alive[s]),
                *recomputes,
                ",".join(map(str, local_ranks)),
            ]
        )
    head = ["stage", "layers", "parameters", "cost", "weights", "gradients", "optimizer", "activations", "alive"]
    yield from table([*head, *(["recompute"] if program.recomputed_stages else []), "ranks"], rows)
    yield "bytes of one copy of the stage; activations, and alive micro-batches: the most of one rank at one time"


def _activations(program: Program, model: ModelDescription) -> tuple[list[int], list[int]]:
    """Return two lists with a number for each stage: its activations and their bytes, each the most of one rank at one time."""
    lives = activations(program)
    stages = model.stage_sums(partition_for(program.partition, model, program.header.stages).layers)
    alive, kept = [], []
    for s in range(program.header.stages):
        own = lives.take(lives.stage == s)
        counted, weighed = own.is_of(Kind.ALIVE), own.is_of(*ACTIVATIONS)
        alive.append(int(held(program, own.take(counted), np.ones(counted.sum(), np.int64)).max(initial=0)))
        kept.append(int(held(program, own.take(weighed), sizes(own, stages)[weighed]).max(initial=0)))
    return alive, kept
