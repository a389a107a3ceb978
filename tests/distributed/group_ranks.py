"""Runs pipelines in process groups of a world of four ranks, and writes what each rank finds as JSON.

Usage: PYTHONPATH=PROJECT torchrun --nproc-per-node 4 PROJECT/tests/distributed/group_ranks.py, in a folder with the files of
docs/examples/own_loop. PROJECT is the folder of this project. The results of a rank are in RANK.json.
"""

import contextlib
import gc
import io
import json
import os
import re
import runpy
import sys
import threading
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.interpreter import Pipeline, load_checkpoint, save_checkpoint
from chimerac.interpreter.errors import InterpreterError
from tests.helpers_pipeline import Decoder, batch, cross_entropy, gradients, one_process

N = 4  # micro-batches


def pipeline(schedule: str, group: Any, added: int = 0, timeout_s: float = 30, **more: Any) -> Pipeline:
    """Return this rank's pipeline of a decoder in a process group.

    Args:
        group: None means all ranks.
        added: a number that is added to the weights of the decoder's head.
        more: parameters of the schedule, which has N micro-batches unless they give another number.
    """
    model = Decoder(blocks=2)
    with torch.no_grad():
        model.head.weight.add_(added)
    sizes = {"N": N} | more
    inputs, _ = batch(0, micro_batches=1)
    return Pipeline(
        model.layers, schedule, sizes, model=model, loss=cross_entropy, inputs=inputs, process_group=group, timeout_s=timeout_s
    )


def expected(numbers: list[int]) -> dict[str, Tensor]:
    """Return the mean of the gradients of these batches, given by their numbers, computed in one process."""
    model = Decoder(blocks=2)
    for number in numbers:
        one_process(model, number, N)
    return {name: g / len(numbers) for name, g in gradients(model).items()}


def differing(pipe: Pipeline, expected_tensors: dict[str, Tensor]) -> list[str]:
    """Return the names of a rank's parameters whose gradients differ from the expected ones by more than rounding."""
    return [name for name, g in gradients(pipe).items() if not torch.allclose(g, expected_tensors[name], rtol=1e-4, atol=1e-6)]


def side_by_side(rank: int, columns: list[Any], rows: list[Any]) -> dict[str, Any]:
    """Run a pipeline in each column at the same time, and average the gradients of the two columns, as a user would.

    Args:
        columns: the process groups of ranks 0, 2 and of ranks 1, 3, which run batches 0 and 1.
        rows: those of ranks 0, 1 and of ranks 2, 3.

    The two ranks of a row hold the same stages.

    Return the names of parameters with wrong gradients before and after the averaging, this rank's number in the
    pipeline, and the text with which the pipeline names its ranks.
    """
    column, row, found = rank % 2, rank // 2, {}
    for schedule in ("chimera", "1f1b"):
        pipe = pipeline(schedule, columns[column])
        pipe.step(*batch(column, N))
        found[f"{schedule} alone"] = differing(pipe, expected([column]))
        for p in pipe.parameters():
            dist.all_reduce(p.grad, group=rows[row])
            p.grad /= 2
        found[f"{schedule} with the user's sum"] = differing(pipe, expected([0, 1]))
        found[f"{schedule} ranks"] = [pipe.rank, pipe.transport.named([0, 1])]
        pipe.close()
    return found


def example() -> dict[str, list[float]]:
    """Return the losses of docs/examples/own_loop/replicas.py, which only rank 0 prints, and those of one process."""
    with contextlib.redirect_stdout(io.StringIO()) as output:
        runpy.run_path("replicas.py")
    from data import batches  # type: ignore[import-not-found]

    from models import Digits  # type: ignore[import-not-found]

    torch.manual_seed(0)
    model, losses = Digits(), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for images, labels in batches(4, samples=64):
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return {"found": [float(x) for x in re.findall(r"loss (\S+)", output.getvalue())], "expected": losses}


def over_the_same_ranks(column: Any) -> dict[str, Any]:
    """Run in turns two pipelines in one group and one over all ranks. Then run three in the group, one after the other.

    Return the names of parameters with wrong gradients, the number of gloo's threads that the first three add, and the numbers
    of threads and of open files after each of the last three.
    """
    before = threads_of_gloo()
    first, second, wide = pipeline("chimera", column), pipeline("1f1b", column), pipeline("chimera", None)
    added = threads_of_gloo() - before
    wrong = []
    for number in range(2):
        for pipe in (first, wide, second):
            pipe.step(*batch(number, N))
            wrong += differing(pipe, expected([number]))
            for p in pipe.parameters():
                p.grad = None
    first.close()
    second.step(*batch(1, N))
    wrong += differing(second, expected([1]))
    second.close()
    wide.close()
    threads, descriptors = [], []
    for _ in range(3):
        with pipeline("chimera", column) as pipe:
            pipe.step(*batch(1, N))
        del pipe
        gc.collect()
        threads.append(threading.active_count())
        descriptors.append(len(os.listdir("/proc/self/fd")))
    return {"wrong": wrong, "added": added, "threads": threads, "descriptors": descriptors}


def threads_of_gloo() -> int:
    """Return how many threads of this process send and receive for gloo."""
    return sum(path.read_text() == "gloo_tcp_loop\n" for path in Path("/proc/self/task").glob("*/comm"))


def checkpoints(rank: int, columns: list[Any], folder: Path) -> list[str]:
    """Save in one group, and load in the other one under another schedule, into a model with other weights.

    Return the names of this rank's parameters that then differ from the saved ones.
    """
    if rank % 2 == 0:
        pipe = pipeline("chimera", columns[0])
        save_checkpoint(folder / "saved", pipe)
    dist.barrier()
    if rank % 2 == 1:
        pipe = pipeline("gpipe", columns[1], added=7)
        load_checkpoint(folder / "saved", pipe)
    expected_tensors = Decoder(blocks=2).state_dict()
    pipe.close()
    return [name for name, t in pipe.state_dict().items() if not t.equal(expected_tensors[name])]


def errors(rank: int, columns: list[Any], elsewhere: Any) -> dict[str, str]:
    """Return the message of each mistake. After the last one the pipeline of ranks 1 and 3 cannot be used any more.

    Args:
        elsewhere: a process group of rank 0 alone.
    """
    found = {}
    try:
        pipeline("1f1b", columns[rank % 2], N=2 + rank)  # N is 2, 3, 4, 5
    except ChimeraError as error:
        found["programs"] = error.diagnostics[0].message
    if rank:
        try:
            pipeline("1f1b", elsewhere)
        except ValueError as error:
            found["not a member"] = str(error)
    if rank % 2:
        pipe = pipeline("1f1b", columns[1], timeout_s=2)
        if rank == 3:
            return found  # rank 3 runs no step, while rank 1 waits for a gradient from it
        try:
            pipe.step(*batch(0, N))
        except InterpreterError as error:
            found["late"] = str(error)
    return found


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    sys.path.insert(0, str(Path.cwd()))  # as for a script in the current folder
    rank, folder = dist.get_rank(), Path.cwd()
    columns = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    rows = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    alone = dist.new_group([0])
    found = {
        "side by side": side_by_side(rank, columns, rows),
        "example": example(),
        "same ranks": over_the_same_ranks(columns[rank % 2]),
        "checkpoints": checkpoints(rank, columns, folder),
        "errors": errors(rank, columns, alone),
    }
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
