"""The settings of the trainer. This module does not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from chimerac.chimera_ir.program import Program

Dtype = Literal["fp32", "bf16"]
RateSchedule = Literal["cosine", "linear", "constant"]


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of the trainer.

    Attributes:
        seed: of the initial weights, of the order of the samples and of dropout.
        micro_batch: samples of a micro-batch, before the `size A/B` of a schedule (`samples_per_micro_batch`).
        rate: the highest learning rate.
        clip: the norm to which a gradient with a larger norm is scaled.
        warm_up: iterations in which the rate rises; None: a tenth of all, at least one.
        rate_schedule: how the rate falls afterwards, or constant.
        rate_floor: the share of `rate` towards which it falls.
        betas, weight_decay: of AdamW.
        accumulate: batches whose gradients are summed before each weight update.
        dtype: that in which layers compute; with bf16 under torch.autocast.
        skip_nonfinite: skip an update whose loss or gradient is not finite.
        max_skipped: how many at most in a row.
        zero: shard the optimizer's state over the copies of a stage.
        compile_stages: compile the stages with torch.compile.
    """

    iterations: int
    seed: int
    micro_batch: int
    rate: float
    clip: float = 1.0
    warm_up: int | None = None
    rate_schedule: RateSchedule = "cosine"
    rate_floor: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.1
    accumulate: int = 1
    dtype: Dtype = "fp32"
    skip_nonfinite: bool = False
    max_skipped: int = 10
    zero: bool = False
    compile_stages: bool = False

    @property
    def warm_up_iterations(self) -> int:
        """Return the number of iterations in which the rate rises."""
        return max(1, self.iterations // 10) if self.warm_up is None else self.warm_up


def samples_per_micro_batch(program: Program, micro_batch: int) -> int:
    """Return how many samples one micro-batch of the program has.

    Args:
        micro_batch: as in `Settings`.

    Raises ChimeraError E804 if the result is not an integer.
    """
    return program.header.samples(micro_batch)
