"""Whether a run may go on from a checkpoint: it has the same samples in each iteration, the same data and the same seed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from chimerac.interpreter.pipeline.checkpoint import misfits
from chimerac.interpreter.training.trainer import Trainer

SHOWN = 3  # combinations of options that a finding suggests

SAMPLES, SEED, DATA = "samples_per_iteration", "seed", "data"


def facts_of(trainer: Trainer, data: str) -> dict[str, Any]:
    """Return what a checkpoint and the run that goes on from it must have in common. data: the identity of the data."""
    return {SAMPLES: trainer.samples_per_iteration, SEED: trainer.settings.seed, DATA: data}


def check_fit(path: Path, info: Mapping[str, Any], trainer: Trainer, data: str) -> None:
    """Raise ChimeraError E831 or E834 unless the run has the facts of the checkpoint. info: what checkpoint.json says."""
    saved, own = info.get("run"), facts_of(trainer, data)
    if saved is None:
        raise misfits(path, "it was not written by run.py", help="load it with load_checkpoint, in the loop that saved it")
    if saved[SEED] != own[SEED]:
        help = f"give --seed {saved[SEED]}"
        raise misfits(path, f"it was trained with the seed {saved[SEED]}, and this run has {own[SEED]}", help=help)
    if saved[DATA] != own[DATA]:
        help = "give --data and --seq-len as they were"
        raise misfits(path, f"its data is {saved[DATA]}, and this run has {own[DATA]}", help=help)
    if saved[SAMPLES] != own[SAMPLES]:
        header, settings = trainer.program.header, trainer.settings
        size, w = trainer.size, header.width
        of_run = f"{header.micro_batches} micro-batches of {size}" + (f" in each of {w} replicas" if w > 1 else "")
        options = {"--micro-batch": settings.micro_batch, "--width": w}
        if "N" in header.parameters:
            options = {"-p N=": header.parameters["N"]} | options
        found = [_options(f, options) for f in fitting(options, own[SAMPLES], saved[SAMPLES])]
        raise misfits(
            path,
            f"it was trained with {saved[SAMPLES]} samples an iteration, and this run has {own[SAMPLES]}: {of_run}",
            code="E834",
            help="give " + ", or ".join(found[:SHOWN]) if found else f"give options with {saved[SAMPLES]} samples an iteration",
        )


def fitting(values: Mapping[str, int], product: int, target: int) -> list[dict[str, int]]:
    """Return other values whose product is as much larger as `target` than `product`; first those where few have changed."""
    wanted, rest = divmod(math.prod(values.values()) * target, product)
    if rest:
        return []
    found = [dict(zip(values, factors, strict=True)) for factors in _factors(wanted, len(values))]

    def change(candidate: Mapping[str, int]) -> tuple[int, float]:
        ratios = [abs(math.log(candidate[name] / value)) for name, value in values.items()]
        return sum(ratio > 0 for ratio in ratios), sum(ratios)

    return sorted(found, key=change)


def _factors(product: int, count: int) -> Iterator[tuple[int, ...]]:
    """Yield all ways to write a number as a product of `count` numbers, in every order."""
    if count == 1:
        yield (product,)
        return
    small = [d for d in range(1, math.isqrt(product) + 1) if product % d == 0]
    for divisor in sorted({*small, *(product // d for d in small)}):
        for others in _factors(product // divisor, count - 1):
            yield divisor, *others


def _options(found: Mapping[str, int], now: Mapping[str, int]) -> str:
    """Return the options that have to change."""
    changed = {name: value for name, value in found.items() if value != now[name]}
    return " ".join(f"{name}{'' if name.endswith('=') else ' '}{value}" for name, value in changed.items())
