"""`chimerac search`: a fast order of a schedule's tasks, with a proved bound, or a text that is good at several sizes."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Sequence
from contextlib import suppress
from fractions import Fraction
from importlib.util import find_spec
from typing import TYPE_CHECKING

from chimerac.chimera_ir.diagnostics import ChimeraError, Source, refuse
from chimerac.chimera_ir.files import check_folder, write_stderr
from chimerac.chimera_ir.forms import is_program, read_program
from chimerac.chimera_ir.profile import Profile
from chimerac.chimera_ir.program import Program
from chimerac.compiler.command.files import check_inputs_not_overwritten, print_findings, stdin, write_product
from chimerac.compiler.command.interrupts import interrupts_deferred
from chimerac.compiler.command.modelled import check_model_options, model_for, profile_of, with_partition
from chimerac.compiler.command.options import path_or_stdout
from chimerac.compiler.command.search_given import SPLIT, given_for, milliseconds
from chimerac.compiler.command.search_memory import SearchMemory
from chimerac.compiler.command.search_progress import figure
from chimerac.compiler.command.values import integer, named_values, parameters_of
from chimerac.compiler.command.verbs import search_parser
from chimerac.compiler.given import cost_from_text
from chimerac.compiler.library import find
from chimerac.compiler.pipeline import compile_source, verify_program

if TYPE_CHECKING:
    from chimerac.compiler.search.texts import EvaluatedText

MOST_SECONDS = 7 * 24 * 3600  # the largest value of --time
SEEDS = 2**31  # the number of values of --seed
SIZES, HOPS, TRIES = ("D=4,N=16", "D=8,N=32"), ("0", "0.1", "0.5"), 300  # the defaults of --sizes, --hops and --tries
MOST_HOP = 1000  # the largest value of --hops, and the largest denominator of a value
# Options that only a search for a text has, by their attributes.
OF_TEXTS = ("sizes", "hops", "tries")
# Options that only a search for an order has, by their attributes, with their defaults.
OF_ORDERS: dict[str, object] = {
    "parameters": [], "costs": [], "hop": None, "costs_path": None, "backward": None, "time": None, "certificate": None,
    "model": None, "profile": None, "memory": None, "optimizer": None, "zero": False, "precision": "float32",
    "placements": False, "micro_batch": None, "seq_len": None, "partition": None, "link": None, "objective": "makespan",
    "makespan": None,
}  # fmt: skip
# What a message calls an option that does not have the name of its attribute.
OPTIONS = {"parameters": "-p", "costs": "--cost", "costs_path": "--costs", "backward": "--split or --fused"}


def run(argv: Sequence[str]) -> int:
    """Search, write the result, and return the exit status; 130 after Ctrl-C, where the result is the best so far."""
    options = search_parser().parse_args(argv)
    try:
        if not 0 <= options.seed < SEEDS:
            raise refuse("E002", f"--seed {options.seed}: expected a number from 0 to {SEEDS - 1}")
        return _search_texts(options) if options.texts else _search_orders(options)
    except ChimeraError as error:
        return print_findings(error)


def _search_texts(options: argparse.Namespace) -> int:
    """Search for a text, and write it; return the exit status."""
    from chimerac.compiler.search import texts  # start-up: 90 ms

    for name, default in OF_ORDERS.items():
        if getattr(options, name) != default:
            option = OPTIONS.get(name, f"--{name.replace('_', '-')}")
            help = "leave it out; with --texts, --sizes and --hops take the place of -p and --hop"
            raise refuse("E002", f"{option} is for a search of orders, not with --texts", help=help)
    tries = TRIES if options.tries is None else options.tries
    if tries < 1:
        raise refuse("E002", f"--tries {tries}: expected 1 or more")
    hops, sizes = [_hop(x) for x in options.hops or HOPS], [_size(x) for x in options.sizes or SIZES]
    source = _source(options)
    check_folder(options.output)
    limit = "" if options.limit == "none" else options.limit
    found, points = texts.search(source, sizes, hops, limit, tries, options.seed, _print_score)
    write_product(texts.result_text(found, points, hops), options.output)
    return _ended(found.is_interrupted)


def _print_score(found: EvaluatedText) -> None:
    write_stderr(f"mean of makespan / bound: {found.score:.4f}\n")


def _size(text: str) -> dict[str, int]:
    """Return the parameters of one value of --sizes, such as D=4,N=16. Raises ChimeraError E002."""
    return {name: integer(name, value, "--sizes") for name, value in named_values("--sizes", text.split(","), "D").items()}


def _hop(text: str) -> Fraction:
    """Return one value of --hops. Raises ChimeraError E002."""
    value = cost_from_text("hop", text, "--hops")
    if value > MOST_HOP or value.denominator > MOST_HOP:
        raise refuse("E002", f"--hops {text}: expected 0 to {MOST_HOP}, in parts of at least 1/{MOST_HOP}")
    return value


def _source(options: argparse.Namespace) -> Source:
    """Return the text of the schedule. Raises ChimeraError: E001 if it cannot be read, E002 if -o would write over an input."""
    source = stdin() if options.schedule == "-" else find(options.schedule)
    check_inputs_not_overwritten(options.output, [source], options)
    return source


def _search_orders(options: argparse.Namespace) -> int:
    """Search for an order, and write its schedule and, if it has a path, its certificate; return the exit status."""
    for name in OF_TEXTS:
        if getattr(options, name) is not None:
            raise refuse("E002", f"--{name} is for a search of texts: give --texts, too")
    seconds = _seconds("60" if options.time is None else options.time)
    certificate_path = _check_paths(options)
    check_model_options(options)
    _check_memory_options(options)
    profile = profile_of(options)
    if missing := [name for name in ("numba", "ortools") if find_spec(name) is None]:
        message = f"chimerac search needs packages that are not installed: {', '.join(missing)}"
        raise refuse("E002", message, help="pip install 'chimerac[search]'")
    program, statements = _placement(options)
    if options.model is not None:
        program = _with_partition(program, profile, options)
    given = given_for(program, profile, options)
    memory = SearchMemory.of(program, profile, options, SPLIT[options.backward])
    with interrupts_deferred():
        from chimerac.compiler.command.search_orders import OrderSearch  # start-up: 1300 ms for numba and OR-tools
        from chimerac.compiler.search.orders import compile_loops  # start-up: these 1300 ms, too

        compile_loops()
    found = OrderSearch(program, statements, given, profile, memory, options).run(seconds)
    write_product(found.text, options.output)
    if certificate_path is not None:
        write_product(found.certificate, path_or_stdout(certificate_path))
    write_stderr("".join(f"{line}\n" for line in (*found.lines, *found.hints)))
    if profile is not None:
        before, after = (milliseconds(x, profile, options) for x in (program, found.program))
        times = f"{figure(after)} ms, the given schedule {figure(before)} ms"
        if memory is not None and not memory.fits(program):
            times += ", but it needs more than the bytes of --memory"
        write_stderr(f"simulated with busy links and all-reduces: {times}\n")
    if options.output is not None and certificate_path not in (None, "-"):
        check = ["python", "-m", "chimerac.compiler.search.check", certificate_path, options.output]
        write_stderr(f"wrote {options.output} and {certificate_path}; check them with:\n  {shlex.join(check)}\n")
    return _ended(found.state.is_interrupted)


def _ended(is_interrupted: bool) -> int:
    """Return the exit status; after Ctrl-C say that the result is the best so far."""
    if is_interrupted:
        write_stderr("interrupted: the best so far\n")
    return 130 if is_interrupted else 0


def _seconds(text: str) -> float:
    with suppress(ValueError):
        if 0 < (seconds := float(text)) <= MOST_SECONDS:
            return seconds
    raise refuse("E002", f"--time {text}: expected seconds, more than 0 and at most {MOST_SECONDS}")


def _check_paths(options: argparse.Namespace) -> str | None:
    """Return the path of the certificate: '-' for stdout, None where none is written.

    Raises ChimeraError: E002 if two of the inputs and the two outputs have the same path, or if both outputs go to stdout; E003
    if the folder of an output does not exist.
    """
    path: str | None = options.certificate
    if path is None and options.output is not None:
        path = f"{options.output.removesuffix('.sched')}.json"
    # A schedule, a model and a profile may be given by names that are no files. An output may have such a name.
    inputs = (options.schedule, options.costs_path, options.partition, options.model, options.profile)
    files = [name for name in inputs if name is not None and os.path.exists(name)]
    named = [*files, *(name for name in (options.output, path) if name not in (None, "-"))]
    if path == "-" and options.output is None:
        raise refuse("E002", "--certificate -: stdout gets the schedule", help="give -o PATH for the schedule")
    paths = [os.path.realpath(name) for name in named]
    for k, name in enumerate(named):
        if paths[k] in paths[:k]:
            help = "give the inputs, -o and --certificate different paths; without --certificate, the certificate gets the "
            help += "path of -o, with .json"
            raise refuse("E002", f"{name} is named twice", help=help)
    for output in (options.output, path):
        check_folder(output)
    return path


def _placement(options: argparse.Namespace) -> tuple[Program, list[str]]:
    """Return the given schedule as a verified program, and the statements that the found one repeats: sync, tied and size.

    Raises ChimeraError with the findings about the schedule, and E002 for -p with a compiled program.
    """
    source = _source(options)
    parameters = parameters_of(options.parameters)
    sync = "eager"  # of a found schedule if a compiled program is given, which does not name its policy
    if is_program(source):
        if parameters:
            raise refuse("E002", "a compiled program is fixed; -p is for schedules")
        program = verify_program(read_program(source))
    else:
        compiled = compile_source(source, parameters)
        program, sync = compiled.program, compiled.spec.sync
    h = program.header
    statements = [f"sync {sync}", *(f"tied {t.name} on stages {', '.join(map(str, t.stages))}" for t in h.tied)]
    if h.micro_batch_size != (1, 1):
        statements.append(f"size {h.micro_batch_size[0]}/{h.micro_batch_size[1]}")
    return program, statements


def _check_memory_options(options: argparse.Namespace) -> None:
    """Raise ChimeraError E002 for options about memory that lack another option or exclude each other.

    A search counts bytes with --memory, and with --model if --objective is memory. Where it counts none, --optimizer and --zero
    are refused, and so is --model without --profile. Where it counts them, --limit is refused. --makespan is refused without
    --objective memory, and --placements with it.
    """
    is_objective = options.objective == "memory"
    if options.makespan is not None and not is_objective:
        raise refuse("E002", "--makespan is for --objective memory: give it, too")
    if options.placements and is_objective:
        raise refuse("E002", "--placements looks for the placement with the least makespan: leave out --objective memory")
    counts_bytes = options.memory is not None or (is_objective and options.model is not None)
    if not counts_bytes:
        if options.optimizer is not None or options.zero:
            option = "--zero" if options.zero else "--optimizer"
            more = ", or --model, whose bytes are then counted" if is_objective else ""
            raise refuse("E002", f"{option} is for --memory: give it, too{more}")
        if options.model is not None and options.profile is None:
            raise refuse("E002", "--model alone changes nothing in a search: give --profile NAME, too, or --memory")
    elif options.limit is not None:
        option = "--model" if options.memory is None else "--memory"
        raise refuse("E002", f"{option} makes the search count bytes, and --limit counts activations: give one of them")


def _with_partition(program: Program, profile: Profile | None, options: argparse.Namespace) -> Program:
    """Return the program with a partition of --model.

    Raises ChimeraError: E002 for --hop or --costs beside a profile, which has its own times of tasks and messages; others as
    `model_for` and `with_partition`.
    """
    if profile is not None and options.hop is not None:
        raise refuse("E002", "--profile and --hop both say how long messages take: give one of them")
    if profile is not None and options.costs_path is not None:
        raise refuse("E002", "the file of --costs is not read with --profile, which gives all times: give one of them")
    model = model_for(program, options, profile)
    assert model is not None, "--model is given"
    return with_partition(program, model, options)
