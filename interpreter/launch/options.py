"""The command line of run.py. It does not import torch, so that --help and errors in options appear at once."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import get_args

from chimerac.chimera_ir.arguments import Parser
from chimerac.chimera_ir.machines import MACHINES
from chimerac.interpreter.launch.settings import RunSettings, TransportName

SCHEDULE = Path("schedules/chimera.sched")

EXAMPLES = """\
examples:
  torchrun --nproc-per-node 4 interpreter/run.py
  torchrun --nproc-per-node 4 interpreter/run.py schedules/chimera.sched -p D=4 -p N=8 --model gpt-small --data PATH
  torchrun --nproc-per-node 4 interpreter/run.py p.json --log-file run.jsonl   a program that chimerac --emit json wrote
  torchrun --nproc-per-node 4 interpreter/run.py --timed 20                 stages that only sleep
  python interpreter/run.py -p D=4 --loopback                               all ranks in one process, without torchrun

exit status: 0; 1 for findings and failures; 2 for a wrong command line"""


def parse_options(arguments: Sequence[str] | None = None) -> RunSettings:
    """Return the settings of a command line; exits with code 2 if it is wrong."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.loopback and options.transport != "gloo":
        parser.error(f"--transport {options.transport} is for real ranks; --loopback is a transport of its own")
    names = [name for name, _ in options.parameters]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        parser.error(f"-p {twice[0]} is given twice")
    if options.machine and not options.loopback:
        parser.error("--machine is for --loopback: real ranks wait as their transport does")
    if options.timed is not None and options.loopback:
        parser.error("--timed needs ranks that wait at the same time; --loopback runs one at a time")
    return RunSettings(**vars(options) | {"parameters": tuple(options.parameters)})


def option_names() -> dict[str, str]:
    """Return the name of each option on the command line, by its field of RunSettings."""
    return {
        action.dest: next((word for word in action.option_strings if word.startswith("--")), "")
        or next(iter(action.option_strings), str(action.metavar))
        for action in _parser()._actions
    }


def _parser() -> Parser:
    parser = Parser(
        prog="torchrun --nproc-per-node RANKS interpreter/run.py",
        usage="%(prog)s [SCHEDULE] [-p NAME=VALUE ...] [options]",
        description="Compile a pipeline schedule and train a GPT with it, one process per rank.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_program(parser.add_argument_group("what runs").add_argument)
    _add_training(parser.add_argument_group("training").add_argument)
    _add_output(parser.add_argument_group("checks and output").add_argument)
    return parser


def _add_program(add: Callable[..., object]) -> None:
    add("schedule", metavar="SCHEDULE", nargs="?", type=Path, default=SCHEDULE,
        help="a schedule, or a compiled program as JSON or compact text (default: %(default)s, "
             "with D from the number of processes)")  # fmt: skip
    add("-p", dest="parameters", metavar="NAME=VALUE", type=_parameter, action="append", default=[],
        help="set a parameter of the schedule; repeatable")  # fmt: skip
    add("--width", type=_at_least(1), metavar="W", help="data-parallel replicas of the pipeline (default: 1)")
    add("--model", default="gpt-small", help="a preset of models/gpt.py (default: %(default)s)")
    add("--data", type=Path, metavar="PATH", help="a text file or a folder of them (default: Python's standard library)")
    add("--transport", choices=get_args(TransportName), default="gloo",
        help="gloo: on CPUs; staged: on GPUs that ranks may share, messages pass through host memory; "
             "nccl: a GPU per rank (default: %(default)s)")  # fmt: skip
    add("--loopback", action="store_true", help="run all ranks in this process, one at a time, without torchrun")
    add("--machine", choices=MACHINES,
        help="how instructions wait with --loopback (docs/semantics.md); default: the one in the program")  # fmt: skip
    add("--timed", type=positive_number, metavar="MS",
        help="instead of the model: stages that sleep this many milliseconds for each unit of the program's costs; "
             "prints the makespan and the bubbles, predicted and measured")  # fmt: skip


def _add_training(add: Callable[..., object]) -> None:
    add("--iterations", type=_at_least(1), metavar="T", help="weight updates (default: 200; 5 with --timed)")
    add("--micro-batch", type=_at_least(1), default=4, metavar="b", help="samples of a micro-batch (default: %(default)s)")
    add("--seq-len", type=_at_least(1), default=128, metavar="L", help="bytes of a sample (default: %(default)s)")
    add("--lr", type=positive_number, default=1e-3, metavar="RATE",
        help="highest learning rate of AdamW, before it falls along a cosine (default: %(default)s)")  # fmt: skip
    add("--warm-up", type=_at_least(0), metavar="T", help="iterations in which the rate rises (default: a tenth)")
    add("--clip", type=positive_number, default=1.0, metavar="NORM",
        help="longest gradient of the whole model (default: %(default)s)")  # fmt: skip
    add("--dropout", type=share, default=0.0, metavar="SHARE", help="share of activations dropped (default: %(default)s)")
    add("--seed", type=_at_least(0), default=0, help="of weights, sample order and dropout (default: %(default)s)")


def _add_output(add: Callable[..., object]) -> None:
    add("--eval-every", type=_at_least(1), metavar="T", help="held-out loss every T iterations too (default: at the end)")
    add("--eval-samples", type=_at_least(1), default=256, metavar="K",
        help="held-out samples of an evaluation, at most (default: %(default)s)")  # fmt: skip
    add("--log-file", type=Path, metavar="PATH", help="write one JSON line per iteration")
    add("--check-gradients", action=argparse.BooleanOptionalAction,
        help="compare the first gradients with one process's, which every rank computes once with the whole model "
             "(default: where the model has at most 10 million parameters)")  # fmt: skip
    add("--timeout", type=positive_number, default=300.0, metavar="SECONDS",
        help="how long a rank waits for another before the job is ended (default: %(default)s)")  # fmt: skip


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

    read.__name__ = "integer"  # the name in the error messages of argparse
    return read


def positive_number(text: str) -> float:
    number = float(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return number


def share(text: str) -> float:
    number = float(text)
    if not 0 <= number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a share from 0 to below 1")
    return number


positive_number.__name__ = "positive number"
