"""The result of `chimerac plan` as a table, as JSON, as a file that run.py runs, and as a command line."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from chimerac.chimera_ir.counts import count_text
from chimerac.compiler.analyze.report import table
from chimerac.compiler.plan.evaluate import Evaluator, Outcome, samples_per_second
from chimerac.compiler.plan.explore import PlanResult
from chimerac.compiler.plan.space import Configuration, parameters

COLUMNS = 110  # of a line of text that can be broken
BAR = 40  # characters of the longest bar
HEAD = ("", "schedule", "D", "W", "micro-batch", "N", "recompute", "ZeRO-1", "samples/s", "memory", "loses by")
DTYPES = {"float32": "fp32", "bfloat16": "bf16"}  # of run.py, by the precision of a profile


class PlanReport:
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
