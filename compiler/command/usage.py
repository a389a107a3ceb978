"""The command lines of chimerac and its verbs: their options, and the values of options (E002)."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import NoReturn

from chimerac.chimera_ir.arguments import Parser
from chimerac.chimera_ir.diagnostics import ChimeraError, Diagnostic, refuse
from chimerac.chimera_ir.machines import MACHINES
from chimerac.compiler.analyze.memory import NO_STATE, OPTIMIZERS, OptimizerState
from chimerac.compiler.command.emit import EMITTERS
from chimerac.compiler.given import cost_from_text

DESCRIPTION = """\
Compile a pipeline schedule: a small text becomes a dependency DAG, is verified, and is lowered to one stream of
instructions per rank (FWD, BWD, SEND, RECV, ALLREDUCE, ...). Nothing is printed unless the program is verified."""

PARTITION = """\
Find the partition of a model into the stages of a schedule whose slowest stage is fastest, with --memory among those in
which every rank has enough. Print a table of the stages and of the ranks; with --split print it for that partition."""

COMPARE = """\
Put schedules side by side, for one setting: makespan, bubble, memory and communication of each, with the same costs for all.
Without names, all schedules of the library are compared, the fastest first. A schedule that cannot run at this size has the
reason in its row. Runs that train are compared by another command: python -m chimerac.interpreter.experiments baseline"""

TOUR = """\
A guided tour in five parts, with explanations and choices. It begins with what a pipeline is and what a bubble is.
Without a terminal, and with --yes, it asks nothing."""

TOUR_PARTS = {
    "schedule": "what a pipeline is, what a bubble is, drawn so that it can be counted, and what two directions change",
    "partition": "which layers form which stage, what a rank needs, recomputation",
    "performance": "schedules compared: more micro-batches, slower messages",
    "autotune": "the fastest schedule of the library that fits into memory",
    "train": "a short training on two ranks; needs torch",
}

_EMIT_CHOICES = "\n".join(f"  {name:<10} {emitter.what}" for name, emitter in EMITTERS.items())

EXAMPLES = f"""\
examples:
  chimerac tour schedule                              what a bubble is, drawn: one of five parts of a guided tour
  chimerac chimera                                    the streams, for the schedule's own parameters
  chimerac schedules/chimera.sched -p D=8 -p N=16     other sizes
  chimerac chimera --emit timeline                    a drawing in the terminal
  chimerac dapple -p policy=2 --emit report --cost hop=0.5
  chimerac chimera --width 2 --emit json -o p.json    a program for 2 replicas; torchrun interpreter/run.py runs it
  chimerac gpipe --recompute all --emit report        every stage recomputes; 0,2..3 are some stages, none is no stage
  chimerac p.json --emit report                       read a program, verify it again, report on it
  chimerac p.json --for serial                        arrange its transfers for another machine, verify it there
  chimerac chimera -p D=2 --model gpt-small --memory 24GiB   refuse it if a rank would need more memory
  chimerac chimera --emit dag -o chimera.dot          the dependency DAG for Graphviz; GraphML otherwise
  chimerac partition chimera --model gpt-small --memory 24GiB   which layers form which stage, memory of each rank
  chimerac compare chimera 1f1b gpipe -p D=4 -p N=8   makespan, bubble, memory and communication side by side
  chimerac fmt mine.sched                             format in place; with --check only report whether it is formatted
  chimerac explain E303                               what an error code means, a wrong example and its correction

other commands (each has --help):
  tour [PART]        a guided tour, or one of its parts: schedule, partition, performance, autotune, train
  partition SCHEDULE --model NAME   the best partition of a model into stages, as a table
  compare [SCHEDULE ...]            schedules side by side for one setting, by default the whole library
  fmt FILE ...       format schedules in place; with --check only report whether they are formatted
  explain [CODE ...] explain error codes, each with a wrong example and its correction

choices of --emit:
{_EMIT_CHOICES}

