"""The settings of a run: the command line of run.py as a value."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from chimerac.chimera_ir.program import Machine

TransportName = Literal["gloo", "staged", "nccl"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """The settings of a run. options.py describes each field. None: not given; the default depends on other settings.

    Ranks compare every field before they run (agreement.py).
    """

    schedule: Path
    parameters: tuple[tuple[str, int], ...]
    width: int | None
    model: str
    data: Path | None
    transport: TransportName
    loopback: bool
    machine: Machine | None
    timed: float | None
    iterations: int | None
    micro_batch: int
    seq_len: int
    lr: float
    warm_up: int | None
    clip: float
    dropout: float
    seed: int
    eval_every: int | None
    eval_samples: int
    log_file: Path | None
    check_gradients: bool | None
    timeout: float
