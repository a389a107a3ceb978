"""`chimerac SCHEDULE`: compile a schedule, or verify a compiled program, and print a product of it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NoReturn

from chimerac.chimera_ir.diagnostics import ChimeraError, refuse
from chimerac.chimera_ir.files import read
from chimerac.chimera_ir.forms import is_program, read_program
from chimerac.chimera_ir.program import Machine, Program
from chimerac.chimera_ir.timeline import Timeline
from chimerac.compiler.command.emit import EMITTERS, EmitOptions, Emitter, check_output, readers
from chimerac.compiler.command.files import (
    check_columns,
    check_inputs_not_overwritten,
    coloured,
    columns,
    print_findings,
    stdin,
    write_product,
)
from chimerac.compiler.command.find_schedule import find_schedule
from chimerac.compiler.command.modelled import check_model_options, durations_for, model_for, profile_of, with_partition
from chimerac.compiler.command.pictures import PICTURES, inches, ranks_of
from chimerac.compiler.command.usage import make_parser
from chimerac.compiler.command.values import costs_of, number_of_bytes, parameters_of, state_of, without_parameters
from chimerac.compiler.exchange import is_torch_csv
from chimerac.compiler.given import StageChoice, stage_choice
from chimerac.compiler.library import library_table
from chimerac.compiler.lower.relower import arranged
from chimerac.compiler.order.ordered import Ordered
from chimerac.compiler.pipeline import Compiled, compile_source, verify_program
from chimerac.compiler.verify import findings, is_about_order


def run(argv: Sequence[str], verbs: Collection[str]) -> int:
    """Write the product of a command line, and return the exit status.

    Args:
        verbs: suggested if the name of the schedule is similar to one.
    """
    parser = make_parser()
    options, rest = parser.parse_known_args(argv)
    try:
        if rest:
            _refuse_rest(rest, options, parser, verbs)
        write_product(product(options, parser, verbs, argv), options.output)
    except ChimeraError as error:
        return print_findings(error, options.color)
    return 0


def _refuse_rest(
    rest: Sequence[str], options: argparse.Namespace, parser: argparse.ArgumentParser, verbs: Collection[str]
) -> NoReturn:
    """Refuse the arguments that the command line does not know, by the likeliest cause."""
    parameters_of(options.parameters)  # refuses `-p D 4`, where 4 is the rest
    if options.schedule is not None and options.schedule != "-":
        find_schedule(options.schedule, verbs, rest)  # refuses `explian E303`, a misspelt verb
    if options.schedule not in (None, "-") and not rest[0].startswith("-"):
        advice = f"; one schedule is expected; chimerac compare {options.schedule} {rest[0]} compares two"
    else:
        advice = ""
    parser.error(f"unrecognized arguments: {' '.join(rest)}{advice}")


def product(
    options: argparse.Namespace, parser: argparse.ArgumentParser, verbs: Collection[str], argv: Sequence[str] = ()
) -> str | bytes:
    """Return the product of a command line. Raises ChimeraError for findings, and SystemExit if a schedule is missing.

    Args:
        verbs: suggested if the name of the schedule is similar to one.
        argv: the words of the command line, which the page of the viewer shows without -p and its values.
    """
    width, emitter = columns(options.columns, options.output), EMITTERS[options.emit]
    if options.list:
        return library_table(width)
    if emitter.make is None:
        assert emitter.make_alone is not None, "an emitter has `make` or `make_alone`"
        return emitter.make_alone()
    if options.schedule is None:
        parser.error("give a schedule, for instance: chimerac chimera; or --list")
    if options.columns is not None:
        check_columns(options.columns, "--columns" in emitter.reads, f"--list and {readers('--columns')}")
    parameters = parameters_of(options.parameters)
    costs = costs_of(options.costs)
    check_output(options.emit, options.output)
    picture_inches = inches(options.picture_width)
    check_model_options(options)
    _check_is_read(options, emitter)
    profile = profile_of(options)
    state = state_of(options.optimizer, options.zero, options.precision, profile)
    memory_bytes = None if options.memory is None else number_of_bytes(options.memory)
    opened = program_of(options, parameters, verbs)
    program = opened.program
    model = model_for(program, options, profile)
    if model is not None:
        program = with_partition(program, model, options)
    if model is not None and memory_bytes is not None:
        from chimerac.compiler.analyze.memory import check_memory  # start-up: 3 ms, for this option only

        check_memory(program, model, memory_bytes, opened.recomputing, state)
    durations = durations_for(program, model, profile, options)
    colour = coloured(options.color, sys.stdout) and not options.output
    emit_options = EmitOptions(
        costs=costs,
        durations=durations,
        model=model,
        state=state,
        output=options.output,
        columns=width,
        colour=colour,
        ranks=ranks_of(options.ranks, program.world),
        inches=picture_inches,
        memory_curve=options.memory_curve,
        measured=None if options.measured is None else _measured(options.measured, program),
        name=options.schedule,
        command=("chimerac", *without_parameters(argv)),
        ordered=opened.ordered,
    )
    return emitter.make(program, emit_options)


def _check_is_read(options: argparse.Namespace, emitter: Emitter) -> None:
    """Raise ChimeraError E002 for an option that neither the emitter nor another given option reads.

    --memory reads --model and --optimizer, and --profile reads --model. A picture reads --model only with --memory-curve.
    """
    values = {"--ranks": options.ranks, "--picture-width": options.picture_width}
    values |= {"--memory-curve": options.memory_curve or None, "--profile": options.profile, "--measured": options.measured}
    for option, given in values.items():
        if given is not None and option not in emitter.reads:
            raise refuse("E002", f"{option} is for {readers(option)}")
    if options.model and "--model" not in emitter.reads and options.memory is None and options.profile is None:
        raise refuse("E002", f"--model is for --memory and --profile, and for {readers('--model')}")
    if options.model and options.emit in PICTURES and not (options.memory_curve or options.profile or options.memory):
        message = "--model changes a picture only with --memory-curve or --profile"
        raise refuse("E002", message, help="give --memory-curve: bytes of each rank over time")
    counts_state = "--optimizer" in emitter.reads and options.model
    if options.optimizer not in (None, "none") and options.memory is None and not counts_state:
        raise refuse("E002", f"--optimizer is for --memory, and for {readers('--optimizer')} with --model")
    if options.costs and "--cost" not in emitter.reads:
        raise refuse("E002", f"--cost is for {readers('--cost')}; a schedule's own costs are written in its text")


def _measured(path: str, program: Program) -> Timeline:
    """Return the timeline of --measured: a bar for every row of the program, in their order.

    Raises ChimeraError E001, E611 to E614.
    """
    from chimerac.chimera_ir.timeline_form import timeline_from_json  # start-up: 2 ms, for this option only

    return timeline_from_json(read(path), path).of(program)


@dataclass(frozen=True, slots=True)
class Opened:
    """The verified program of a command line.

    Attributes:
        ordered: the tasks of a schedule in order.
        recomputing: compiles the schedule with recomputation on all stages.

    Both are None for a program that was not compiled from a schedule.
    """

    program: Program
    ordered: Ordered | None = None
    recomputing: Callable[[], Program] | None = None


def program_of(options: argparse.Namespace, parameters: dict[str, int], verbs: Collection[str]) -> Opened:
    """Return the verified program of the schedule, the compiled program or torch's CSV file that the options name.

    Args:
        verbs: suggested if the name of the schedule is similar to one.

    Raises ChimeraError.
    """
    source = stdin() if options.schedule == "-" else find_schedule(options.schedule, verbs)
    check_inputs_not_overwritten(options.output, [source], options)
    machine: Machine = options.arrange or options.machine or "window"
    width = 1 if options.width is None else options.width
    if is_torch_csv(source):
        if parameters or options.recompute is not None:
            raise refuse("E002", f"{source.name} has no parameters, and its stages are fixed: leave out -p and --recompute")
        from chimerac.compiler.exchange.torch_csv import program_from_csv  # start-up: 2 ms, for such a file only

        return Opened(program_from_csv(source, width, machine, options.arrange is not None))
    if not is_program(source):

        def compiled(recompute: StageChoice | None) -> Compiled:
            return compile_source(source, parameters, width, machine, options.arrange is not None, recompute)

        found = compiled(None if options.recompute is None else stage_choice(options.recompute))
        return Opened(found.program, found.ordered, lambda: compiled(stage_choice("all")).program)
    if parameters or options.width is not None or options.recompute is not None:
        raise refuse("E002", "a compiled program is fixed; -p, --width and --recompute are for schedules")
    program = read_program(source)
    if options.machine:
        program = program.with_header(machine=options.machine)
    return Opened(_arranged_program(program, options.arrange) if options.arrange else verify_program(program))


def _arranged_program(program: Program, machine: Machine) -> Program:
    """Return a program from a file with its transfers and collectives arranged for a machine, verified."""
    if not all(map(is_about_order, findings(program))):
        verify_program(program)  # raises, since there are findings that arranging does not correct
    result = arranged(program, machine)
    if result is None:
        verify_program(program.with_header(machine=machine))  # raises if it hangs, as it does if the tasks wait for each other
        why = "its replicas do not have the same tasks in the same order"
        message = f"--for {machine}: this program cannot be arranged, since {why}"
        raise refuse("E002", message, help="compile its schedule with --for")
    return verify_program(result)
