"""Whether presets train under schedules as they do without a pipeline: `python -m tools.equal_losses gpt2-mini bert-mini`.

For each preset and schedule it prints the largest relative difference of the losses of all iterations. All ranks are threads of
this process. The training without a pipeline sees the same micro-batches, one after the other. Training may amplify rounding
errors, so it runs a second time from weights that are changed by one: `rounding` is the difference of these losses.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from chimerac.compiler import compile_schedule
from chimerac.interpreter.data.digits import digits
from chimerac.interpreter.data.images import Images
from chimerac.interpreter.data.names import SIZES
from chimerac.interpreter.data.pairs import pair_data
from chimerac.interpreter.data.text import load_text
from chimerac.interpreter.data.windows import text_data
from chimerac.interpreter.runtime.batch import Samples
from chimerac.interpreter.runtime.describe import describe
from chimerac.interpreter.runtime.model import Values
from chimerac.interpreter.runtime.partitioned import partitioned
from chimerac.interpreter.training.reference import train, whole_model
from chimerac.interpreter.training.settings import Settings
from chimerac.interpreter.training.trainer import Trainer
from chimerac.interpreter.transport import Transport
from chimerac.interpreter.transport.loopback import run_in_loopback
from chimerac.models.families import preset
from chimerac.models.presets import PRESETS, Cnn, sizes_of

SCHEDULES: Mapping[str, Mapping[str, int]] = {
    "1f1b": {"D": 4, "N": 4},
    "chimera": {"D": 4, "N": 4},
    "chimera_zb": {"D": 4, "N": 4},
}
SEED = 3


@dataclass(frozen=True)
class RandomImages(Samples):
    """Images of random numbers, in place of a data set that is not there."""

    sizes: Cnn

    def inputs(self, numbers: Sequence[int]) -> Values:
        """Return an image for each number."""
        shape = self.sizes.channels, self.sizes.side, self.sizes.side
        return (torch.stack([torch.randn(shape, generator=torch.Generator().manual_seed(n)) for n in numbers]),)

    def targets(self, numbers: Sequence[int]) -> Values:
        """Return a class for each number."""
        return (torch.tensor([n * n % self.sizes.classes for n in numbers]),)

    def valid_targets(self, numbers: Sequence[int]) -> tuple[int, ...]:
        """Return how many images these are."""
        return (len(numbers),)


def samples_for(name: str, length: int) -> Samples:
    """Return samples on which a preset can be trained. length: tokens of a sample."""
    sizes = sizes_of(name)
    if isinstance(sizes, Cnn):
        has_data = (sizes.side, sizes.channels) == SIZES["digits"]
        return Images(data := digits(), data.train, SEED) if has_data else RandomImages(sizes)
    data_of = pair_data if sizes.data == "pairs" else text_data
    return data_of(load_text(None), length, SEED).train


@dataclass(frozen=True, slots=True)
class Comparison:
    """The losses of a preset under one schedule, without a pipeline, and without one from weights changed by rounding."""

    schedule: str
    losses: Sequence[float]
    alone: Sequence[float]
    perturbed: Sequence[float]

    @property
    def difference(self) -> float:
        """Return the largest relative difference from the losses without a pipeline."""
        return _difference(self.losses, self.alone)

    @property
    def rounding(self) -> float:
        """Return the largest relative difference that rounding alone makes."""
        return _difference(self.perturbed, self.alone)


def _difference(a: Sequence[float], b: Sequence[float]) -> float:
    return max(abs(x - y) / abs(y) for x, y in zip(a, b, strict=True))


def compare(name: str, iterations: int, micro_batch: int, length: int, rate: float) -> Iterator[Comparison]:
    """Train a preset under each schedule, and yield the comparisons."""
    model, source = preset(name, length), samples_for(name, length)
    settings = Settings(iterations, SEED, micro_batch, rate)
    description = describe(model, micro_batch)
    (parts,) = {parameters["N"] for parameters in SCHEDULES.values()}

    def without_pipeline(factor: float) -> list[float]:
        whole = whole_model(model, SEED)
        with torch.no_grad():
            for p in whole.parameters():
                p.mul_(factor)
        return [result.loss for result in train(whole, model, source, settings, parts * micro_batch, parts)]

    alone, perturbed = without_pipeline(1.0), without_pipeline(1 + torch.finfo(torch.float32).eps)
    for schedule, parameters in SCHEDULES.items():
        program = compile_schedule(schedule, parameters).program
        parted = partitioned(program, model, description)

        def rank(transport: Transport) -> list[float]:
            trainer = Trainer(program, parted, source, transport, settings)  # noqa: B023  # called before the next schedule
            found = [trainer.update(t, trainer.gradients(t)).loss for t in range(iterations)]
            trainer.pipeline.check_copies()
            return found

        yield Comparison(schedule, run_in_loopback(program, rank)[0], alone, perturbed)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.equal_losses", description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", choices=PRESETS, metavar="MODEL", help="presets")
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--micro-batch", type=int, default=2)
    parser.add_argument("--seq-len", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-3)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    columns = f"{'first loss':>11}{'last loss':>11}{'difference':>12}{'rounding':>10}"
    print(f"{'model':<16}{'parameters':>12}  {'schedule':<12}{columns}")
    for name in given.models:
        parameters = f"{sizes_of(name).parameters(given.seq_len):,}"
        for c in compare(name, given.iterations, given.micro_batch, given.seq_len, given.lr):
            row = f"{c.losses[0]:>11.4f}{c.losses[-1]:>11.4f}{c.difference:>12.1e}{c.rounding:>10.1e}"
            print(f"{name:<16}{parameters:>12}  {c.schedule:<12}{row}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