exit status: 0; 1 if the schedule or program has findings; 2 if the command line is invalid or a file cannot be read or
written; 130 after Ctrl-C"""


def _output(path: str) -> str | None:
    """Return the path of -o; None for '-', which means stdout."""
    return None if path == "-" else path


def format_parser() -> argparse.ArgumentParser:
    p = Parser("chimerac fmt", description="Format schedules in place. Comments stay.")
    p.add_argument("files", nargs="+", metavar="FILE", help="a .sched file; - formats stdin to stdout")
    p.add_argument("--check", action="store_true", help="write nothing; list unformatted files, with exit status 1")
    return p


def partition_parser() -> argparse.ArgumentParser:
    p = Parser("chimerac partition", description=PARTITION, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.set_defaults(machine=None, arrange=None, partition=None)
    _add_schedule(p)
    _add_model(p)
    p.add_argument("-o", metavar="PATH", dest="output", help="write the partition to a file, for --partition")
    return p


def compare_parser() -> argparse.ArgumentParser:
    p = Parser("chimerac compare", description=COMPARE, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("schedules", nargs="*", metavar="SCHEDULE", help="a .sched file, or the name of a schedule of the library")
    _add_sizes(p)
    p.add_argument("--cost", metavar="NAME=VALUE", dest="costs", action="append", default=[],
                   help="the cost of F, B, I, W or R of the share of one rank, or of a hop; default F=1, I=1, W=1, B=I+W, R=F, "
                   "hop=0; repeatable")  # fmt: skip
    _add_model(p)
    p.add_argument("--partition", metavar="PATH", help="the layers of each stage, from chimerac partition -o")
    p.add_argument("--emit", choices=("table", "json", "markdown"), default="table", help="what to print, default table")
    p.add_argument("-o", metavar="PATH", dest="output", type=_output, help="write to a file instead of stdout")
    return p


def tour_parser() -> argparse.ArgumentParser:
    parts = "\n".join(f"  {name:<12} {what}" for name, what in TOUR_PARTS.items())
    p = Parser("chimerac tour", description=TOUR, epilog=f"parts:\n{parts}",
               formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    p.add_argument("part", nargs="?", metavar="PART", choices=tuple(TOUR_PARTS), help="one part; without it, all of them")
    p.add_argument("--yes", action="store_true", help="ask nothing: take the first of all choices")
    return p


def explain_parser() -> argparse.ArgumentParser:
    p = Parser("chimerac explain", description="Explain error codes, each with an example and its correction.")
    p.add_argument("codes", nargs="*", metavar="CODE", help="for instance E303; without a code, all are listed")
    return p


def make_parser() -> argparse.ArgumentParser:
    p = Parser("chimerac", description=DESCRIPTION, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.verbs = (tour_parser(), partition_parser(), compare_parser(), format_parser(), explain_parser())
    _add_schedule(p)
    machine = p.add_mutually_exclusive_group()
    machine.add_argument("--machine", metavar="M", choices=MACHINES,
                         help=f"verify that it ends on this machine: {', '.join(MACHINES)}; default window")  # fmt: skip
    machine.add_argument("--for", metavar="M", dest="arrange", choices=MACHINES,
                         help="the same, with transfers and collectives arranged for this machine")  # fmt: skip
    p.add_argument("--emit", choices=tuple(EMITTERS), default="streams", help="what to print, default streams")
    p.add_argument("-o", metavar="PATH", dest="output", type=_output, help="write to a file instead of stdout")
    p.add_argument("--cost", metavar="NAME=VALUE", dest="costs", action="append", default=[],
                   help="use this cost of F, B, I, W, R or hop, also a fraction such as 0.5 or 1/3; repeatable")  # fmt: skip
    _add_model(p)
    p.add_argument("--partition", metavar="PATH", help="the layers of each stage, from chimerac partition -o")
    p.add_argument("--columns", metavar="N", type=int, help="width of the timeline and of --list, default the terminal's")
    p.add_argument("--color", choices=("auto", "always", "never"), default="auto", help="default: only on a terminal")
    p.add_argument("--list", action="store_true", help="list the schedules of the library")
    p.add_argument("--version", action=_Version, nargs=0, help="show the version of chimerac and exit")
    return p


def _add_schedule(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "schedule", nargs="?", help="a .sched file, the name of a schedule of the library, a compiled program; - is stdin"
    )
    _add_sizes(p)


def _add_sizes(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "-p", metavar="NAME=VALUE", dest="parameters", action="append", default=[], help="set a parameter; repeatable"
    )
    p.add_argument("--width", metavar="W", type=int, help="data-parallel replicas, default 1")
    p.add_argument("--recompute", metavar="STAGES",
                   help="the stages that keep only their inputs and run their forwards again before their backwards: all, "
                   "none, or a list such as 0,2..5; default: as the schedule says")  # fmt: skip


def _add_model(p: argparse.ArgumentParser) -> None:
    p.add_argument("--model", metavar="NAME",
                   help="a model as in run.py, such as gpt-small or gpt-small/6, or the path of a description (JSON): "
                   "bytes per rank in the report, a partition in the program")  # fmt: skip
    p.add_argument("--micro-batch", metavar="b", type=int, help="samples of a micro-batch, default 4; for a --model by name")
    p.add_argument("--seq-len", metavar="L", type=int, help="tokens of a sample, default the model's; for a --model by name")
    p.add_argument("--memory", metavar="BYTES", help="the most that a rank may need for --model: 24GiB, 80GB or a number")
    p.add_argument("--optimizer", metavar="NAME", default="none",
                   help=f"count the state of an optimizer: {', '.join(OPTIMIZERS)}, a number of bytes for each parameter "
                   "of 4 bytes, or none (the default)")  # fmt: skip
    p.add_argument("--zero", action="store_true", help="the copies of a stage share this state out (ZeRO, stage 1)")
    p.add_argument("--split", metavar="n,n,...", help="the number of layers of each stage of --model")


class _Version(argparse.Action):
    """--version: the installed version. It is looked up only for this option."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from importlib.metadata import PackageNotFoundError, version  # start-up: 13 ms, for this option only

        try:
            found = version("chimerac")
        except PackageNotFoundError:  # run from a checkout that is not installed
            found = "(not installed)"
        print(f"chimerac {found}")
        parser.exit()


