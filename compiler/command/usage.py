"""The command lines of chimerac and its verbs: their options."""

from __future__ import annotations

import argparse
import re
from typing import NoReturn

from chimerac.chimera_ir.arguments import Parser
from chimerac.chimera_ir.machines import MACHINES
from chimerac.chimera_ir.optimizers import OPTIMIZERS
from chimerac.compiler.command.emit import EMITTERS
from chimerac.compiler.command.pictures import PICTURES

DESCRIPTION = """\
Compile a pipeline schedule: a small text becomes a dependency DAG, is lowered to one stream of instructions per rank
(FWD, BWD, SEND, RECV, ALLREDUCE, ...), and is verified. Nothing is printed unless the program is verified."""

PARTITION = """\
Find the best partition of a model into the stages of a schedule: its slowest stage takes the least time. With --memory only
partitions count in which every rank has enough memory. Print a table of the stages and of the ranks. With --split print this
table for the given partition."""

COMPARE = """\
Put schedules side by side, for one setting: makespan, bubble, memory and communication of each, with the same costs for all.
Without a SCHEDULE, all schedules of the library are compared, the fastest first. A schedule that cannot run at this size has
the reason in its row. Runs that train are compared by another command: python -m chimerac.interpreter.experiments baseline"""

DIFF = """\
Show what differs between two schedules or programs: for each rank the instructions that moved (~), that only A has (-) and
that only B has (+), and what this does to makespan, bubbles and memory. Exit status: 0 if both have the same instructions in
the same order, 1 if they differ, 2 for an error. Names, parameters and costs do not count as differences."""

SEARCH = """\
Search for an order of the tasks of a schedule's placement with a smaller makespan, for given costs, links and limits. List
scheduling comes first, then simulated annealing and, on small cases, a solver, until the time is over or the bound is reached.
The result is a schedule (order listing) and a certificate of its bound. Needs: pip install 'chimerac[search]'
With --texts the search is for a text with parameters, whose order is made by rules; it needs no extra packages."""

PLAN = """\
Choose how to train a model on a number of ranks: schedule, ranks of a replica (D), replicas (W), parameters of the
schedule, micro-batch size and recomputation. Configurations that do not fit into memory are dropped. The others are
ranked by the simulation of their compiled programs. The result is written as a file for interpreter/run.py."""

TOUR = """\
A guided tour in five parts, with explanations and choices. It begins with what a pipeline is and what a bubble is.
Without a terminal, and with --yes, it asks nothing."""

SERVE = """\
Open the playground, a page on this host: an editor for a schedule's text with its timeline beside it, compiled as you type.
Errors are underlined in place, parameters are sliders, and everything can be downloaded. Only this host can reach it, at an
address with a random token. A compilation has limits of time and memory. Ctrl-C ends it."""

WATCH = """\
Compile a schedule again whenever its file changes, and draw its timeline or its errors in the terminal. Ctrl-C ends it."""

LSP = """\
The language server, which an editor starts: findings as you type, explanations, completion, definitions, the formatter.
docs/editor.md says how editors are set up. Needs: pip install 'chimerac[lsp]'"""

TOUR_PARTS = {
    "schedule": "what a pipeline is, what a bubble is, drawn so that it can be counted, and what two directions change",
    "partition": "which layers form which stage, what a rank needs, recomputation",
    "performance": "schedules compared: more micro-batches, slower messages",
    "autotune": "the fastest way to train a model on four ranks: schedule, replicas, micro-batches and recomputation",
    "train": "a short training on two ranks; needs torch",
}

PRECISIONS = ("float32", "bfloat16", "float16")

_EMIT_CHOICES = "\n".join(f"  {name:<13} {emitter.what}" for name, emitter in EMITTERS.items())

