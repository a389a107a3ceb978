"""Measure the readers of growth_targets.py as their input grows: `python -m tests.proof.growth --minutes M`.

An input is a text with pieces that are repeated (growth_inputs.py), so it can have any length. For each input one of three
costs is measured at several lengths: executed lines of Python, bytes held, or processor time, which includes the work of C
code. If the time seems to grow faster than the input, it is measured again at more lengths, up to `Reader.longest`. The results
are recorded in docs/proof.md, unless the run is interrupted or has --no-record.
"""

from __future__ import annotations

import gc
import hashlib
import random
import resource
import signal
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from chimerac.chimera_ir.diagnostics import ChimeraError
from tests.helpers_cost import lines, peak
from tests.proof.campaign import campaign, failure_list, quoted
from tests.proof.fuzz_engine import UNLIMITED, failure_name
from tests.proof.growth_inputs import Recipe, random_recipe
from tests.proof.growth_targets import READERS, Reader, rendered
from tests.proof.record import stamp, table

FAILED_INPUTS = Path("runs/growth")  # folder for the inputs that fail
MEMORY = 8 * 2**30  # bytes of address space that a process may use
MAX_CPU_S = 120  # seconds of processor time for all measurements of an input together; then they are aborted
STEEP = 2.6  # the cost may grow by this factor if the length doubles; quadratic growth has 4, a sort a little over 2
MIN_LINES = 2_000  # smaller increases of the executed lines are ignored
MIN_BYTES = 2**20  # smaller increases of the bytes held are ignored
MIN_TIME_S = 0.05  # shorter times say nothing about growth
SUSPICIOUS = 1.7  # if the time grows by a factor at least this many times that of the length, it is measured at more lengths
MIN_STEEP_TIME_S = 0.1  # at the larger lengths, shorter times are not called steep
SLOW_S = 2.0  # from this time on, two steep increases in a row are enough for a failure
LONGEST_RUN_S = 5.0  # after a run that takes longer, longer inputs are not measured
LONGEST_OVER_FIRST = 8  # of a recipe of Reader.regressions: the longest length over the first, which is doubled three times
LENGTHS_FOR_LINES = (2_000, 4_000, 8_000, 16_000)  # lengths of inputs for counting lines
LENGTHS_FOR_BYTES = (16_000, 32_000, 64_000, 128_000)  # lengths of inputs for counting bytes


@dataclass
class Result:
    """The results of one reader.

    Attributes:
        inputs: the number of inputs measured.
        answers: those of the reader (`Measurement.run`).
        failures: what is wrong, by kind and recipe.
        slowest: the most microseconds per character, each measured at four times the first length.
        slowest_of: the description of that input.
        largest: the most bytes per character, each measured at the third of LENGTHS_FOR_BYTES.
    """

    reader: str
    inputs: int = 0
    answers: set[str] = field(default_factory=set)
    failures: dict[str, str] = field(default_factory=dict)
    slowest: float = 0.0
    slowest_of: str = ""
    largest: float = 0.0


class TooSlowError(BaseException):
    """The measurements of an input took more processor time than MAX_CPU_S."""


def _abort(*_: object) -> None:
    raise TooSlowError


