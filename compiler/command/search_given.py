"""The costs, links and limits of `chimerac search` for an order, by options, by the file of --costs, or by a profile."""

from __future__ import annotations

import argparse
import re
from dataclasses import replace
from fractions import Fraction

from chimerac.chimera_ir.diagnostics import refuse
from chimerac.chimera_ir.files import read
from chimerac.chimera_ir.profile import Profile
from chimerac.chimera_ir.program import Program
from chimerac.compiler.analyze.durations import Durations
from chimerac.compiler.analyze.simulate import simulate
from chimerac.compiler.command.modelled import durations_for, model_for
from chimerac.compiler.command.values import costs_of
from chimerac.compiler.given import cost_from_text
from chimerac.compiler.search.given import Given, given_from_durations, given_from_json

# By --split or --fused: all backwards are split (True) or none (False); None without these options: if the schedule splits any.
SPLIT = {"split": True, "fused": False, None: None}


def given_for(program: Program, profile: Profile | None, options: argparse.Namespace) -> Given:
    """Return the costs, links and limits of a search, and the kind of backward.

    Args:
        profile: that of --profile, if any.

    Raises ChimeraError: E001 or E002 for the file of --costs, E002 for a cost that is wrong, is given twice or is used by no
    search, and for a wrong --limit; others as `model_for` and `durations_for`.
    """
    if profile is None:
        return _given_by_options(options)
    given = given_from_durations(program, _durations(program, profile, options))
    return replace(given, limits=None if options.limit is None else _limit(options.limit), split=SPLIT[options.backward])


def milliseconds(program: Program, profile: Profile, options: argparse.Namespace) -> Fraction:
    """Return the simulated makespan in milliseconds. Unlike in the search, messages occupy links and all-reduces take time."""
    s = simulate(program, durations=_durations(program, profile, options))
    return Fraction(s.makespan, s.scale)


def _given_by_options(options: argparse.Namespace) -> Given:
    """Return the costs, links and limits of --costs, replaced where another option gives the same, and the kind of backward."""
    given = Given() if options.costs_path is None else given_from_json(read(options.costs_path), options.costs_path)
    costs = dict(costs_of(options.costs))
    if options.hop is not None:
        if "hop" in costs:
            raise refuse("E002", "--hop and --cost hop give the same: leave one of them out")
        costs["hop"] = cost_from_text("hop", options.hop, "--hop")
    if "R" in costs:
        raise refuse("E002", "--cost R: a search orders no recomputation")
    return replace(
        given,
        uniform={k: v for k, v in costs.items() if k != "hop"},
        hop=costs.get("hop", given.hop),
        links=None if "hop" in costs else given.links,
        limits=given.limits if options.limit is None else _limit(options.limit),
        split=SPLIT[options.backward],
    )


def _durations(program: Program, profile: Profile, options: argparse.Namespace) -> Durations:
    """Return the durations by --profile and --link. Raises ChimeraError as `model_for` and `durations_for`."""
    found = durations_for(program, model_for(program, options, profile), profile, options)
    assert found is not None, "--profile is given"
    return found


def makespan_of(text: str) -> Fraction:
    """Return the value of --makespan. Raises ChimeraError E002 if it is no number above 0."""
    is_number = re.fullmatch(r"[0-9]{1,15}(\.[0-9]{1,12}|/0*[1-9][0-9]{0,14})?", text)
    if not is_number or (makespan := Fraction(text)) == 0:
        message = f"--makespan {text}: expected a number above 0, like 52, 50.5 or 101/2"
        raise refuse("E002", message, help="at most 15 digits, and 12 more after a point or 15 after a /")
    return makespan


def _limit(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,15}", text):
        message = f"--limit {text}: expected a number of activations, or a number in the unit of those in the file of --costs"
        raise refuse("E002", message)
    return int(text)
