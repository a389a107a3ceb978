"""The settings of a run: the command line of run.py as a value."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from chimerac.chimera_ir.program import Machine

TransportName = Literal["gloo", "staged", "nccl"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """What a run is told. options.py describes each field; None: not given, so a default that depends on others holds.

    Ranks compare every field before anything else (agreement.py).
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