class Measurement:
    """Measures one reader."""

    def __init__(self, name: str, reader: Reader) -> None:
        self.reader, self.result = reader, Result(name)

    def run(self, text: str) -> str:
        """Run the reader, and render its findings, if any. Return their codes, or "accepted" without findings."""
        try:
            self.reader.run(text)
        except ChimeraError as error:
            rendered(error)
            return " ".join(sorted({d.code for d in error.diagnostics}))
        return "accepted"

    def seconds(self, text: str, runs: int = 1) -> float:
        """Return the processor time of a run, the minimum of `runs` runs."""
        spent = []
        for _ in range(runs):
            gc.collect()
            gc.disable()
            before = time.process_time()
            try:
                self.run(text)
            finally:
                spent.append(time.process_time() - before)
                gc.enable()
        return min(spent)

    def check_growth(self, recipe: Recipe, cost: str, length: int) -> None:
        """Measure one cost of an input at growing lengths, and record a failure if the cost grows faster than the length.

        It is a failure too if the measurements take too long, or if the reader raises another error than ChimeraError.

        Args:
            cost: "lines", "bytes" or "time".
            length: the first length for "time", not used for the others.
        """
        signal.setitimer(signal.ITIMER_PROF, MAX_CPU_S)
        try:
            self.result.inputs += 1
            self.result.answers.add(self.run(recipe.of_length(2_000)))
            steep = {"lines": self.count_lines, "bytes": self.count_bytes, "time": self.measure_time}[cost](recipe, length)
            if steep:
                self.fail(f"{cost}: {steep}", recipe)
        except TooSlowError:
            self.fail(f"{cost}: aborted after {MAX_CPU_S} seconds of processor time", recipe)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            self.fail(failure_name(error), recipe)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)

    def fail(self, what: str, recipe: Recipe) -> None:
        """Record a failure and save its input with some 50,000 characters, unless a similar failure is recorded."""
        kind = what.split(":")[0] + " of " + recipe.description[:60]
        if kind in self.result.failures:
            return
        self.result.failures[kind] = f"{what}; {recipe.description}"
        FAILED_INPUTS.mkdir(parents=True, exist_ok=True)
        data = recipe.of_length(50_000).encode("utf-8", "surrogatepass")
        digest = hashlib.sha256(data).hexdigest()[:16]  # so that other inputs have other names
        (FAILED_INPUTS / f"{self.result.reader.replace(' ', '-')}-{digest}").write_bytes(data)

    def count_lines(self, recipe: Recipe, _: int) -> str:
        """Count executed lines of Python. Return the counts as text if they grow faster than the input, else ''."""
        return self.steep_counts(lines, [recipe.of_length(length) for length in LENGTHS_FOR_LINES], MIN_LINES)

    def count_bytes(self, recipe: Recipe, _: int) -> str:
        """Count the bytes held at the peak. Return the counts as text if they grow faster than the input, else ''."""
        texts = [recipe.of_length(length) for length in LENGTHS_FOR_BYTES]
        self.result.largest = max(self.result.largest, peak(lambda: self.run(texts[2])) / len(texts[2]))
        return self.steep_counts(peak, texts, MIN_BYTES)

    def steep_counts(self, count: Callable[[Callable[[], object]], int], texts: list[str], least: int) -> str:
        """Return the counts of four texts as text if they grow faster than the texts, else ''.

        The longest text is counted only if the counts of the other three grow too fast.

        Args:
            least: smaller increases of the count are ignored.
        """
        if len(set(map(len, texts))) < len(texts):  # the input does not grow
            return ""
        spent = [count(lambda text=text: self.run(text)) for text in texts[:3]]  # type: ignore[misc]
        if not self.is_steep(spent, texts, least):
            return ""
        spent.append(count(lambda: self.run(texts[3])))
        return f"{spent} for {[len(text) for text in texts]} characters" if self.is_steep(spent[1:], texts[1:], least) else ""

    def is_steep(self, spent: list[int], texts: list[str], least: int) -> bool:
        """Return whether the second increase costs more than STEEP / 2 times as much per added character as the first.

        Args:
            spent: the costs of the first three texts.
            least: a second increase of at most this is not steep. A first increase below least / 4 counts as least / 4.
        """
        (a, b, c), (x, y, z) = spent, map(len, texts[:3])
        return c - b > least and (c - b) / (z - y) > STEEP / 2 * max(b - a, least / 4) / (y - x)

    def measure_time(self, recipe: Recipe, length: int) -> str:
        """Measure processor time at two lengths; if it seems to grow faster than the input, measure it at more.

        Return the times as text if they grow faster than the input, else ''.
        """
        texts = [recipe.of_length(length), recipe.of_length(4 * length)]
        if len(texts[1]) < 3 * len(texts[0]):  # the input hardly grows, for example because it has few copies
            return ""
        spent = [self.seconds(text) for text in texts]
        rate = spent[1] / len(texts[1]) * 1e6
        if rate > self.result.slowest:
            self.result.slowest, self.result.slowest_of = rate, recipe.description
        if spent[1] < MIN_TIME_S or spent[1] / spent[0] < SUSPICIOUS * len(texts[1]) / len(texts[0]):
            return ""
        measured: list[tuple[int, float]] = []  # (characters, seconds)
        steep = 0  # how many times in a row the time has grown too fast; three times, or two if slow, is a failure
        while length <= self.reader.longest:
            text = recipe.of_length(length)
            runs = 3 if spent[0] < 0.2 else 2  # two, if already the shortest input takes 0.2 s or more
            measured.append((len(text), self.seconds(text, runs)))
            if len(measured) > 1:
                (x, a), (y, b) = measured[-2:]
                steep = steep + 1 if b > MIN_STEEP_TIME_S and b / a > STEEP / 2 * y / x else 0
            if steep == 3 or (steep == 2 and measured[-1][1] > SLOW_S):
                return ", ".join(f"{s:.2f} s for {n:,}" for n, s in measured) + " characters"
            if measured[-1][1] > LONGEST_RUN_S:
                break
            length *= 2
        return ""


def measure(name: str, seconds: float, seed: int, inputs: int = UNLIMITED) -> Result:
    """Measure a reader, until the seconds are over or `inputs` inputs were measured.

    Inputs of kinds that were once too slow come first, at large lengths.
    """
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.signal(signal.SIGPROF, _abort)
    reader, rng = READERS[name], random.Random(f"{name} {seed}")
    measurement = Measurement(name, reader)
    for text in reader.seeds():
        measurement.run(text)  # so that caches are filled before the measurements
    end = time.monotonic() + seconds
    for recipe in reader.regressions():
        if time.monotonic() < end and measurement.result.inputs < inputs:
            measurement.check_growth(recipe, "time", reader.longest // LONGEST_OVER_FIRST)
    while time.monotonic() < end and measurement.result.inputs < inputs:
        cost = rng.choice(("lines", "bytes", "time", "time"))
        measurement.check_growth(
            random_recipe(reader.seeds(), reader.known, rng), cost, rng.choice((16_000, 16_000, 16_000, 16_000, 64_000))
        )
    return measurement.result


def report(results: Sequence[Result], seconds: float, seed: int) -> str:
    """Return the text for docs/proof.md."""
    head = (
        "reader",
        "inputs",
        "different answers",
        "worse than linear",
        "µs per character",
        "slowest input",
        "bytes per character",
    )
    rows = [
        (r.reader, r.inputs, len(r.answers), len(r.failures), f"{r.slowest:.1f}", quoted(r.slowest_of), f"{r.largest:,.0f}")
        for r in results
    ]
    text = stamp(seconds, seed, ("lark", "numpy", "pydantic")) + table(head, rows)
    failures = ((r.reader, what) for r in results for what in r.failures.values())
    return text + failure_list(failures, "Nothing was worse than linear.")


def measure_all(readers: Sequence[str], seconds: float, seed: int, jobs: int) -> list[Result]:
    """Measure each reader for some seconds, in its own process.

    Args:
        jobs: readers at a time.
    """
    with ProcessPoolExecutor(jobs, max_tasks_per_child=1) as pool:
        return list(pool.map(measure, readers, [seconds] * len(readers), [seed] * len(readers)))


if __name__ == "__main__":
    sys.exit(campaign("growth", "reader", list(READERS), minutes=20, run=measure_all, report=report))