def named_values(option: str, given: Sequence[str], example: str) -> list[tuple[str, str]]:
    """Return (name, value) of each NAME=VALUE of an option. example: a name for the message if one is missing."""
    found: list[Diagnostic] = []
    values: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.strip() or not value.strip():
            message = f"{option} {text}: expected NAME=VALUE, for instance {option} {name.strip() or example}=4"
            found.append(Diagnostic("E002", message))
        elif name.strip() in values:
            found.append(Diagnostic("E002", f"{option} {text}: {name.strip()} was given before, as {values[name.strip()]}"))
        values[name.strip()] = value.strip()
    if found:
        raise ChimeraError(found)
    return list(values.items())


def integer(option: str, name: str, value: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]+", value):
        raise refuse("E002", f"{option} {name}={value}: '{value}' is not an integer")
    if len(value) > 20:
        raise refuse("E002", f"{option} {name}={value[:8]}...: a number of {len(value)} digits is too large")
    return int(value)


def number_of_bytes(text: str) -> int:
    """Return a number of bytes: 1000, 1.5GB (10^9), 24GiB (2^30)."""
    powers = {"": 1} | {f"{x}{i}B": (1024 if i else 1000) ** k for k, x in enumerate("KMGT", 1) for i in ("", "i")}
    found = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,6})?) ?([KMGT]i?B)?", text)
    if not found:
        raise refuse("E002", f"--memory {text}: expected bytes, for instance 24GiB (2^30), 80GB (10^9) or 1000000")
    return int(Fraction(found[1]) * powers[found[2] or ""])


def state_of(optimizer: str, zero: bool) -> OptimizerState:
    """Return the state of --optimizer and --zero."""
    if optimizer == "none":
        if zero:
            raise refuse("E002", "--zero shares an optimizer's state out: give --optimizer, too")
        return NO_STATE
    if optimizer in OPTIMIZERS:
        return OptimizerState(Fraction(OPTIMIZERS[optimizer]), zero)
    if re.fullmatch(r"[0-9]{1,4}", optimizer):
        return OptimizerState(Fraction(int(optimizer), 4), zero)
    expected = f"expected {', '.join(OPTIMIZERS)}, none or a number of bytes for each parameter"
    raise refuse("E002", f"--optimizer {optimizer}: {expected}")


def counts(option: str, text: str) -> list[int]:
    """Return the numbers of an option, separated by commas."""
    if not re.fullmatch(r"[0-9]{1,6}(,[0-9]{1,6})*", text):
        raise refuse("E002", f"{option} {text}: expected the number of layers of each stage, for instance {option} 3,2,2,3")
    return [int(word) for word in text.split(",")]


def costs_of(given: Sequence[str]) -> Mapping[str, Fraction]:
    return {name: cost_from_text(name, value) for name, value in named_values("--cost", given, "F")}
