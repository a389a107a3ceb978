"""Measuring a profile on all ranks together."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal

import torch

from chimerac.chimera_ir.files import write
from chimerac.chimera_ir.host import processors
from chimerac.chimera_ir.optimizers import OPTIMIZERS
from chimerac.chimera_ir.profile import TIMES, LayerTimes, Profile, SizeTimes, layer_bytes, profile_to_json
from chimerac.interpreter.adapters.own import is_own, own_model
from chimerac.interpreter.experiments.host import this_host, versions
from chimerac.interpreter.profiling.layers import LayerBench, MeasuredLayers
from chimerac.interpreter.profiling.links import all_reduces, point_to_point
from chimerac.interpreter.runtime.describe import describe
from chimerac.interpreter.runtime.model import Model
from chimerac.interpreter.transport import Transport, gloo, nccl
from chimerac.interpreter.transport.processes import Processes
from chimerac.models.families import preset
from chimerac.models.presets import Cnn, sizes_of

TIMEOUT_S = 300.0  # how long a rank waits for another one


@dataclass(frozen=True, slots=True)
class Choice:
    """What is measured.

    Attributes:
        model: a model as in run.py.
        samples: the sizes of micro-batches.
        seq_len: tokens of a sample, if it has tokens.
        repeats: iterations of each measurement, after a warm-up.
        device: `cpu` or `cuda`.
        optimizer: the one whose state is counted.
        precision: in which layers compute, `float32` or `bfloat16`.
        layers, head, loss: of a model of the user's own, as for run.py; None if not given.
    """

    model: str
    samples: Sequence[int]
    seq_len: int
    repeats: int
    device: str
    optimizer: str
    precision: Literal["float32", "bfloat16"] = "float32"
    layers: str | None = None
    head: str | None = None
    loss: str | None = None

    def build(self, samples: int) -> Model:
        """Return the model for micro-batches of `samples` samples. Raises ChimeraError as for run.py."""
        if is_own(self.model):
            model = own_model(self.model, samples, self.seq_len, loss=self.loss, layers=self.layers, head=self.head)
        else:
            model = preset(self.model, self.seq_len)
        return model if self.precision == "float32" else replace(model, autocast=torch.bfloat16)

    @property
    def has_tokens(self) -> bool:
        """Return whether a sample has `seq_len` tokens. This is assumed of every model of the user's own."""
        return is_own(self.model) or not isinstance(sizes_of(self.model), Cnn)


def measure(choice: Choice, output: str) -> None:
    """Measure as one of the ranks that a launcher has started. Rank 0 writes the profile to `output`."""
    ranks_here, local_rank = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["LOCAL_RANK"])
    torch.set_num_threads(max(1, processors() // ranks_here))
    transport = _join(choice.device, local_rank, ranks_here)
    profile = profile_of(choice, transport)
    if transport.rank == 0:
        write(profile_to_json(profile), output)
    gloo.leave()
    transport.close()


def _join(device: str, local_rank: int, ranks_here: int) -> Processes:
    """Connect to the other ranks, and return the transport. On GPUs it is NCCL if each rank has one of its own, else gloo."""
    if device == "cpu":
        gloo.join(TIMEOUT_S)
        return gloo.Gloo()
    if torch.cuda.device_count() >= ranks_here:
        nccl.join(TIMEOUT_S, local_rank)
        return nccl.Nccl()
    gpu = gloo.gpu_of(local_rank)
    torch.cuda.set_device(gpu)
    gloo.join(TIMEOUT_S)
    return gloo.Gloo(gpu)


def profile_of(choice: Choice, transport: Processes) -> Profile:
    """Return the profile; called by all ranks together. Its overhead is that of the smallest micro-batch.

    The times of links and all-reduces are valid on rank 0 only.
    """
    sizes, descriptions, overhead = [], [], None
    for samples in sorted(set(choice.samples)):
        model = choice.build(samples)
        descriptions.append(describe(model, samples, torch.device(transport.device.type)))
        bench = LayerBench(model, descriptions[-1], transport.device)
        # The all-reduce makes all ranks begin each iteration together.
        measured = bench.measure(choice.repeats, before_each=lambda: transport.all_reduce(torch.zeros(1)))
        mean = mean_of_ranks(measured, transport)
        overhead = overhead or mean.overhead
        sizes.append(SizeTimes(samples, mean.layers))
        del bench  # frees its memory before the next one is built
    assert overhead is not None, "there is at least one size"
    host = this_host()
    gpus = host.get("gpus")
    parts = [f"{host['processors']} x {host['processor']}", *([str(gpus[0])] if isinstance(gpus, list) else [])]
    return Profile(
        model=descriptions[0].name,
        seq_len=choice.seq_len if choice.has_tokens else None,
        precision=choice.precision,
        optimizer=choice.optimizer,
        hardware=f"{', '.join(parts)}; {choice.device}",
        processes=transport.world,
        versions=versions(),
        source=f"python -m chimerac.interpreter.profiling: medians of {choice.repeats} iterations; layers: means of all ranks; "
        "links and all-reduces: rank 0",
        overhead=overhead,
        layers=layer_bytes(descriptions[0], OPTIMIZERS[choice.optimizer]),
        sizes=tuple(sizes),
        point_to_point=point_to_point(transport, choice.repeats),
        all_reduce=all_reduces(transport, choice.repeats),
    )


def mean_of_ranks(measured: MeasuredLayers, transport: Transport) -> MeasuredLayers:
    """Return the mean of what all ranks have measured; called by all ranks together.

    Args:
        measured: by this rank.
    """
    texts = transport.all_gather(json.dumps([asdict(times) for times in (measured.overhead, *measured.layers)]))
    of_ranks = [json.loads(text) for text in texts]
    mean = []
    for entries in zip(*of_ranks, strict=True):
        times = {name: round(sum(e[name] for e in entries) / len(entries), 9) for name in TIMES.values()}
        mean.append(LayerTimes(**times, activation_bytes=entries[0]["activation_bytes"]))
    return MeasuredLayers(mean[0], tuple(mean[1:]))
