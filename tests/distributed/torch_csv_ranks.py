"""The ranks of test_torch_csv.py: torch's pipeline runtime and `Pipeline` on the same orders, compared in every gradient.

Usage: torchrun --nproc-per-node RANKS tests/distributed/torch_csv_ranks.py FOLDER OUT

FOLDER has the exported files: for each order a program such as zb_v.json, and beside it zb_v.csv and zb_v.comms.csv. The CSV
files of torch's own schedules are written there too. OUT gets, as JSON, the largest relative differences: two for each exported
order, one of each CSV format, and one for each schedule of torch.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, ScheduleDualPipeV, ScheduleInterleaved1F1B, ScheduleZBVZeroBubble
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, _PipelineScheduleRuntime

from chimerac.chimera_ir.diagnostics import Source
from chimerac.chimera_ir.files import read
from chimerac.chimera_ir.forms import read_program
from chimerac.chimera_ir.program import Program
from chimerac.compiler.exchange.torch_csv import program_from_csv
from chimerac.interpreter import Pipeline

SIZE, SAMPLES = 3, 2  # of a vector, and of a micro-batch

Gradients = dict[str, Tensor]


def layer(stage: int) -> nn.Module:
    torch.manual_seed(stage)
    return nn.Sequential(nn.Linear(SIZE, SIZE), nn.Tanh())


def loss(output: Tensor, target: Tensor) -> Tensor:
    return ((output - target) ** 2).mean()


def batch(micro_batches: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(99)
    return torch.randn(micro_batches * SAMPLES, SIZE), torch.randn(micro_batches * SAMPLES, SIZE)


def gradients_of_torch(
    make: Callable[[list[PipelineStage], int], PipelineScheduleMulti],
    placement: Sequence[int],
    micro_batches: int,
    write: Path | None = None,
) -> Gradients:
    """Run one iteration in torch's runtime; return the gradients of this rank's stages.

    Args:
        make: makes torch's schedule of these stages and this number of micro-batches.
        placement: the rank of each stage.
        write: where rank 0 writes the order as CSV, None for nowhere.
    """
    rank, count = dist.get_rank(), len(placement)
    stages = [PipelineStage(layer(s), s, count, torch.device("cpu")) for s in range(count) if placement[s] == rank]
    schedule = make(stages, micro_batches)
    inputs, targets = batch(micro_batches)
    numbers = {stage.stage_index for stage in stages}
    schedule.step(*([inputs] if 0 in numbers else []), **({"target": targets} if count - 1 in numbers else {}))
    if write is not None and rank == 0:
        schedule._dump_csv(str(write), format="compute_only")  # type: ignore[call-arg]
    dist.barrier()  # then every rank can read the file
    return {f"{s.stage_index}.{name}": p.grad for s in stages for name, p in s.submod.named_parameters() if p.grad is not None}


def gradients_of_pipeline(program: Program) -> Gradients:
    """Run one iteration of a program in `Pipeline`; return the gradients of this rank's stages."""
    h = program.header
    inputs, targets = batch(h.micro_batches)
    layers = [(str(s), layer(s)) for s in range(h.stages)]
    with Pipeline(layers, program, loss=loss, inputs=inputs[:SAMPLES], split=[1] * h.stages) as pipe:
        pipe.step(inputs if pipe.reads_inputs else None, targets if pipe.reads_targets else None)
        return {name: p.grad.clone() for name, p in pipe.named_parameters() if p.grad is not None}


def from_file(path: Path, form: str) -> Callable[[list[PipelineStage], int], PipelineScheduleMulti]:
    """Return a function that makes torch's schedule from an order in a CSV file.

    Args:
        form: torch's name for the format.
    """

    def make(stages: list[PipelineStage], micro_batches: int) -> PipelineScheduleMulti:
        schedule = _PipelineScheduleRuntime(stages, micro_batches, loss_fn=loss)
        schedule._load_csv(str(path), format=form)  # type: ignore[arg-type]
        return schedule

    return make


def difference(theirs: Mapping[str, Tensor], ours: Mapping[str, Tensor]) -> float:
    """Return the largest relative difference over all gradients.

    A difference of two elements is divided by the largest absolute value in the same gradient of `theirs`.
    """
    assert theirs.keys() == ours.keys() and theirs, (sorted(theirs), sorted(ours))
    assert all(float(x.abs().max()) > 0 for x in theirs.values())
    return max(float((theirs[name] - ours[name]).abs().max() / theirs[name].abs().max()) for name in theirs)


def main(folder: Path, result: Path) -> None:
    dist.init_process_group("gloo")
    ranks = dist.get_world_size()
    found: dict[str, float] = {}
    for path in sorted(folder.glob("*.json")):  # orders that the compiler exported
        program = read_program(Source(path.name, read(path)))
        placement, micro_batches = program.header.pipes[0].placement, program.header.micro_batches
        ours = gradients_of_pipeline(program)
        for form, suffix in (("compute_only", ".csv"), ("compute_comms", ".comms.csv")):
            theirs = gradients_of_torch(from_file(path.with_suffix(suffix), form), placement, micro_batches)
            found[f"{path.stem} {form}"] = difference(theirs, ours)
    # Orders of torch, which the compiler imports.
    looped = [s % ranks for s in range(2 * ranks)]
    folded = [*range(ranks), *reversed(range(ranks))]
    for cls, placement in ((ScheduleInterleaved1F1B, looped), (ScheduleZBVZeroBubble, folded), (ScheduleDualPipeV, folded)):
        csv = folder / f"torch-{cls.__name__}.csv"
        micro_batches = 2 * ranks
        theirs = gradients_of_torch(lambda stages, n, c=cls: c(stages, n, loss_fn=loss), placement, micro_batches, csv)  # type: ignore[misc]
        program = program_from_csv(Source(csv.name, read(csv)))
        assert list(program.header.pipes[0].placement) == placement and program.header.micro_batches == micro_batches
        found[cls.__name__] = difference(theirs, gradients_of_pipeline(program))
    of_ranks: list[dict[str, float]] = [{}] * ranks
    dist.all_gather_object(of_ranks, found)
    if dist.get_rank() == 0:
        result.write_text(json.dumps({name: max(of_rank[name] for of_rank in of_ranks) for name in found}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    main(Path(sys.argv[1]), Path(sys.argv[2]))
