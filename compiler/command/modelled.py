"""The options about a model, which several commands have: its description, its partition, and its times on hardware."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from chimerac.chimera_ir.diagnostics import refuse
from chimerac.chimera_ir.files import read
from chimerac.chimera_ir.model import ModelDescription, in_half_precision
from chimerac.chimera_ir.partition import partition_for, partition_from_json, split_by_counts
from chimerac.chimera_ir.profile import Profile
from chimerac.chimera_ir.program import Program
from chimerac.compiler.analyze.durations import Durations, Network, profiled_durations
from chimerac.compiler.analyze.memory import OptimizerState
from chimerac.compiler.command.values import layer_counts, state_of
from chimerac.compiler.descriptions import find_model
from chimerac.compiler.profiles import find_profile, link_from_text

# The attributes of the options that need --model, besides --precision and --optimizer.
NEED_MODEL = ("memory", "split", "partition", "micro_batch", "seq_len", "profile")


def check_model_options(options: argparse.Namespace) -> None:
    """Raise ChimeraError E002 or E717 for wrong options about a model.

    E002: an option without another one that it needs, two options that exclude each other, or a value out of range. E717: a
    text of --link that is no link.
    """
    if not options.model:
        if given := [name for name in NEED_MODEL if getattr(options, name) is not None]:
            option = f"--{given[0].replace('_', '-')}"
            raise refuse("E002", f"{option} needs a model: --model NAME", help="for instance --model gpt-small")
        if options.precision != "float32":
            raise refuse("E002", f"--precision {options.precision} needs a model: --model NAME")
    for option, value in (("--micro-batch", options.micro_batch), ("--seq-len", options.seq_len)):
        if value is not None and not 1 <= value <= 2**31:
            raise refuse("E002", f"{option} {value}: expected a number from 1 to {2**31}")
    if options.split is not None and options.partition is not None:
        raise refuse("E002", "--split and --partition both fix the partition: give one of them")
    if options.link is not None and options.profile is None:
        raise refuse("E002", "--link replaces the links of a profile: give --profile NAME, too")
    _network(options)  # raises for a text that is no link
    if options.profile is not None and options.costs:
        raise refuse("E002", "--profile and --cost both say how long tasks take, and how long messages take: give one of them")


def state_for(options: argparse.Namespace, profile: Profile | None) -> OptimizerState:
    """Return the optimizer's state as `state_of` does.

    Raises ChimeraError E002 also for --optimizer without --model, unless it is none.
    """
    state = state_of(options.optimizer, options.zero, options.precision, profile)
    if options.model is None and options.optimizer not in (None, "none"):
        raise refuse("E002", "--optimizer counts bytes of a model: give --model NAME, too")
    return state


def profile_of(options: argparse.Namespace) -> Profile | None:
    """Return the profile of --profile; None without it.

    Raises ChimeraError as `find_profile`, and E715 if --seq-len or --precision is not that of the profile.
    """
    if options.profile is None:
        return None
    profile = find_profile(options.profile, options.model)
    if options.seq_len is not None and profile.seq_len is not None and options.seq_len != profile.seq_len:
        fact = f"has times for sequences of {profile.seq_len} tokens, and --seq-len is {options.seq_len}"
    elif options.precision != profile.precision:
        fact = f"has times in {profile.precision}, and --precision is {options.precision}"
    else:
        return profile
    raise refuse("E715", f"the profile of {profile.model} {fact}", help="give the same, or measure the model with it")


def model_of(
    options: argparse.Namespace,
    profile: Profile | None,
    samples: Callable[[int], int] = lambda given: given,
    micro_batch: int | None = None,
) -> ModelDescription | None:
    """Return the description of --model, in the precision of --precision; None without --model.

    Args:
        profile: gives the sequence length of a preset if --seq-len does not; None without --profile.
        samples, micro_batch: as for `find_model`; without them the micro-batches have the model's own size.

    Raises ChimeraError as `find_model`, and E714 for a profile of another model.
    """
    if options.model is None:
        return None
    length = None if profile is None else profile.seq_len
    model = find_model(options.model, samples, micro_batch, options.seq_len, length)
    if profile is not None:
        profile.check_fits(model)
    return model if options.precision == "float32" else in_half_precision(model, options.precision)


def model_for(program: Program, options: argparse.Namespace, profile: Profile | None) -> ModelDescription | None:
    """Return the description of --model for the size of the program's micro-batches; None without --model.

    Raises ChimeraError as `model_of`, and E804 as `Header.samples`.
    """
    return model_of(options, profile, program.header.samples, options.micro_batch)


def durations_for(
    program: Program, model: ModelDescription | None, profile: Profile | None, options: argparse.Namespace
) -> Durations | None:
    """Return the durations by --profile and --link; None without a profile. Raises ChimeraError as `profiled_durations`.

    Args:
        model: as `model_for` returns it.
    """
    if model is None or profile is None:
        return None
    return profiled_durations(program, model, profile, _network(options))


def _network(options: argparse.Namespace) -> Network | None:
    """Return the network of --link; None for that of the profile. Raises ChimeraError E717."""
    return None if options.link is None else Network(link_from_text(options.link))


def with_partition(program: Program, model: ModelDescription, options: argparse.Namespace) -> Program:
    """Return the program with the partition of --split or --partition, else with its own or the balanced one.

    Raises ChimeraError: E001 and E707 for the file of --partition, E002 and E708 for --split, and E705, E706 as
    `partition_for`.
    """
    stages, given = program.header.stages, program.partition
    if options.split is not None:
        given = split_by_counts(model.name, len(model.layers), layer_counts(options.split), stages)
    elif options.partition is not None:
        given = partition_from_json(read(options.partition), options.partition)
    return program.with_partition(partition_for(given, model, stages))
