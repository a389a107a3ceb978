"""`chimerac plan`: the fastest configuration of a model that fits, why others lose, and a file that run.py runs."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from chimerac.chimera_ir import limits
from chimerac.chimera_ir.counts import count_text
from chimerac.chimera_ir.diagnostics import ChimeraError, Source, did_you_mean, refuse
from chimerac.chimera_ir.files import CONFIG_SUFFIXES, check_folder, short_path, write_stderr, write_stdout
from chimerac.chimera_ir.host import processors
from chimerac.chimera_ir.profile import Profile
from chimerac.compiler.command.files import check_inputs_not_overwritten, check_is_file, print_findings, write_product
from chimerac.compiler.command.plan_report import DTYPES, PlanReport
from chimerac.compiler.command.values import integer, named_values, number_of_bytes, state_of
from chimerac.compiler.command.verbs import plan_parser
from chimerac.compiler.descriptions import find_model
from chimerac.compiler.library import find, names
from chimerac.compiler.pipeline import parse_source
from chimerac.compiler.plan.explore import PlanResult, search
from chimerac.compiler.plan.space import Problem
from chimerac.compiler.plan.space import names as parameter_names
from chimerac.compiler.profiles import find_profile, link_from_text

INTERRUPTED = 130  # exit status after Ctrl-C


def run(argv: Sequence[str]) -> int:
    """Print the result, write the plan if -o names a file, and return the exit status.

    After Ctrl-C the result is the best so far, and the status is 130. If nothing is found yet, KeyboardInterrupt is raised.
    """
    options = plan_parser().parse_args(argv)
    try:
        return _run(options)
    except ChimeraError as error:
        return print_findings(error)


def _check_suffix(output: str | None) -> None:
    """Raise ChimeraError E002 if interpreter/run.py would not read the plan as a config file, because of its name."""
    if output is not None and Path(output).suffix not in CONFIG_SUFFIXES:
        expected = " or ".join(CONFIG_SUFFIXES)
        message = f"-o {short_path(output)}: interpreter/run.py reads a plan only from a file whose name ends in {expected}"
        raise refuse("E002", message, help=f"for instance -o {shlex.quote(str(Path(output).with_suffix('.yaml')))}")


def _run(options: argparse.Namespace) -> int:
    problems = _problems(options)
    check_is_file(options.output, "the JSON" if options.emit == "json" else "the table")
    _check_suffix(options.output)
    check_folder(options.output)
    results, profiles_left = _search(problems, options.processes or processors())
    result = min(results, key=lambda found: found.best.key)
    plan = PlanReport(result, results if len(problems) > 1 else ())
    write_stdout(plan.json() if options.emit == "json" else plan.text())
    if options.output is not None:
        write_product(plan.file(), options.output)
        write_stderr(f"wrote {options.output}; run it: {plan.start} {shlex.quote(options.output)}\n")
    if profiles_left is not None:
        last, left = results[-1], [f"{count_text(profiles_left, 'profile')} not tried"] if profiles_left else []
        if last.is_interrupted:
            what = f"the best so far; {last.left:,} configurations were" if last.left else "its neighbours were"
            left = [f"{what} not tried", *left]
        write_stderr(f"interrupted: {', and '.join(left)}\n")
        return INTERRUPTED
    return 0


def _search(problems: Sequence[Problem], processes: int) -> tuple[list[PlanResult], int | None]:
    """Return the results of the problems for which a configuration fits. After Ctrl-C the last one may be only the best so far.

    Also return how many problems were left when Ctrl-C ended the search: those that were not begun, and the one that it ended
    if nothing was found for it yet. The number is None without Ctrl-C.

    Raises ChimeraError as `search` if none fits for any of them, and KeyboardInterrupt if nothing is found yet.
    """
    results, errors = list[PlanResult](), list[ChimeraError]()
    for begun, problem in enumerate(problems):
        try:
            with ExitStack() as stack:
                results.append(search(problem, processes, _progress(stack)))
        except ChimeraError as error:
            errors.append(error)
        except KeyboardInterrupt:
            if not results:
                raise
            return results, len(problems) - begun
        if results and results[-1].is_interrupted:
            return results, len(problems) - begun - 1
    if not results:
        raise errors[0]
    return results, None


def _problems(options: argparse.Namespace) -> list[Problem]:
    """Return the problem of each profile."""
    for option, value, most in (
        ("--ranks", options.ranks, limits.RANKS),
        ("--batch", options.batch, 2**31),
        ("--processes", options.processes, 1024),
    ):
        if value is not None and not 1 <= value <= most:
            raise refuse("E002", f"{option} {value}: expected a number from 1 to {most}")
    memory = number_of_bytes(options.memory)
    schedules = {name: find(name) for name in options.schedules or names()}
    check_inputs_not_overwritten(options.output, schedules.values(), options)
    find_model(options.model, lambda samples: samples)  # so that an unknown model is reported before an unknown profile
    profiles: dict[str, Profile] = {}  # by precision
    for name in options.profiles:
        profile = find_profile(name, options.model)
        if profile.precision not in DTYPES:
            fact = f"the profile of {profile.model} has times in {profile.precision}, in which run.py does not train"
            raise refuse("E715", fact, help=f"give a profile in {' or '.join(DTYPES)}")
        if profile.precision in profiles:
            raise refuse("E002", f"two profiles have times in {profile.precision}", help="give one --profile for a precision")
        profiles[profile.precision] = profile
    own = _own(options, {name for source in schedules.values() for name in parameter_names(parse_source(source))})
    return [_problem(options, schedules, profile, memory, own) for profile in profiles.values()]


def _problem(
    options: argparse.Namespace,
    schedules: Mapping[str, Source],
    profile: Profile,
    memory: int,
    own: Mapping[str, Sequence[int]],
) -> Problem:
    """Return the problem of a profile.

    Args:
        memory: the bytes of --memory.
        own: the values of -p.
    """
    state = state_of(options.optimizer, False, profile.precision, profile)
    return Problem(
        schedules,
        options.model,
        profile,
        ranks=options.ranks,
        batch=options.batch,
        limit=memory,
        state=state,
        zero={"auto": None, "always": True, "never": False}[options.zero],
        network=None if options.link is None else link_from_text(options.link),
        own=own,
        sizes=None if options.micro_batch is None else _numbers("--micro-batch", options.micro_batch),
        recompute={"try": (False, True), "all": (True,), "none": (False,)}[options.recompute],
    )


def _own(options: argparse.Namespace, known: set[str]) -> dict[str, list[int]]:
    """Return the values of -p that are tried, by parameter.

    Args:
        known: all parameters that any of the schedules has.
    """
    found = {}
    for name, text in named_values("-p", options.parameters, "f").items():
        if name == "N":
            raise refuse("E002", f"-p N={text}: N follows from --batch, W and the size of a micro-batch")
        if name not in known:
            message = f"-p {name}={text}: of those tried, no schedule has this parameter"
            raise refuse("E002", message, help=did_you_mean(name, known))
        found[name] = [integer(name, word.strip()) for word in text.split(",")]
    return found


def _numbers(option: str, text: str) -> list[int]:
    """Return the numbers of an option that lists them. Raises ChimeraError E002."""
    words = [word.strip() for word in text.split(",")]
    if not all(re.fullmatch("[0-9]{1,10}", word) and 1 <= int(word) <= 2**31 for word in words):
        expected = f"expected numbers from 1 to {2**31}, for instance {option} 1,2,4"
        raise refuse("E002", f"{option} {short_path(text)}: {expected}")
    return [int(word) for word in words]


def _progress(stack: ExitStack) -> Callable[[int, int], None]:
    """Return the function that draws the progress: a bar on stderr. If stderr is no terminal, the function does nothing.

    Args:
        stack: removes the bar at its end.
    """
    if sys.stderr is None or not sys.stderr.isatty():
        return lambda done, total: None
    from tqdm import tqdm  # start-up: 0.1 s, only for a terminal

    tqdm.monitor_interval = 0  # so tqdm starts no thread
    bar = stack.enter_context(tqdm(unit="configuration", dynamic_ncols=True, leave=False))

    def draw(done: int, total: int) -> None:
        bar.total = total
        bar.update(done - bar.n)

    return draw
