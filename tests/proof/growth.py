"""Measure every reader as its input grows: `python -m tests.proof.growth --minutes M`.

Inputs are made of pieces that are repeated (growth_inputs.py); each is built at several lengths. What is executed and held
is counted: lines of Python, bytes. What C code does inside shows only in processor time, so that is measured too, and again,
at larger sizes, before anything is called worse than linear. What was seen is recorded in docs/proof.md.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import resource
import signal
import sys
import textwrap
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from random import SystemRandom

from chimerac.chimera_ir.diagnostics import ChimeraError, visible
from tests.helpers_cost import lines, peak
from tests.proof.fuzz_engine import place
from tests.proof.growth_inputs import Recipe, drawn
from tests.proof.growth_targets import READERS, Reader, shown
from tests.proof.record import record, stamp, table

FOUND = Path("runs/growth")  # where the inputs that fail are left
MEMORY = 8 * 2**30  # bytes of a process
LONG = 120  # seconds of processor time after which an input is given up
STEEP = 2.6  # times as much for an input twice as long: the square takes 4 times, a sort hardly more than 2
COUNTED = (2_000, 4_000, 8_000, 16_000)  # lengths of inputs whose lines are counted
HELD = (16_000, 32_000, 64_000, 128_000)  # and their bytes


@dataclass
class Result:
    """What was seen of one reader. slowest, largest: microseconds and bytes for a character, at lengths that show them."""

    reader: str
    inputs: int = 0
    answers: set[str] = field(default_factory=set)
    failures: dict[str, str] = field(default_factory=dict)
    slowest: float = 0.0
    slowest_of: str = ""
    largest: float = 0.0


class GivenUpError(BaseException):
    """An input took too long."""


def _give_up(*_: object) -> None:
    raise GivenUpError


class Explorer:
    """Measures the inputs of one reader."""

    def __init__(self, name: str, reader: Reader) -> None:
        self.reader, self.result = reader, Result(name)

    def run(self, text: str) -> str:
        """Run the reader; return the codes of its findings, which are rendered as they are for a person."""
        try:
            self.reader.run(text)
        except ChimeraError as error:
            shown(error)
            return " ".join(sorted({d.code for d in error.diagnostics}))
        return "accepted"

    def seconds(self, text: str, least: int = 1) -> float:
        """Return the processor time of a run, the least of so many."""
        spent = []
        for _ in range(least):
            gc.collect()
            gc.disable()
            before = time.process_time()
            try:
                self.run(text)
            finally:
                spent.append(time.process_time() - before)
                gc.enable()
        return min(spent)

    def judge(self, recipe: Recipe, how: str, length: int) -> None:
        """Measure an input at growing lengths, and note what grows faster than it."""
        signal.setitimer(signal.ITIMER_PROF, LONG)
        try:
            self.result.inputs += 1
            self.result.answers.add(self.run(recipe.of_length(2_000)))
            steep = {"lines": self.counted, "bytes": self.held, "time": self.timed}[how](recipe, length)
            if steep:
                self.fail(f"{how}: {steep}", recipe)
        except GivenUpError:
            self.fail(f"{how}: given up after {LONG} seconds", recipe)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            self.fail(place(error), recipe)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)

    def fail(self, what: str, recipe: Recipe) -> None:
        self.result.failures.setdefault(what.split(":")[0] + " of " + recipe.words[:60], f"{what}; {recipe.words}")
        FOUND.mkdir(parents=True, exist_ok=True)
        path = FOUND / f"{self.result.reader.replace(' ', '-')}-{len(self.result.failures)}"
        path.write_text(recipe.of_length(50_000), encoding="utf-8", errors="surrogatepass")

    def counted(self, recipe: Recipe, _: int) -> str:
        """Count lines of Python."""
        return self.increments(lines, [recipe.of_length(length) for length in COUNTED], 2_000)

    def held(self, recipe: Recipe, _: int) -> str:
        """Count bytes held at once."""
        texts = [recipe.of_length(length) for length in HELD]
        self.result.largest = max(self.result.largest, peak(lambda: self.run(texts[2])) / len(texts[2]))
        return self.increments(peak, texts, 2**20)

    def increments(self, count: Callable[[Callable[[], object]], int], texts: list[str], least: int) -> str:
        """Return the counts if they grow more and more; the longest text is counted only if the others say so."""
        if len(set(map(len, texts))) < len(texts):  # it does not grow
            return ""
        spent = [count(lambda text=text: self.run(text)) for text in texts[:3]]  # type: ignore[misc]
        if not self.steeper(spent, texts, least):
            return ""
        spent.append(count(lambda: self.run(texts[3])))
        return f"{spent} for {[len(text) for text in texts]} characters" if self.steeper(spent[1:], texts[1:], least) else ""

    def steeper(self, spent: list[int], texts: list[str], least: int) -> bool:
        (a, b, c), (x, y, z) = spent, map(len, texts[:3])
        return c - b > least and (c - b) / (z - y) > STEEP / 2 * max(b - a, least / 4) / (y - x)

    def timed(self, recipe: Recipe, length: int) -> str:
        """Measure processor time: at a length and four times that; then, if it seems steep, on and on."""
        texts = [recipe.of_length(length), recipe.of_length(4 * length)]
        if len(texts[1]) < 3 * len(texts[0]):
            return ""
        spent = [self.seconds(text) for text in texts]
        rate = spent[1] / len(texts[1]) * 1e6
        if rate > self.result.slowest:
            self.result.slowest, self.result.slowest_of = rate, recipe.words
        if spent[1] < 0.05 or spent[1] / spent[0] < 1.7 * len(texts[1]) / len(texts[0]):
            return ""
        measured: list[tuple[int, float]] = []
        steep = 0
        while length <= self.reader.longest:
            text = recipe.of_length(length)
            measured.append((len(text), self.seconds(text, 3 if spent[0] < 0.2 else 2)))
            if len(measured) > 1:
                (x, a), (y, b) = measured[-2:]
                steep = steep + 1 if b > 0.1 and b / a > STEEP / 2 * y / x else 0
            if steep == 3 or (steep == 2 and measured[-1][1] > 2):
                return ", ".join(f"{s:.2f} s for {n:,}" for n, s in measured) + " characters"
            if measured[-1][1] > 5:
                break
            length *= 2
        return ""


def explore(name: str, seconds: float, seed: int, inputs: int = 2**62) -> Result:
    """Measure a reader for a time, or so many inputs: first those that once took too long, at large lengths."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.signal(signal.SIGPROF, _give_up)
    reader, rng = READERS[name], random.Random(f"{name} {seed}")
    explorer = Explorer(name, reader)
    for text in reader.seeds():
        explorer.run(text)  # what is made once is made here
    end = time.monotonic() + seconds
    for recipe in reader.directed():
        if time.monotonic() < end and explorer.result.inputs < inputs:
            explorer.judge(recipe, "time", reader.longest // 128)
    while time.monotonic() < end and explorer.result.inputs < inputs:
        how = rng.choice(("lines", "bytes", "time", "time"))
        explorer.judge(drawn(reader.seeds(), reader.known, rng), how, rng.choice((16_000, 16_000, 16_000, 16_000, 64_000)))
    return explorer.result


def report(results: Sequence[Result], seconds: float, seed: int) -> str:
    """Return what docs/proof.md says of a run."""
    head = (
        "reader",
        "inputs",
        "different answers",
        "worse than linear",
        "microseconds for a character",
        "of an input with",
        "bytes for a character",
    )
    rows = [
        (r.reader, r.inputs, len(r.answers), len(r.failures), f"{r.slowest:.1f}", _quoted(r.slowest_of), f"{r.largest:,.0f}")
        for r in results
    ]
    text = stamp(seconds, seed, ("lark", "numpy", "pydantic")) + table(head, rows)
    told = (f"- {r.reader}: {visible(what)}" for r in results for what in r.failures.values())
    found = [textwrap.fill(line, 120, subsequent_indent="  ") for line in told]
    return text + ("\n".join(found) if found else "Nothing was worse than linear.") + "\n"


def _quoted(text: str) -> str:
    words = visible(" ".join(text.split()))[:40].replace("`", "'").replace("|", "/")
    return f"`{words}`" if words else ""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and record; return the exit status: 1 where something is worse than linear."""
    p = argparse.ArgumentParser(description="Measure every reader as its input grows.")
    p.add_argument("--minutes", type=float, default=20)
    p.add_argument("--seed", type=int, default=SystemRandom().randrange(2**31))
    p.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="readers at a time, default all processors")
    p.add_argument("--reader", action="append", choices=list(READERS), help="only this one; repeatable")
    p.add_argument("--no-record", action="store_true", help="leave docs/proof.md as it is")
    options = p.parse_args(argv)
    names = options.reader or list(READERS)
    began, seconds = time.monotonic(), options.minutes * 60 * min(options.jobs, len(names)) / len(names)
    try:
        with ProcessPoolExecutor(options.jobs, max_tasks_per_child=1) as pool:
            results = list(pool.map(explore, names, [seconds] * len(names), [options.seed] * len(names)))
    except KeyboardInterrupt:
        print("\ninterrupted: nothing is recorded", file=sys.stderr)
        return 130
    text = report(results, time.monotonic() - began, options.seed)
    print(text)
    if not options.no_record:
        record("growth", text)
    return int(any(r.failures for r in results))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Exception:
        traceback.print_exc()
        sys.exit(1)
