"""`chimerac partition`: which layers of a model form which stage, and what stages and ranks need, as a table."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.chimera_ir.files import check_folder, write_stderr, write_stdout
from chimerac.chimera_ir.partition import partition_to_json
from chimerac.compiler.command.compile import program_of
from chimerac.compiler.command.files import check_is_file, print_findings, write_product
from chimerac.compiler.command.modelled import check_model_options, model_for, profile_of, with_partition
from chimerac.compiler.command.values import number_of_bytes, parameters_of, state_of
from chimerac.compiler.command.verbs import partition_parser


def run(argv: Sequence[str]) -> int:
    """Print the table, write the partition if -o names a file, and return the exit status."""
    parser = partition_parser()
    options = parser.parse_args(argv)
    if options.schedule is None or options.model is None:
        parser.error("give a schedule and a model, for instance: chimerac partition chimera --model gpt-small")
    try:
        _run(options)
    except ChimeraError as error:
        return print_findings(error)
    return 0


def _run(options: argparse.Namespace) -> None:
    # start-up: 5 ms, for this verb only
    from chimerac.compiler.analyze.memory import check_memory
    from chimerac.compiler.plan.partition import best_partition
    from chimerac.compiler.plan.table import partition_table

    check_model_options(options)
    check_is_file(options.output, "the table")
    check_folder(options.output)
    limit = None if options.memory is None else number_of_bytes(options.memory)
    profile = profile_of(options)
    state = state_of(options.optimizer, options.zero, options.precision, profile)
    parameters = parameters_of(options.parameters)
    opened = program_of(options, parameters, ("partition",))
    program, recomputing = opened.program, opened.recomputing
    model = model_for(program, options, profile)
    assert model is not None, "--model is given"
    costs = None if profile is None else profile.layer_nanoseconds(model)
    if options.split is not None:
        program = with_partition(program, model, options)
        if limit is not None:
            check_memory(program, model, limit, recomputing, state)
    else:
        found = best_partition(program, model, limit, costs, state, recomputing)
        program = program.with_partition(found.partition)
        if found.bound < found.slowest:
            other = f"one whose slowest stage costs {found.bound / found.slowest:.3f} times as much was not ruled out"
            write_stderr(f"this partition may not be the best: {other}\n")
    assert program.partition is not None, "it was just given one"
    write_stdout(partition_table(program, model, state, costs))
    if options.output is not None:
        write_product(partition_to_json(program.partition), options.output)
        write_stderr(f"wrote {options.output}; next: {_compile_command(options)}\n")


def _compile_command(options: argparse.Namespace) -> str:
    """Return the command that compiles the schedule with the partition that was written, to a program in p.json."""
    words = ["chimerac", options.schedule]
    for parameter in options.parameters:
        words += ["-p", parameter]
    for name in ("width", "recompute", "model", "micro_batch", "seq_len"):
        if (value := getattr(options, name)) is not None:
            words += [f"--{name.replace('_', '-')}", str(value)]
    if options.precision != "float32":
        words += ["--precision", options.precision]
    return shlex.join([*words, "--partition", options.output, "--emit", "json", "-o", "p.json"])
