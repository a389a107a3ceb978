"""The command line of run.py. It imports no torch: a mistyped option or --help should not wait for it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options; ends the process with code 2 where they are wrong."""
    parser = argparse.ArgumentParser(
        prog="torchrun --nproc-per-node D interpreter/run.py",
        description="Compile a pipeline schedule and train a GPT with it, one process per rank, on CPUs over gloo.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("schedule", type=Path, help="a schedule (.sched), or a program compiled to JSON (.json)")
    add(
        "-p",
        dest="parameters",
        metavar="NAME=VALUE",
        type=_parameter,
        action="append",
        default=[],
        help="set a parameter of the schedule",
    )
    add("--width", type=_at_least(1), default=1, metavar="W", help="data-parallel replicas of the pipeline")
    add("--model", default="gpt-small", help="a preset of models/gpt.py")
    add("--data", type=Path, help="a text file or a folder of them; without it, Python's standard library")
    add("--iterations", type=_at_least(1), default=200, help="weight updates")
    add("--micro-batch", type=_at_least(1), default=4, metavar="b", help="samples of a micro-batch")
    add("--seq-len", type=_at_least(1), default=128, metavar="L", help="bytes of a sample")
    add("--lr", type=positive_number, default=1e-3, help="highest learning rate of AdamW")
    add("--dropout", type=share, default=0.0, help="share of activations dropped")
    add("--seed", type=_at_least(0), default=0, help="of weights, sample order and dropout")
    add(
        "--check-gradients",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="compare the first gradients with one process's: every rank computes them once with the whole model",
    )
    add(
        "--timeout",
        type=positive_number,
        default=300.0,
        metavar="SECONDS",
        help="how long a rank waits for another before the job is ended",
    )
    return parser.parse_args(arguments)


def _parameter(text: str) -> tuple[str, int]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"'{text}' is not NAME=VALUE, as in -p D=2")
    try:
        return name, int(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"the value of {name} is '{value}', not an integer") from None


def _at_least(least: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        number = int(text)
        if number < least:
            raise argparse.ArgumentTypeError(f"{number} is less than {least}")
        return number

    read.__name__ = "integer"  # what argparse calls it in its errors
    return read


def positive_number(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return number


def share(text: str) -> float:
    number = float(text)
    if not 0 <= number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a share from 0 to below 1")
    return number


positive_number.__name__ = "positive number"
