"""Compares the losses of models under schedules with their losses without a pipeline.

    python -m tools.equal_losses gpt2-mini hf:t5     train these models; by default all of the table in docs/models.md, in 10 to
                                                     20 minutes
    python -m tools.equal_losses --write hf:t5       and record the results in that table; the rows of other models stay

For each model and schedule the command prints the largest relative difference of the losses, over all iterations. All ranks are
threads of this process. The training without a pipeline computes the same micro-batches, one after the other. For hf:KIND this
training calls the model of transformers itself; the loop, the loss, the optimizer and the samples are those of this project.
Training may amplify rounding errors. So the training without a pipeline runs a second time, from weights that are changed by a
rounding error. The column `of rounding` has the largest relative difference between these two trainings. The exit status is 1
if the difference of a schedule is larger than TOLERANCE.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from chimerac.interpreter.runtime.describe import describe
from chimerac.interpreter.training.reference import train
from chimerac.interpreter.training.settings import Settings
from chimerac.interpreter.training.trainer import Trainer
from chimerac.interpreter.transport import Transport
from chimerac.interpreter.transport.loopback import run_in_loopback
from chimerac.models.presets import PRESETS
from tests.proof.record import record, stamp, table
from tests.proof.record import rows as recorded_rows
from tools import ROOT
from tools.shown_models import NAMES, SEED, case_of

SCHEDULES: Mapping[str, Mapping[str, int]] = {
    "1f1b": {"D": 4, "N": 4},
    "chimera": {"D": 4, "N": 4},
    "chimera_zb": {"D": 4, "N": 4},
}
ITERATIONS, MICRO_BATCH, LENGTH, RATE = 20, 2, 64, 1e-3  # LENGTH: tokens of a sample; RATE: the learning rate
# The models of the recorded table, and their learning rates. Batch normalization over the two images of a micro-batch amplifies
# rounding errors, and more so with a larger rate. At 1e-3 the training of the wide CNN is chaotic, also without a pipeline.
RATES: Mapping[str, float] = {
    "gpt2-mini": RATE,
    "bert-mini": RATE,
    **dict.fromkeys(NAMES, RATE),
    "cnn-digits": 1e-4,
    "cnn-cifar-wide": 1e-5,
}
TOLERANCE = 1e-4  # of the relative difference: sums in another order make rounding errors, which add up over the updates
PAGE = ROOT / "docs" / "models.md"


@dataclass(frozen=True, slots=True)
class Comparison:
    """The losses of a model under one schedule, and without a pipeline.

    Attributes:
        parameters: the number of parameters of the model.
        losses: under the schedule.
        alone: without a pipeline.
        perturbed: without a pipeline too, from weights that are changed by a rounding error.
    """

    parameters: int
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
    """Train a model without a pipeline and under each of the SCHEDULES, and yield the comparison of each schedule.

    Args:
        name: as for `case_of`.
        micro_batch: in samples.
        length: tokens of a sample.
        rate: the learning rate.
    """
    case, settings = case_of(name, micro_batch, length), Settings(iterations, SEED, micro_batch, rate)
    description = describe(case.model, micro_batch)
    (micro_batches,) = {sizes["N"] for sizes in SCHEDULES.values()}  # the same number for all schedules

    def without_pipeline(factor: float) -> list[float]:
        """Return the losses of a training without a pipeline.

        Args:
            factor: by which the initial weights are multiplied.
        """
        whole = case.whole()
        with torch.no_grad():
            for p in whole.parameters():
                p.mul_(factor)
        batch = micro_batches * micro_batch
        return [result.loss for result in train(whole, case.model, case.samples, settings, batch, micro_batches)]

    alone, perturbed = without_pipeline(1.0), without_pipeline(1 + torch.finfo(torch.float32).eps)
    for schedule, sizes in SCHEDULES.items():
        program, parted = case.parted(schedule, sizes, description)

        def losses_on_rank(transport: Transport) -> list[float]:
            # This function is called only before the loop goes on to the next schedule.
            trainer = Trainer(program, parted, case.samples, transport, settings)  # noqa: B023
            losses = [trainer.update(t, trainer.gradients(t)).loss for t in range(iterations)]
            trainer.pipeline.check_copies()
            return losses

        losses, *_ = run_in_loopback(program, losses_on_rank)  # all ranks have the same losses
        yield Comparison(description.parameters, schedule, losses, alone, perturbed)


HEAD = ("model", "parameters", "schedule", "learning rate", "first loss", "last loss", "largest difference", "of rounding")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.equal_losses", description=__doc__.splitlines()[0])
    models_help = f"presets, {', '.join(NAMES)}; default: all of the table in docs/models.md"
    parser.add_argument("models", nargs="*", metavar="MODEL", help=models_help)
    parser.add_argument("--iterations", type=int, default=ITERATIONS)
    parser.add_argument("--micro-batch", type=int, default=MICRO_BATCH)
    parser.add_argument("--seq-len", type=int, default=LENGTH)
    parser.add_argument("--lr", type=float, help=f"default: that in docs/models.md, or else {RATE}")
    parser.add_argument("--write", action="store_true", help="record the results in docs/models.md")
    given = parser.parse_args(arguments)
    if unknown := set(given.models) - {*PRESETS, *NAMES}:
        parser.error(f"unknown model {min(unknown)}: take one of {', '.join([*PRESETS, *NAMES])}")
    if given.write and set(given.models) - set(RATES):
        parser.error(f"--write records only these models: {', '.join(RATES)}")
    torch.set_num_threads(1)
    start, rows, is_equal = time.monotonic(), dict[str, list[Sequence[object]]](), True
    if given.write:  # keep the recorded rows of other models
        for recorded_table in recorded_rows("equal_losses", PAGE):
            for recorded_row in recorded_table:
                rows.setdefault(recorded_row["model"], []).append(tuple(recorded_row.values()))
    print("".join(f"{word:>20}" for word in HEAD))
    for name in given.models or RATES:
        rows[name] = []
        rate = RATES.get(name, RATE) if given.lr is None else given.lr
        for found in compare(name, given.iterations, given.micro_batch, given.seq_len, rate):
            losses = f"{found.losses[0]:.4f}", f"{found.losses[-1]:.4f}"
            differences = f"{found.difference:.1e}", f"{found.rounding:.1e}"
            rows[name].append((name, found.parameters, found.schedule, f"{rate:.0e}", *losses, *differences))
            is_equal &= found.difference <= TOLERANCE
            print("".join(f"{cell:>20}" for cell in rows[name][-1]), flush=True)
        if given.write:
            body = table(HEAD, [row for name in RATES for row in rows.get(name, ())])
            record("equal_losses", stamp(time.monotonic() - start, SEED, ("torch", "transformers")) + body, PAGE)
    return 0 if is_equal else 1


if __name__ == "__main__":
    sys.exit(main())
