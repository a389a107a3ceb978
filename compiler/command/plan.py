"""`chimerac plan`: the fastest configuration of a model that fits, why others lose, and a file that run.py runs."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from chimerac.chimera_ir import limits
from chimerac.chimera_ir.counts import count_text
from chimerac.chimera_ir.diagnostics import ChimeraError, Source, did_you_mean, refuse
from chimerac.chimera_ir.files import CONFIG_SUFFIXES, check_folder, short_path, write_stderr, write_stdout
from chimerac.chimera_ir.host import processors
from chimerac.chimera_ir.profile import Profile
from chimerac.compiler.analyze.report import table
from chimerac.compiler.command.files import check_inputs_not_overwritten, check_is_file, print_findings, write_product
from chimerac.compiler.command.values import integer, named_values, number_of_bytes, state_of
from chimerac.compiler.command.verbs import plan_parser
from chimerac.compiler.descriptions import find_model
from chimerac.compiler.library import find, names
from chimerac.compiler.pipeline import parse_source
from chimerac.compiler.plan.evaluate import Evaluator, Outcome, samples_per_second
from chimerac.compiler.plan.explore import PlanResult, search
from chimerac.compiler.plan.space import Configuration, Problem, parameters
from chimerac.compiler.plan.space import names as parameter_names
from chimerac.compiler.profiles import find_profile, link_from_text

INTERRUPTED = 130  # exit status after Ctrl-C
COLUMNS = 110  # of a line of text that can be broken
BAR = 40  # characters of the longest bar
HEAD = ("", "schedule", "D", "W", "micro-batch", "N", "recompute", "ZeRO-1", "samples/s", "memory", "loses by")
DTYPES = {"float32": "fp32", "bfloat16": "bf16"}  # of run.py, by the precision of a profile


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
    plan = _Plan(result, results if len(problems) > 1 else ())
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


class _Plan:
    """The result of a search as text, JSON, a file for run.py and a command line.

    Args:
        results: of all profiles for which a configuration fits; empty if only one profile was given.
    """

    def __init__(self, result: PlanResult, results: Sequence[PlanResult] = ()) -> None:
        self.result, self.results, self.problem, self.best = result, results, result.problem, result.best
        self._evaluator = Evaluator(result.problem)
        best = result.best.configuration
        self._sizes = parameters(best, self._evaluator.trees[best.schedule])
        self._split = self._evaluator.layers(best)

    @property
    def start(self) -> str:
        """Return the beginning of a command line that runs run.py on all ranks."""
        return f"torchrun --nproc-per-node {self.problem.ranks} interpreter/run.py"

    def settings(self) -> dict[str, Any]:
        """Return the settings of run.py for the best configuration."""
        c, p = self.best.configuration, self.problem
        found: dict[str, Any] = {
            "schedule": c.schedule,
            "parameters": self._sizes,
            "width": c.width,
            "model": p.model,
            "split": self._split,
            "recompute": "all" if c.recompute else "none",
            "micro_batch": c.micro_batch,
        }
        if p.profile.seq_len is not None:
            found["seq_len"] = p.profile.seq_len
        return found | {"dtype": DTYPES[p.profile.precision], "zero": self.best.zero}

    def command(self) -> list[str]:
        """Return the parts of the command line that runs the best configuration. No line should break within a part."""
        parts = []
        for name, value in self.settings().items():
            option = "--" + name.replace("_", "-")
            match value:
                case dict():
                    parts += [f"-p {key}={number}" for key, number in value.items()]
                case list():
                    parts.append(f"{option} {','.join(map(str, value))}")
                case bool():
                    parts += [option] if value else []
                case _:
                    parts.append(shlex.quote(value) if name == "schedule" else f"{option} {shlex.quote(str(value))}")
        return [self.start, *parts]

    def file(self) -> str:
        """Return the plan as a config file of run.py: YAML, with a JSON value for each key."""
        c = self.best.configuration
        lines = [f"# predicted: {self._speed(self.best)} samples/s, {self.best.memory:,} bytes on the rank that needs most"]
        lines += [f"# for {count_text(self.problem.ranks, 'rank')} (D={c.ranks}, W={c.width}); run it: {self.start} PLAN"]
        return "\n".join([*lines, *(f"{name}: {json.dumps(value)}" for name, value in self.settings().items())]) + "\n"

    def text(self) -> str:
        """Return the counts, the table, the throughput by D and the command line."""
        command = _joined(self.command(), " ", " \\")
        return "\n".join([*self._counts(), "", *self._table(), "", *self._drawing(), "", *command]) + "\n"

    def json(self) -> str:
        """Return as JSON the problem, the counts, the rows of the table and of the drawing, the settings of run.py, and the
        command line."""
        result, p = self.result, self.problem
        found = {
            "model": p.model,
            "ranks": p.ranks,
            "batch": p.batch,
            "memory_bytes": p.limit,
            "configurations": {
                "total": result.total,
                "impossible": dict(sorted(result.impossible.items())),
                "too_large_before_compiling": result.too_large,
                "slower_than_the_best_in_any_case": result.too_slow,
                "compiled": sum(not o.reason for o in result.outcomes.values()),
                "not_tried": result.left,
            },
            "precisions": [{"precision": r.problem.profile.precision, **self._fields(r.best)} for r in self.results],
            "best": self._fields(result.best),
            "neighbours": [
                {"differs_in": what, **self._fields(o), "loses_by": self._reason(o)} for what, o in result.neighbours
            ],
            "by_ranks_of_a_replica": [self._fields(o) for o in result.by_ranks.values()],
            "settings": self.settings(),
            "command": " ".join(self.command()),
        }
        return json.dumps(found, indent=2) + "\n"

    def _fields(self, o: Outcome) -> dict[str, Any]:
        c = o.configuration
        found: dict[str, Any] = {
            "schedule": c.schedule,
            "parameters": dict(c.own),
            "D": c.ranks,
            "W": c.width,
            "micro_batch": c.micro_batch,
            "micro_batches": c.micro_batches,
            "recompute": c.recompute,
            "zero": o.zero,
            "memory_bytes": o.memory,
        }
        if o.makespan is not None:
            found |= {
                "samples_per_s": round(samples_per_second(self.problem.batch, o.makespan), 3),
                "iteration_ms": o.makespan / 1e6,
                "computing_ms": o.busy / 1e6,
                "bubble_ms": o.bubble / 1e6,
                "exposed_communication_ms": o.exposed / 1e6,
            }
        return found

    def _counts(self) -> Iterator[str]:
        result, p = self.result, self.problem
        too_large = sum(not o.can_run and not o.reason for o in result.outcomes.values())  # found after compiling
        simulated = sum(o.can_run for o in result.outcomes.values())
        precision = f", in {p.profile.precision}" if self.results else ""
        ranks = count_text(p.ranks, "rank")
        yield f"{p.model} on {ranks} of {p.limit:,} bytes, {p.batch:,} samples in an iteration{precision}"
        parts = [
            f"{sum(result.impossible.values()):,} that the schedule or the model does not allow",
            f"{result.too_large + too_large:,} that do not fit ({result.too_large:,} of them not compiled)",
            f"{result.too_slow:,} slower in any case",
            f"{simulated:,} simulated",
            *([f"{result.left:,} not tried"] if result.left else []),
        ]
        yield from _joined([f"{result.total:,} configurations: {parts[0]}", *parts[1:]], ", ", ",")

    def _table(self) -> list[str]:
        rows = [["best", *self._cells(self.best), ""]]
        others = (r for r in self.results if r is not self.result)
        rows += [[f"in {r.problem.profile.precision}", *self._cells(r.best), self._reason(r.best)] for r in others]
        rows += [[what, *self._cells(o), self._reason(o)] for what, o in self.result.neighbours]
        has_others = len(self.results) > 1
        each = "each other row" if has_others else "each row"
        notes = [
            *(["the row of another precision has the best configuration in it"] if has_others else []),
            f"{each} below the best differs from it in one choice; of each other schedule, its best parameters",
            "loses by: what its ranks spend more time with than those of the best, in the mean of the ranks",
        ]
        return [*table(list(HEAD), rows, left=1), *(notes if len(rows) > 1 else [])]

    def _cells(self, o: Outcome) -> list[str]:
        c = o.configuration
        own = "".join(f" {name}={value}" for name, value in c.own)
        sizes = (str(x) for x in (c.ranks, c.width, c.micro_batch, c.micro_batches))
        choices = ("yes" if x else "no" for x in (c.recompute, o.zero))
        return [c.schedule + own, *sizes, *choices, self._speed(o), _size(o.memory)]

    def _speed(self, o: Outcome) -> str:
        return "-" if o.makespan is None else f"{samples_per_second(self.problem.batch, o.makespan):.1f}"

    def _reason(self, o: Outcome) -> str:
        """Return what a configuration loses by: memory, the part of its time that most exceeds that of the best, or nothing."""
        if o.makespan is None:
            return f"memory: {_size(o.memory - self.problem.limit)} too much"
        assert self.best.makespan is not None, "it runs"
        if o.makespan == self.best.makespan:
            return "memory: as fast, but needs more" if o.memory > self.best.memory else "nothing: as fast"
        parts = {
            "computation": o.busy - self.best.busy,
            "bubble": o.bubble - self.best.bubble,
            "communication": o.exposed - self.best.exposed,
        }
        name, more = max(parts.items(), key=lambda x: x[1])
        return f"{name}: {more / 1e6:+.1f} ms"

    def _drawing(self) -> Iterator[str]:
        by_ranks: Mapping[int, Outcome] = self.result.by_ranks
        speeds = {d: samples_per_second(self.problem.batch, o.makespan or 1) for d, o in by_ranks.items()}
        fastest = max(speeds.values())
        yield "samples/s of the best configuration for each D"
        for d, o in by_ranks.items():
            bar = "#" * max(1, round(BAR * speeds[d] / fastest))
            yield f"D={d:<5} {bar:<{BAR}} {speeds[d]:>10.1f}  {_title(o.configuration)}"


def _joined(parts: Sequence[str], between: str, end: str) -> list[str]:
    """Return parts as lines of at most COLUMNS characters, where that is possible.

    Args:
        between: joins two parts of a line.
        end: added to every line but the last.
    """
    lines = [parts[0]]
    for part in parts[1:]:
        if len(lines[-1]) + len(between) + len(part) + len(end) <= COLUMNS:
            lines[-1] += between + part
        else:
            lines[-1] += end
            lines.append(f"    {part}")
    return lines


def _size(number: int) -> str:
    return f"{number / 2**30:.2f} GiB" if number >= 2**30 else f"{number / 2**20:.2f} MiB"


def _title(c: Configuration) -> str:
    own = "".join(f" {name}={value}" for name, value in c.own)
    return f"{c.schedule}{own}, micro-batches of {c.micro_batch}{', recompute' if c.recompute else ''}"