EXAMPLES = f"""\
examples:
  chimerac tour schedule                              what a bubble is, drawn: one of five parts of a guided tour
  chimerac chimera                                    the streams, for the schedule's own parameters
  chimerac schedules/chimera.sched -p D=8 -p N=16     other sizes
  chimerac chimera --emit timeline                    a drawing in the terminal
  chimerac chimera --emit svg -o chimera.svg          a picture for a paper; also png and pdf; --memory-curve below it
  chimerac dapple -p policy=2 --emit report --cost hop=0.5
  chimerac chimera --width 2 --emit json -o p.json    a program for 2 replicas; torchrun interpreter/run.py runs it
  chimerac gpipe --recompute all --emit report        every stage recomputes; 0,2..3 are some stages, none is no stage
  chimerac p.json --emit report                       read a program, verify it again, report on it
  chimerac p.json --emit timeline-json -o times.json   the simulated times as a file; run.py --timeline measures
  chimerac p.json --measured times.json --emit report   the times of a run beside the predicted ones
  chimerac p.json --for serial                        arrange its transfers for another machine, verify it there
  chimerac chimera -p D=2 --model gpt-small --memory 24GiB   refuse it if a rank would need more memory
  chimerac chimera --emit html -o chimera.html        a file to look at in a browser: zoom, waits, idle time, memory
  chimerac compare chimera 1f1b --emit html -o two.html   two schedules on one axis of time
  chimerac chimera --emit dag -o chimera.dot          the dependency DAG for Graphviz; GraphML otherwise
  chimerac chimera -p D=8 --model bert48 --profile p100 --emit report   times in milliseconds, on P100 GPUs
  chimerac plan --model bert48 --ranks 8 --memory 16GiB --batch 64 --profile p100   how to train on 8 ranks
  chimerac partition chimera --model gpt-small --memory 24GiB   which layers form which stage, memory of each rank
  chimerac compare chimera 1f1b gpipe -p D=4 -p N=8   makespan, bubble, memory and communication side by side
  chimerac compare chimera 1f1b gpipe --emit pdf -o compared.pdf   their timelines on one time axis
  chimerac zb_v -p D=4 --emit torch-csv -o zb.csv     for torch.distributed.pipelining; chimerac zb.csv reads it
  chimerac search chimera_zb --hop 0.1 --time 1 -o best.sched   a faster order for slow links, with a certificate
  chimerac fmt mine.sched                             format in place; with --check only report whether it is formatted
  chimerac explain E303                               what an error code means, a wrong example and its correction

other commands (each has --help):
  tour [PART]        a guided tour, or one of its parts: schedule, partition, performance, autotune, train
  plan --model NAME ...             schedule, D, W, micro-batch size and recomputation for a number of ranks
  partition SCHEDULE --model NAME   the best partition of a model into stages, as a table
  compare [SCHEDULE ...]            schedules side by side for one setting, by default the whole library
  diff A B           what differs between two schedules or programs, and what that does to times and memory
  search SCHEDULE    a better order for the placement of a schedule, with a proved bound
  serve [SCHEDULE]   the playground: a page on this host that compiles a schedule as you type
  watch FILE         the same in the terminal: compile a file again whenever it changes
  fmt FILE ...       format schedules in place; with --check only report whether they are formatted
  explain [CODE ...] explain error codes, each with a wrong example and its correction
  lsp                the language server, which editors start

choices of --emit:
{_EMIT_CHOICES}

exit status: 0; 1 if the schedule or program has findings; 2 if the command line is invalid or a file cannot be read or
written; 130 after Ctrl-C"""


def _output(path: str) -> str | None:
    """Return the path of -o; None for '-', which means stdout."""
    return None if path == "-" else path


def _whole(text: str) -> int:
    """Return the integer of an option. Unlike int(), it accepts only a sign and digits from 0 to 9, without `_`."""
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", text):
        shown = text if len(text) <= 40 else f"{text[:37]}..."
        raise argparse.ArgumentTypeError(f"'{shown}' is not an integer of at most 18 digits")
    return int(text)


