"""The verbs of the command: the options and the help of each.

Functions that several verbs share read the attributes of options that not every verb has. A parser sets those that its verb
lacks and that such a function needs (`set_defaults`).
"""

from __future__ import annotations

import argparse

from chimerac.chimera_ir.arguments import Parser
from chimerac.chimera_ir.optimizers import OPTIMIZERS
from chimerac.compiler.command import options as shared
from chimerac.compiler.command.emit import EMITTERS
from chimerac.compiler.command.pictures import PICTURES

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
the same order and equal headers (such as sizes, placements and limits), 1 if they differ, 2 for an error. The names of
schedules and pipes, parameters, costs and partitions do not count as differences."""

SEARCH = """\
Search for an order of the tasks of a schedule's placement with a smaller makespan, for given costs, links and limits. List
scheduling comes first, then simulated annealing and, on small cases, a solver, until the time is over or the bound is reached.
The result is a schedule (order listing) and, with -o or --certificate, a certificate of its bound.
Needs: pip install 'chimerac[search]'
With --texts the search is for a text with parameters, whose order is made by rules; it needs no extra packages."""

PLAN = """\
Choose how to train a model on a number of ranks: schedule, ranks of a replica (D), replicas (W), parameters of the
schedule, micro-batch size, recomputation and ZeRO-1. Configurations that do not fit into memory, or cannot be the fastest,
are dropped. The programs of the others are compiled and simulated, and the fastest is taken. With -o it is written to a
file for interpreter/run.py."""

TOUR = """\
A guided tour in five parts, with explanations and choices. It begins with what a pipeline is and what a bubble is.
Without a terminal, and with --yes, it asks nothing."""

SERVE = """\
Open the playground, a page on this host: an editor for a schedule's text with its timeline beside it, compiled as you type.
Errors are underlined in place, parameters and costs are sliders, and products of --emit can be downloaded. Only this host
can reach it, at an address with a random token. A compilation has limits of time and memory. Ctrl-C ends it."""

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


def format_parser() -> argparse.ArgumentParser:
    p = Parser("chimerac fmt", description="Format schedules in place. Comments stay.")
    p.add_argument("files", nargs="+", metavar="FILE", help="a .sched file; - formats stdin to stdout")
    p.add_argument("--check", action="store_true", help="write nothing; list unformatted files, with exit status 1")
    return p


def partition_parser() -> argparse.ArgumentParser:
    p = Parser("chimerac partition", description=PARTITION, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.set_defaults(machine=None, arrange=None, partition=None, link=None, costs=())
    shared.add_schedule(p)
    shared.add_model(p)
    shared.add_profile(p)
    p.add_argument(
        "-o", metavar="PATH", dest="output", type=shared.output_path, help="write the partition to a file, for --partition"
    )
    return p


def compare_parser() -> argparse.ArgumentParser:
    p = Parser("chimerac compare", description=COMPARE, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("schedules", nargs="*", metavar="SCHEDULE", help="a .sched file, or the name of a schedule of the library")
    shared.add_sizes(p)
    p.add_argument("--cost", metavar="NAME=VALUE", dest="costs", action="append", default=[],
                   help="the cost of F, B, I, W or R of the share of one rank, or of a hop; default F=1, I=1, W=1, B=I+W, R=F, "
                   "hop=0; repeatable")  # fmt: skip
    shared.add_model(p)
    shared.add_profile(p)
    shared.add_link(p)
    shared.add_partition(p)
    p.add_argument("--emit", choices=("table", "json", "markdown", "timeline", "html", *PICTURES), default="table",
                   help="what to print, default table; timeline draws all schedules to one scale in the terminal, svg, png and "
                   "pdf as a picture on one time axis, html as a page to look at in a browser")  # fmt: skip
    shared.add_columns(p, "the timeline")
    shared.add_picture_width(p)
    shared.add_color(p)
    shared.add_output(p)
    return p


def diff_parser() -> argparse.ArgumentParser:
    p = Parser("chimerac diff", description=DIFF, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("a", "b"):
        p.add_argument(name, metavar=name.upper(), help="a .sched file, the name of a schedule of the library, a compiled "
                       "program or a .csv of torch.distributed.pipelining; - is stdin")  # fmt: skip
    p.set_defaults(machine=None, arrange=None, memory=None, split=None)
    shared.add_sizes(p)
    p.add_argument("--cost", metavar="NAME=VALUE", dest="costs", action="append", default=[],
                   help="use this cost of F, B, I, W, R or hop in both; repeatable")  # fmt: skip
    shared.add_description(p)
    shared.add_optimizer(p)
    shared.add_profile(p)
    shared.add_link(p)
    shared.add_partition(p)
    p.add_argument("--all", action="store_true",
                   help="show all instructions that differ, not only the first few of each kind on each rank")  # fmt: skip
    shared.add_output(p)
    return p


def search_parser() -> argparse.ArgumentParser:
    p = Parser("chimerac search", description=SEARCH, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("schedule", help="a .sched file, the name of a schedule of the library, or a compiled program: its pipes, "
                   "stages and micro-batches are kept, and its order is one to begin with; - is stdin")  # fmt: skip
    shared.add_parameters(p)
    p.add_argument("--cost", metavar="NAME=VALUE", dest="costs", action="append", default=[],
                   help="use this cost of F, B, I, W or hop for all stages, also a fraction such as 0.5 or 1/3; repeatable; "
                   "default: those of --costs, else the schedule's; but if only B is given, I and W are half of it, and if "
                   "only I or W is given, B is I + W")  # fmt: skip
    p.add_argument("--hop", metavar="VALUE", help="the same as --cost hop=VALUE: the time of a message between ranks")
    p.add_argument("--costs", metavar="PATH", dest="costs_path",
                   help="a JSON file with costs of each stage, links between ranks, activations and limits")  # fmt: skip
    p.add_argument("--limit", metavar="L",
                   help="the most activations that a rank may hold, in the unit of those in the file of --costs; default: the "
                   "limits in that file, or else the most that a rank of the schedule holds; with --texts a formula such as "
                   "D, or none for no limit; default there: the schedule's own, or D")  # fmt: skip
    backward = p.add_mutually_exclusive_group()
    backward.add_argument("--split", dest="backward", action="store_const", const="split",
                          help="split every backward into I and W; default: if the schedule splits any")  # fmt: skip
    backward.add_argument("--fused", dest="backward", action="store_const", const="fused", help="split no backward")
    p.add_argument("--objective", choices=("makespan", "memory"), default="makespan",
                   help="what shall be as small as possible: the makespan, or what the rank that holds most has to hold; "
                   "default makespan")  # fmt: skip
    p.add_argument("--makespan", metavar="VALUE",
                   help="with --objective memory: the most that an order may take, in the unit of the costs, or in ms with "
                   "--profile; default: as long as the given order")  # fmt: skip
    p.add_argument("--time", metavar="SECONDS", help="end a search after this time, default 60; with --memory it may be "
                   "repeated up to three times")  # fmt: skip
    p.add_argument("--placements", action="store_true",
                   help="also try other placements, with as many stages of each pipe on each rank, in two fifths of the "
                   "time; useful where stages or links are uneven")  # fmt: skip
    p.add_argument("--seed", metavar="K", type=shared.integer_option, default=0, help="of the random numbers, default 0")
    shared.add_output(p, "write the schedule to a file instead of stdout")
    p.add_argument("--certificate", metavar="PATH", type=shared.output_path,
                   help="where the certificate goes; - is stdout, with -o; default: the path of -o, with .json in the place of "
                   ".sched, and without -o no certificate")  # fmt: skip
    shared.add_description(p)
    shared.add_memory(p)
    shared.add_profile(p)
    shared.add_link(p)
    shared.add_partition(p)
    p.set_defaults(split=None)  # the --split of `shared.add_model`; the one above sets `backward`
    p.add_argument("--texts", action="store_true",
                   help="search for a text with parameters instead, good at several sizes and hop costs at once")  # fmt: skip
    p.add_argument("--sizes", metavar="SIZE", nargs="+",
                   help="with --texts: the parameters of each size; default D=4,N=16 D=8,N=32")  # fmt: skip
    p.add_argument("--hops", metavar="HOP", nargs="+",
                   help="with --texts: the times of a message, in forwards of the first stage; default 0 0.1 0.5")  # fmt: skip
    p.add_argument(
        "--tries", metavar="K", type=shared.integer_option, help="with --texts: the most texts that are tried, default 300"
    )
    return p


def plan_parser() -> argparse.ArgumentParser:
    p = Parser("chimerac plan", description=PLAN, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("schedules", nargs="*", metavar="SCHEDULE", help="a .sched file, or the name of a schedule of the library; "
                   "default: the whole library")  # fmt: skip
    p.add_argument("--model", metavar="NAME", required=True, help="a model as in run.py, or the path of a description (JSON)")
    p.add_argument("--ranks", metavar="R", type=int, required=True, help="ranks of all replicas together: D x W")
    p.add_argument("--memory", metavar="BYTES", required=True, help="the most that a rank may need: 16GiB, 80GB or a number")
    p.add_argument("--batch", metavar="B", type=int, required=True, help="samples of an iteration, over all replicas")
    shared.add_profiles(p)
    shared.add_link(p)
    p.add_argument("-p", metavar="NAME=VALUES", dest="parameters", action="append", default=[],
                   help="values of a parameter that are tried, such as f=1,2 or D=8; repeatable; default 0, 1, 2 and 4, for D "
                   "all that divide the ranks, and the schedule's own for a parameter that only `recompute` uses")  # fmt: skip
    p.add_argument("--micro-batch", metavar="SIZES", help="samples of a micro-batch that are tried, such as 1,2,4; default: "
                   "all that divide the samples of a replica and are within the profile")  # fmt: skip
    p.add_argument("--recompute", choices=("try", "all", "none"), default="try",
                   help="whether all stages recompute; default: both are tried")  # fmt: skip
    p.add_argument("--zero", choices=("auto", "always", "never"), default="auto",
                   help="the ranks with a copy of a stage share the optimizer's state (ZeRO-1); default: where a rank would "
                   "not fit otherwise")  # fmt: skip
    p.add_argument("--optimizer", metavar="NAME",
                   help=f"count the state of an optimizer: {', '.join(OPTIMIZERS)}, a number of bytes for each float32 "
                   "parameter, or none; default: the one that the profile names")  # fmt: skip
    p.add_argument("--processes", metavar="P", type=int, help="that try configurations, default one for each processor")
    p.add_argument("--emit", choices=("table", "json"), default="table", help="what to print, default table")
    p.add_argument("-o", metavar="PATH", dest="output", type=shared.output_path,
                   help="write the plan to a file (YAML) for interpreter/run.py")  # fmt: skip
    return p


def tour_parser() -> argparse.ArgumentParser:
    parts = "\n".join(f"  {name:<12} {what}" for name, what in TOUR_PARTS.items())
    p = Parser("chimerac tour", description=TOUR, epilog=f"parts:\n{parts}",
               formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    p.add_argument("part", nargs="?", metavar="PART", choices=tuple(TOUR_PARTS), help="one part; without it, all of them")
    p.add_argument("--yes", action="store_true", help="ask nothing: take the first choice of every question")
    return p


def serve_parser() -> argparse.ArgumentParser:
    p = Parser("chimerac serve", description=SERVE, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("schedule", nargs="?", metavar="SCHEDULE",
                   help="what the page opens with: a .sched file, or the name of a schedule of the library")  # fmt: skip
    p.add_argument("--port", metavar="N", type=shared.integer_option, default=8420, help="default 8420; 0 is any that is free")
    p.add_argument("--no-browser", action="store_true", help="only print the address")
    return p


def watch_parser() -> argparse.ArgumentParser:
    p = Parser("chimerac watch", description=WATCH, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("schedule", metavar="FILE", help="a .sched file, or a compiled program")
    p.set_defaults(list=False, output=None, picture_width=None, memory_curve=False)
    shared.add_sizes(p)
    shared.add_compiling(p)
    shown = [name for name, emitter in EMITTERS.items() if emitter.make and name not in (*PICTURES, "html")]
    p.add_argument("--emit", metavar="PRODUCT", choices=shown, default="timeline",
                   help=f"what to print, default timeline; {', '.join(shown)}")  # fmt: skip
    shared.add_times(p)
    shared.add_columns(p, "the timeline")
    shared.add_ranks(p)
    shared.add_color(p)
    return p


def explain_parser() -> argparse.ArgumentParser:
    p = Parser("chimerac explain", description="Explain error codes, each with an example and its correction.")
    p.add_argument("codes", nargs="*", metavar="CODE", help="for instance E303; without a code, all are listed")
    return p


def lsp_parser() -> argparse.ArgumentParser:
    p = Parser("chimerac lsp", description=LSP)
    p.add_argument("--stdio", action="store_true", help="over stdin and stdout, which is the default; some editors add it")
    return p
