"""The command line of chimerac without a verb: its options and its help, which names the verbs."""

from __future__ import annotations

import argparse
from typing import NoReturn

from chimerac.chimera_ir.arguments import Parser
from chimerac.compiler.command import options as shared
from chimerac.compiler.command import verbs
from chimerac.compiler.command.emit import EMITTERS

DESCRIPTION = """\
Compile a pipeline schedule: a small text becomes a dependency DAG, is lowered to one stream of instructions per rank
(FWD, BWD, SEND, RECV, ALLREDUCE, ...), and is verified. Nothing is printed unless the program is verified."""

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
  chimerac p.json --emit timeline-json -o times.json   the simulated times; run.py --timeline PATH writes measured ones
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


def make_parser() -> argparse.ArgumentParser:
    p = Parser("chimerac", description=DESCRIPTION, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.verbs = (
        verbs.tour_parser(),
        verbs.plan_parser(),
        verbs.partition_parser(),
        verbs.compare_parser(),
        verbs.diff_parser(),
        verbs.search_parser(),
        verbs.serve_parser(),
        verbs.watch_parser(),
        verbs.format_parser(),
        verbs.explain_parser(),
        verbs.lsp_parser(),
    )
    shared.add_schedule(p)
    shared.add_compiling(p)
    p.add_argument("--emit", metavar="PRODUCT", choices=tuple(EMITTERS), default="streams",
                   help="what to print, see the list below; default streams")  # fmt: skip
    shared.add_output(p)
    shared.add_times(p)
    shared.add_columns(p, "the timeline and of --list")
    shared.add_ranks(p)
    shared.add_picture_width(p)
    p.add_argument("--memory-curve", action="store_true",
                   help="draw below a picture what each rank holds over time: activations, with --model bytes")  # fmt: skip
    shared.add_color(p)
    p.add_argument("--list", action="store_true", help="list the schedules of the library")
    p.add_argument("--version", action=_Version, nargs=0, help="show the version of chimerac and exit")
    return p


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