def format_parser() -> argparse.ArgumentParser:
    p = Parser("chimerac fmt", description="Format schedules in place. Comments stay.")
    p.add_argument("files", nargs="+", metavar="FILE", help="a .sched file; - formats stdin to stdout")
    p.add_argument("--check", action="store_true", help="write nothing; list unformatted files, with exit status 1")
    return p


def partition_parser() -> argparse.ArgumentParser:
    p = Parser("chimerac partition", description=PARTITION, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.set_defaults(machine=None, arrange=None, partition=None, link=None, costs=())
    _add_schedule(p)
    _add_model(p)
    _add_profile(p)
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
    _add_profile(p)
    _add_link(p)
    p.add_argument("--partition", metavar="PATH", help="the layers of each stage, from chimerac partition -o")
    p.add_argument("--emit", choices=("table", "json", "markdown", "timeline", "html", *PICTURES), default="table",
                   help="what to print, default table; timeline draws all schedules to one scale in the terminal, svg, png and "
                   "pdf as a picture on one time axis, html as a page to look at in a browser")  # fmt: skip
    p.add_argument("--columns", metavar="N", type=_whole, help="width of the timeline, default the terminal's")
    _add_picture_width(p)
    p.add_argument("-o", metavar="PATH", dest="output", type=_output, help="write to a file instead of stdout")
    return p


def diff_parser() -> argparse.ArgumentParser:
    p = Parser("chimerac diff", description=DIFF, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("a", "b"):
        p.add_argument(name, metavar=name.upper(), help="a .sched file, the name of a schedule of the library, a compiled "
                       "program or a .csv of torch.distributed.pipelining; - is stdin")  # fmt: skip
    p.set_defaults(machine=None, arrange=None, memory=None, split=None)
    _add_sizes(p)
    p.add_argument("--cost", metavar="NAME=VALUE", dest="costs", action="append", default=[],
                   help="use this cost of F, B, I, W, R or hop in both; repeatable")  # fmt: skip
    _add_description(p)
    _add_optimizer(p)
    _add_profile(p)
    _add_link(p)
    p.add_argument("--partition", metavar="PATH", help="the layers of each stage, from chimerac partition -o")
    p.add_argument("--all", action="store_true", help="show all instructions that differ, not only the first of each rank")
    p.add_argument("-o", metavar="PATH", dest="output", type=_output, help="write to a file instead of stdout")
    return p


def search_parser() -> argparse.ArgumentParser:
    p = Parser("chimerac search", description=SEARCH, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("schedule", help="a .sched file, the name of a schedule of the library, or a compiled program: its pipes, "
                   "stages and micro-batches are kept, and its order is one to begin with; - is stdin")  # fmt: skip
    p.add_argument(
        "-p", metavar="NAME=VALUE", dest="parameters", action="append", default=[], help="set a parameter; repeatable"
    )
    p.add_argument("--cost", metavar="NAME=VALUE", dest="costs", action="append", default=[],
                   help="use this cost of F, B, I, W or hop for all stages, also a fraction such as 0.5 or 1/3; default: the "
                   "schedule's; repeatable")  # fmt: skip
    p.add_argument("--hop", metavar="VALUE", help="the same as --cost hop=VALUE: the time of a message between ranks")
    p.add_argument("--costs", metavar="PATH", dest="costs_path",
                   help="a JSON file with costs of each stage, links between ranks, activations and limits")  # fmt: skip
    p.add_argument("--limit", metavar="L",
                   help="the most activations that a rank may hold, in the unit of the file's activations; default: as many as "
                   "the schedule itself; with --texts a formula such as D, or none")  # fmt: skip
    backward = p.add_mutually_exclusive_group()
    backward.add_argument("--split", dest="backward", action="store_const", const="split",
                          help="split every backward into I and W; default: as in the schedule")  # fmt: skip
    backward.add_argument("--fused", dest="backward", action="store_const", const="fused", help="split no backward")
    p.add_argument("--time", metavar="SECONDS", help="end after this time, default 60")
    p.add_argument("--seed", metavar="K", type=_whole, default=0, help="of the random numbers, default 0")
    p.add_argument("-o", metavar="PATH", dest="output", type=_output, help="write the schedule to a file instead of stdout")
    p.add_argument("--certificate", metavar="PATH", help="where the certificate goes, default that of -o with .json at its end")
    _add_description(p)
    _add_memory(p)
    _add_profile(p)
    _add_link(p)
    p.add_argument("--partition", metavar="PATH", help="the layers of each stage, from chimerac partition -o")
    p.set_defaults(split=None)
    p.add_argument("--texts", action="store_true",
                   help="search for a text with parameters instead, good at several sizes and hop costs at once")  # fmt: skip
    p.add_argument("--sizes", metavar="SIZE", nargs="+",
                   help="with --texts: the parameters of each size; default D=4,N=16 D=8,N=32")  # fmt: skip
    p.add_argument("--hops", metavar="HOP", nargs="+",
                   help="with --texts: the times of a message, in forwards of the first stage; default 0 0.1 0.5")  # fmt: skip
    p.add_argument("--tries", metavar="K", type=_whole, help="with --texts: the number of texts that are tried, default 300")
    return p


def plan_parser() -> argparse.ArgumentParser:
    p = Parser("chimerac plan", description=PLAN, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("schedules", nargs="*", metavar="SCHEDULE", help="a .sched file, or the name of a schedule of the library; "
                   "default: the whole library")  # fmt: skip
    p.add_argument("--model", metavar="NAME", required=True, help="a model as in run.py, or the path of a description (JSON)")
    p.add_argument("--ranks", metavar="R", type=int, required=True, help="ranks of all replicas together: D x W")
    p.add_argument("--memory", metavar="BYTES", required=True, help="the most that a rank may need: 16GiB, 80GB or a number")
    p.add_argument("--batch", metavar="B", type=int, required=True, help="samples of an iteration, over all replicas")
    _add_profile(p, required=True)
    _add_link(p)
    p.add_argument("-p", metavar="NAME=VALUES", dest="parameters", action="append", default=[],
                   help="values of a parameter that are tried, such as f=1,2 or D=8; repeatable; default 0, 1, 2 and 4, and "
                   "for D all that divide the ranks")  # fmt: skip
    p.add_argument("--micro-batch", metavar="SIZES", help="samples of a micro-batch that are tried, such as 1,2,4; default: "
                   "all that divide the samples of a replica and are within the profile")  # fmt: skip
    p.add_argument("--recompute", choices=("try", "all", "none"), default="try",
                   help="whether all stages recompute; default: both are tried")  # fmt: skip
    p.add_argument("--zero", choices=("auto", "always", "never"), default="auto",
                   help="the copies of a stage share the optimizer's state out (ZeRO, stage 1); default: where a rank would "
                   "not fit otherwise")  # fmt: skip
    p.add_argument("--optimizer", metavar="NAME",
                   help=f"count the state of an optimizer: {', '.join(OPTIMIZERS)}, a number of bytes for each parameter "
                   "of 4 bytes, or none; default: the one that the profile names")  # fmt: skip
    p.add_argument("--processes", metavar="P", type=int, help="that try configurations, default one for each processor")
    p.add_argument("--emit", choices=("table", "json"), default="table", help="what to print, default table")
    p.add_argument("-o", metavar="PATH", dest="output", help="write the plan to a file (YAML) for interpreter/run.py")
    return p


def tour_parser() -> argparse.ArgumentParser:
    parts = "\n".join(f"  {name:<12} {what}" for name, what in TOUR_PARTS.items())
    p = Parser("chimerac tour", description=TOUR, epilog=f"parts:\n{parts}",
               formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    p.add_argument("part", nargs="?", metavar="PART", choices=tuple(TOUR_PARTS), help="one part; without it, all of them")
    p.add_argument("--yes", action="store_true", help="ask nothing: take the first of all choices")
    return p


def serve_parser() -> argparse.ArgumentParser:
    p = Parser("chimerac serve", description=SERVE, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("schedule", nargs="?", metavar="SCHEDULE",
                   help="what the page opens with: a .sched file, or the name of a schedule of the library")  # fmt: skip
    p.add_argument("--port", metavar="N", type=_whole, default=8420, help="default 8420; 0 is any that is free")
    p.add_argument("--no-browser", action="store_true", help="only print the address")
    return p


def watch_parser() -> argparse.ArgumentParser:
    p = Parser("chimerac watch", description=WATCH, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("schedule", metavar="FILE", help="a .sched file, or a compiled program")
    p.set_defaults(list=False, output=None, picture_width=None, memory_curve=False)
    _add_sizes(p)
    _add_compiling(p)
    shown = [name for name, emitter in EMITTERS.items() if emitter.make and name not in (*PICTURES, "html")]
    p.add_argument("--emit", metavar="PRODUCT", choices=shown, default="timeline",
                   help=f"what to print, default timeline; {', '.join(shown)}")  # fmt: skip
    _add_times(p)
    p.add_argument("--columns", metavar="N", type=_whole, help="width of the timeline, default the terminal's")
    _add_ranks(p)
    _add_color(p)
    return p


def explain_parser() -> argparse.ArgumentParser:
    p = Parser("chimerac explain", description="Explain error codes, each with an example and its correction.")
    p.add_argument("codes", nargs="*", metavar="CODE", help="for instance E303; without a code, all are listed")
    return p


def lsp_parser() -> argparse.ArgumentParser:
    p = Parser("chimerac lsp", description=LSP)
    p.add_argument("--stdio", action="store_true", help="over stdin and stdout, which is the default; some editors add it")
    return p


def make_parser() -> argparse.ArgumentParser:
    p = Parser("chimerac", description=DESCRIPTION, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.verbs = (
        tour_parser(),
        plan_parser(),
        partition_parser(),
        compare_parser(),
        diff_parser(),
        search_parser(),
        serve_parser(),
        watch_parser(),
        format_parser(),
        explain_parser(),
        lsp_parser(),
    )
    _add_schedule(p)
    _add_compiling(p)
    p.add_argument("--emit", metavar="PRODUCT", choices=tuple(EMITTERS), default="streams",
                   help="what to print, see the list below; default streams")  # fmt: skip
    p.add_argument("-o", metavar="PATH", dest="output", type=_output, help="write to a file instead of stdout")
    _add_times(p)
    p.add_argument("--columns", metavar="N", type=_whole, help="width of the timeline and of --list, default the terminal's")
    _add_ranks(p)
    _add_picture_width(p)
    p.add_argument("--memory-curve", action="store_true",
                   help="draw below a picture what each rank holds over time: activations, with --model bytes")  # fmt: skip
    _add_color(p)
    p.add_argument("--list", action="store_true", help="list the schedules of the library")
    p.add_argument("--version", action=_Version, nargs=0, help="show the version of chimerac and exit")
    return p


def _add_compiling(p: argparse.ArgumentParser) -> None:
    machine = p.add_mutually_exclusive_group()
    machine.add_argument("--machine", metavar="M", choices=MACHINES,
                         help=f"verify that it ends on this machine: {', '.join(MACHINES)}; default window")  # fmt: skip
    machine.add_argument("--for", metavar="M", dest="arrange", choices=MACHINES,
                         help="the same, with transfers and collectives arranged for this machine")  # fmt: skip


def _add_times(p: argparse.ArgumentParser) -> None:
    p.add_argument("--cost", metavar="NAME=VALUE", dest="costs", action="append", default=[],
                   help="use this cost of F, B, I, W, R or hop, also a fraction such as 0.5 or 1/3; repeatable")  # fmt: skip
    _add_model(p)
    _add_profile(p)
    _add_link(p)
    p.add_argument("--partition", metavar="PATH", help="the layers of each stage, from chimerac partition -o")
    p.add_argument("--measured", metavar="PATH",
                   help="the times of a run, from run.py --timeline PATH: the timeline and the report show them beside the "
                   "predicted ones")  # fmt: skip


def _add_ranks(p: argparse.ArgumentParser) -> None:
    p.add_argument("--ranks", metavar="LIST", help="draw these ranks only, in a timeline or a picture: 0,4..7; default all")


def _add_color(p: argparse.ArgumentParser) -> None:
    p.add_argument("--color", choices=("auto", "always", "never"), default="auto", help="default: only on a terminal")


def _add_profile(p: argparse.ArgumentParser, required: bool = False) -> None:
    p.add_argument("--profile", metavar="NAME", required=required,
                   help="the times of --model on a machine, in the place of costs: a file of python -m "
                   "chimerac.interpreter.profiling, or one that comes with the project, such as p100")  # fmt: skip


def _add_link(p: argparse.ArgumentParser) -> None:
    p.add_argument("--link", metavar="LATENCY,BANDWIDTH",
                   help="a link between two ranks, such as 10us,12GB/s, in the place of the profile's links and "
                   "all-reduces")  # fmt: skip


def _add_picture_width(p: argparse.ArgumentParser) -> None:
    p.add_argument("--picture-width", metavar="LENGTH",
                   help="of a picture, such as 17.8cm or 7in; default: as wide as its numbers need, within limits")  # fmt: skip


def _add_schedule(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "schedule",
        nargs="?",
        help="a .sched file, the name of a schedule of the library, a compiled program, a .csv of "
        "torch.distributed.pipelining; - is stdin",
    )
    _add_sizes(p)


def _add_sizes(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "-p", metavar="NAME=VALUE", dest="parameters", action="append", default=[], help="set a parameter; repeatable"
    )
    p.add_argument("--width", metavar="W", type=_whole, help="data-parallel replicas, default 1")
    p.add_argument("--recompute", metavar="STAGES",
                   help="the stages that keep only their inputs and run their forwards again before their backwards: all, "
                   "none, or a list such as 0,2..5; default: as the schedule says")  # fmt: skip


def _add_description(p: argparse.ArgumentParser) -> None:
    p.add_argument("--model", metavar="NAME",
                   help="a model as in run.py, such as gpt-small or gpt-small/6, or the path of a description (JSON): "
                   "bytes per rank in the report, a partition in the program")  # fmt: skip
    p.add_argument("--micro-batch", metavar="b", type=_whole, help="samples of a micro-batch, default 4; for a --model by name")
    p.add_argument("--seq-len", metavar="L", type=_whole, help="tokens of a sample, default the model's; for a --model by name")
    p.add_argument("--precision", choices=PRECISIONS, default="float32",
                   help="of weights, gradients, activations and messages of --model, default float32; in the others the "
                   "optimizer keeps float32 weights and state, too")  # fmt: skip


def _add_model(p: argparse.ArgumentParser) -> None:
    _add_description(p)
    _add_memory(p)
    p.add_argument("--split", metavar="n,n,...", help="the number of layers of each stage of --model")


def _add_memory(p: argparse.ArgumentParser) -> None:
    p.add_argument("--memory", metavar="BYTES", help="the most that a rank may need for --model: 24GiB, 80GB or a number")
    _add_optimizer(p)


def _add_optimizer(p: argparse.ArgumentParser) -> None:
    p.add_argument("--optimizer", metavar="NAME",
                   help=f"count the state of an optimizer: {', '.join(OPTIMIZERS)}, a number of bytes for each parameter "
                   "of 4 bytes, or none (the default; with --profile, the one that the profile names)")  # fmt: skip
    p.add_argument("--zero", action="store_true", help="the ranks with a copy of a stage share the optimizer's state (ZeRO-1)")


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
