"""Whether a run may resume from a checkpoint: it needs the same data, seed and number of samples in an iteration."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from chimerac.chimera_ir.counts import count_text
from chimerac.interpreter.pipeline.checkpoint_files import mismatch
from chimerac.interpreter.training.trainer import Trainer

SHOWN = 3  # how many combinations of options a finding suggests at most

SAMPLES, SEED, DATA = "samples_per_iteration", "seed", "data"


def run_facts(trainer: Trainer, data: str) -> dict[str, Any]:
    """Return the facts that a checkpoint and the run that resumes from it must have in common.

    Args:
        data: the identity of the data.
    """
    return {SAMPLES: trainer.samples_per_iteration, SEED: trainer.settings.seed, DATA: data}


def check_fit(path: Path, info: Mapping[str, Any], trainer: Trainer, data: str) -> None:
    """Raise ChimeraError E831 or E834 unless the run has the facts of the checkpoint.

    Args:
        info: the content of checkpoint.json.
        data: the identity of the run's data.
    """
    saved, own = info.get("run"), run_facts(trainer, data)
    if saved is None:
        raise mismatch(path, "it was not written by run.py", help="load it with load_checkpoint, in the loop that saved it")
    if saved[SEED] != own[SEED]:
        help = f"give --seed {saved[SEED]}"
        raise mismatch(path, f"it was trained with the seed {saved[SEED]}, and this run has {own[SEED]}", help=help)
    if saved[DATA] != own[DATA]:
        help = "give --data, --tokenizer and --seq-len as they were"
        raise mismatch(path, f"its data is {saved[DATA]}, and this run has {own[DATA]}", help=help)
    if saved[SAMPLES] != own[SAMPLES]:
        header, settings = trainer.program.header, trainer.settings
        iteration = f"{count_text(header.micro_batches, 'micro-batch')} of {trainer.size}"
        if header.width > 1:
            iteration += f" in each of {header.width} replicas"
        if settings.accumulate > 1:
            iteration += f", in each of {settings.accumulate} accumulated batches"
        options = {"--micro-batch": settings.micro_batch, "--width": header.width}
        if (n := header.parameters.get("N")) and header.micro_batches == n:
            options = {"-p N=": n} | options
        if settings.accumulate > 1:
            options["--accumulate"] = settings.accumulate
        suggestions = [_changed_options(values, options) for values in fitting_values(options, own[SAMPLES], saved[SAMPLES])]
        raise mismatch(
            path,
            f"it was trained with {saved[SAMPLES]} samples an iteration, and this run has {own[SAMPLES]}: {iteration}",
            code="E834",
            help="give " + ", or ".join(suggestions[:SHOWN] or [f"options with {saved[SAMPLES]} samples an iteration"]),
        )


def fitting_values(values: Mapping[str, int], samples: int, target: int) -> list[dict[str, int]]:
    """Return other values of options, such that an iteration has `target` samples; an empty list if there are none.

    Args:
        values: by option; the number of samples is proportional to their product.
        samples: of an iteration with these values.

    The result is sorted by how many values differ from `values`, and then by how much they differ.
    """
    product, rest = divmod(math.prod(values.values()) * target, samples)
    if rest:
        return []
    candidates = [dict(zip(values, factors, strict=True)) for factors in _factorizations(product, len(values))]

    def change(candidate: Mapping[str, int]) -> tuple[int, float]:
        ratios = [abs(math.log(candidate[name] / value)) for name, value in values.items()]
        return sum(ratio > 0 for ratio in ratios), sum(ratios)

    return sorted(candidates, key=change)


def _factorizations(product: int, count: int) -> Iterator[tuple[int, ...]]:
    """Yield all ways to write a number as a product of `count` numbers, in every order."""
    if count == 1:
        yield (product,)
        return
    small = [d for d in range(1, math.isqrt(product) + 1) if product % d == 0]
    for divisor in sorted({*small, *(product // d for d in small)}):
        for others in _factorizations(product // divisor, count - 1):
            yield divisor, *others


def _changed_options(values: Mapping[str, int], current: Mapping[str, int]) -> str:
    """Return the options whose values differ from the current ones, as on a command line."""
    changed = {name: value for name, value in values.items() if value != current[name]}
    return " ".join(f"{name}{'' if name.endswith('=') else ' '}{value}" for name, value in changed.items())
