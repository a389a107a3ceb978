"""Options of the verbs of the command, most of which several verbs have, and the types of their values."""

from __future__ import annotations

import argparse
import re

from chimerac.chimera_ir.machines import MACHINES
from chimerac.chimera_ir.optimizers import OPTIMIZERS

PROFILE = "the times of --model on given hardware"
PROFILES = "a file of python -m chimerac.interpreter.profiling, or one that comes with the project, such as p100"
PRECISIONS = ("float32", "bfloat16", "float16")


def output_path(text: str) -> str:
    """Return the path of a file that is written. Raises ArgumentTypeError if it is empty."""
    if not text:
        raise argparse.ArgumentTypeError("the path is empty")
    return text


def path_or_stdout(text: str) -> str | None:
    """Return the path of a product; None for '-', which means stdout. Raises ArgumentTypeError if it is empty."""
    return None if text == "-" else output_path(text)


def integer_option(text: str) -> int:
    """Return the integer of an option. Raises ArgumentTypeError unless it is 1 to 18 digits, with or without a sign."""
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", text):
        shown = text if len(text) <= 40 else f"{text[:37]}..."
        raise argparse.ArgumentTypeError(f"'{shown}' is not an integer of at most 18 digits")
    return int(text)


def add_partition(p: argparse.ArgumentParser) -> None:
    p.add_argument("--partition", metavar="PATH", help="the layers of each stage, from chimerac partition -o")


def add_columns(p: argparse.ArgumentParser, of: str) -> None:
    """Add --columns.

    Args:
        of: what has this width, for the help.
    """
    p.add_argument("--columns", metavar="N", type=integer_option, help=f"width of {of}, default the terminal's")


def add_parameters(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "-p", metavar="NAME=VALUE", dest="parameters", action="append", default=[], help="set a parameter; repeatable"
    )


def add_output(p: argparse.ArgumentParser, help: str = "write to a file instead of stdout") -> None:
    p.add_argument("-o", metavar="PATH", dest="output", type=path_or_stdout, help=help)


def add_compiling(p: argparse.ArgumentParser) -> None:
    machine = p.add_mutually_exclusive_group()
    machine.add_argument("--machine", metavar="M", choices=MACHINES,
                         help=f"verify that the program ends on this machine: {', '.join(MACHINES)}; default window, or the "
                         "machine of a compiled program")  # fmt: skip
    machine.add_argument("--for", metavar="M", dest="arrange", choices=MACHINES,
                         help="the same, with transfers and collectives arranged for this machine")  # fmt: skip


def add_times(p: argparse.ArgumentParser) -> None:
    p.add_argument("--cost", metavar="NAME=VALUE", dest="costs", action="append", default=[],
                   help="use this cost of F, B, I, W, R or hop, also a fraction such as 0.5 or 1/3; repeatable")  # fmt: skip
    add_model(p)
    add_profile(p)
    add_link(p)
    add_partition(p)
    p.add_argument("--measured", metavar="PATH",
                   help="the times of a run, from run.py --timeline PATH: products such as the timeline and the report show "
                   "them beside the predicted ones")  # fmt: skip


def add_ranks(p: argparse.ArgumentParser) -> None:
    p.add_argument("--ranks", metavar="LIST",
                   help="draw these ranks only, in a timeline or a picture: 0,4..7; default all, of a timeline with --measured "
                   "the first ones")  # fmt: skip


def add_color(p: argparse.ArgumentParser) -> None:
    p.add_argument("--color", choices=("auto", "always", "never"), default="auto", help="default: only on a terminal")


def add_profile(p: argparse.ArgumentParser) -> None:
    p.add_argument("--profile", metavar="NAME", help=f"{PROFILE}, in the place of costs: {PROFILES}")


def add_profiles(p: argparse.ArgumentParser) -> None:
    p.add_argument("--profile", metavar="NAME", dest="profiles", action="append", required=True,
                   help=f"{PROFILE}: {PROFILES}; repeat it with profiles in other precisions, and each of them is "
                   "tried")  # fmt: skip


def add_link(p: argparse.ArgumentParser) -> None:
    p.add_argument("--link", metavar="LATENCY,BANDWIDTH",
                   help="a link between two ranks, such as 10us,12GB/s, in the place of the profile's links and "
                   "all-reduces")  # fmt: skip


def add_picture_width(p: argparse.ArgumentParser) -> None:
    p.add_argument("--picture-width", metavar="LENGTH",
                   help="of a picture, such as 17.8cm or 7in; default: as wide as its numbers need, within limits")  # fmt: skip


def add_schedule(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "schedule",
        nargs="?",
        help="a .sched file, the name of a schedule of the library, a compiled program, a .csv of "
        "torch.distributed.pipelining; - is stdin",
    )
    add_sizes(p)


def add_sizes(p: argparse.ArgumentParser) -> None:
    add_parameters(p)
    p.add_argument("--width", metavar="W", type=integer_option, help="data-parallel replicas, default 1")
    p.add_argument("--recompute", metavar="STAGES",
                   help="the stages that keep only their inputs and run their forwards again before their backwards: all, "
                   "none, or a list such as 0,2..5; default: as the schedule says")  # fmt: skip


def add_description(p: argparse.ArgumentParser) -> None:
    p.add_argument("--model", metavar="NAME",
                   help="a model as in run.py, such as gpt-small or gpt-small/6, or the path of a description (JSON); "
                   "with it a report has bytes per rank, and a program has a partition")  # fmt: skip
    p.add_argument(
        "--micro-batch",
        metavar="b",
        type=integer_option,
        help="samples of a micro-batch, before the `size` of a schedule; default 4; for a --model by name",
    )
    p.add_argument("--seq-len", metavar="L", type=integer_option,
                   help="tokens of a sample, default the profile's, else the model's; for a --model by name")  # fmt: skip
    p.add_argument("--precision", choices=PRECISIONS, default="float32",
                   help="of weights, gradients, activations and messages of --model, default float32; with bfloat16 or "
                   "float16 the optimizer's state is in float32, and so is a second copy of the weights")  # fmt: skip


def add_model(p: argparse.ArgumentParser) -> None:
    add_description(p)
    add_memory(p)
    p.add_argument("--split", metavar="n,n,...", help="the number of layers of each stage of --model")


def add_memory(p: argparse.ArgumentParser) -> None:
    p.add_argument("--memory", metavar="BYTES", help="the most that a rank may need for --model: 24GiB, 80GB or a number")
    add_optimizer(p)


def add_optimizer(p: argparse.ArgumentParser) -> None:
    p.add_argument("--optimizer", metavar="NAME",
                   help=f"count the state of an optimizer: {', '.join(OPTIMIZERS)}, a number of bytes for each float32 "
                   "parameter, or none (the default; with --profile, the one that the profile names)")  # fmt: skip
    p.add_argument("--zero", action="store_true", help="the ranks with a copy of a stage share the optimizer's state (ZeRO-1)")
