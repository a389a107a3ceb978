"""PipeDream and PipeDream-2BW as closed forms: the time of a micro-batch, and the peak memory.

Both schemes compute with old weights, which no program of this project does.

Sources: Narayanan et al., "PipeDream", SOSP 2019; Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training", ICML
2021; and the comparison of both in Li and Hoefler, "Chimera", SC 2021, table 2: no bubble in the steady state, 1 to D
micro-batches of activations on a rank, and weights in 1 to D versions (PipeDream) or in two (2BW).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

Scheme = Literal["PipeDream", "PipeDream-2BW"]


@dataclass(frozen=True, slots=True)
class Stage:
    """The times and the bytes of a stage.

    Attributes:
        tasks_s: for the forward and the backward of one micro-batch, and with recomputation for another forward.
        all_reduce_s: for one all-reduce of the stage's gradients over the replicas.
        weight_bytes: of one version of the stage's weights.
    """

    tasks_s: float
    all_reduce_s: float
    weight_bytes: int


def seconds_per_micro_batch(scheme: Scheme, stages: Sequence[Stage], micro_batches: int, hidden: bool) -> float:
    """Return how long a micro-batch takes in the steady state: as long as in the slowest stage.

    PipeDream updates the weights after every micro-batch, and 2BW after `micro_batches`. Before an update the replicas
    all-reduce their gradients.

    Args:
        hidden: whether this all-reduce runs at the same time as the tasks of these micro-batches. If so, the longer of the two
            times counts. Otherwise the two are added.
    """
    per_update = micro_batches if scheme == "PipeDream-2BW" else 1
    combine: Callable[[float, float], float] = max if hidden else operator.add
    return max(combine(per_update * s.tasks_s, s.all_reduce_s) for s in stages) / per_update


def versions(scheme: Scheme, stage: int, stages: int) -> int:
    """Return how many versions of its weights a stage keeps.

    Args:
        stage: its number, from 0.
        stages: the number of all stages.

    PipeDream keeps one for each micro-batch in flight, and 2BW keeps two.
    """
    return stages - stage if scheme == "PipeDream" else 2


def peak_bytes(scheme: Scheme, peaks_of_1f1b: Sequence[int], stages: Sequence[Stage]) -> int:
    """Return the peak bytes of the rank that needs most. Stage s is on rank s.

    Args:
        peaks_of_1f1b: the peak bytes of each rank under 1F1B, which has the same 1 to D micro-batches of activations and one
            version of the weights.
    """
    count = len(stages)
    return max(
        peak + (versions(scheme, s, count) - 1) * stage.weight_bytes
        for s, (peak, stage) in enumerate(zip(peaks_of_1f1b, stages, strict=True))
    )
