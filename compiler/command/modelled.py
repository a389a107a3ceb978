"""The options about a model, which several commands have: its description, its partition, the state of its optimizer."""

from __future__ import annotations

import argparse

from chimerac.chimera_ir.diagnostics import refuse
from chimerac.chimera_ir.files import read
from chimerac.chimera_ir.model import ModelDescription
from chimerac.chimera_ir.partition import partition_for, partition_from_json, split_by_counts
from chimerac.chimera_ir.program import Program
from chimerac.compiler.command.usage import counts
from chimerac.compiler.descriptions import find_model

NEED_MODEL = ("memory", "split", "partition", "micro_batch", "seq_len")


def check_model_options(options: argparse.Namespace) -> None:
    """Raise ChimeraError E002 for options that need --model, exclude each other, or have no possible value."""
    if not options.model:
        for name in (name for name in NEED_MODEL if getattr(options, name) is not None):
            option = f"--{name.replace('_', '-')}"
            raise refuse("E002", f"{option} needs a model: --model NAME", help="for instance --model gpt-small")
    for option, value in (("--micro-batch", options.micro_batch), ("--seq-len", options.seq_len)):
        if value is not None and not 1 <= value <= 2**31:
            raise refuse("E002", f"{option} {value}: expected a number from 1 to {2**31}")
    if options.split is not None and options.partition is not None:
        raise refuse("E002", "--split and --partition both fix the partition: give one of them")


def model_for(program: Program, options: argparse.Namespace) -> ModelDescription | None:
    """Return the description of --model, for the size of the program's micro-batches."""
    if options.model is None:
        return None
    return find_model(options.model, program.header.samples, options.micro_batch, options.seq_len)


def with_partition(program: Program, model: ModelDescription, options: argparse.Namespace) -> Program:
    """Return the program with the partition of --split or --partition, else with its own or the balanced one."""
    stages, given = program.header.stages, program.partition
    if options.split is not None:
        given = split_by_counts(model.name, len(model.layers), counts("--split", options.split), stages)
    elif options.partition is not None:
        given = partition_from_json(read(options.partition), options.partition)
    return program.with_partition(partition_for(given, model, stages))
