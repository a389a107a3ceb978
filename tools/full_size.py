"""The table of the full-size models in docs/partition.md: what stages and ranks need at several depths, from descriptions."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from chimerac.chimera_ir.model import ModelDescription
from chimerac.chimera_ir.optimizers import OPTIMIZERS
from chimerac.chimera_ir.partition import Partition
from chimerac.compiler import compile_schedule
from chimerac.compiler.analyze.memory import OptimizerState, memory
from chimerac.compiler.descriptions import find_model
from chimerac.compiler.plan.partition import best_partition

DEPTHS = (8, 16, 32, 64)  # D
# The samples of a micro-batch, and the tokens of a sample. The tokens are those of the evaluation of the Chimera paper.
SIZES = {"bert48": (8, 128), "gpt2-64": (1, 632)}
GIB = 2**30


def description_of(name: str) -> ModelDescription:
    """Return the description of a full-size model."""
    samples, length = SIZES[name]
    return find_model(name, samples=lambda b: b, micro_batch=samples, seq_len=length)


def full_size(_: str) -> str:
    """Return a table with a row for each model and depth, under Chimera with N = D and AdamW.

    A model with fewer layers than a depth has no row for it.
    """
    head = "| model | D | layers of a stage | parameters of a stage | weights of a rank, GiB | memory of a rank, GiB |"
    rows = ["", head, "|---|---|---|---|---|---|"]
    for name in SIZES:
        model = description_of(name)
        for depth in (d for d in DEPTHS if d <= len(model.layers)):
            program = compile_schedule("chimera", {"D": depth, "N": depth}).program
            partition: Partition = best_partition(program, model).partition
            stages = model.stage_sums(partition.layers)
            ranks = memory(replace(program, partition=partition), model, OptimizerState(Fraction(OPTIMIZERS["adamw"])))
            cells = [
                _span([len(s.layers) for s in stages]),
                _span([s.parameters for s in stages]),
                _span([r.weights / GIB for r in ranks]),
                _span([r.peak / GIB for r in ranks]),
            ]
            rows.append(f"| {name} | {depth} | {' | '.join(cells)} |")
    return "\n".join([*rows, "", ""])


def _span(values: list[int] | list[float]) -> str:
    """Return the range of some numbers as text."""
    low, high = (f"{x:,}" if isinstance(x, int) else f"{x:.2f}" for x in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"
