"""The worker process of the fuzzing: it mutates inputs, runs them and logs the failures.

    python -m tests.proof.fuzz_engine TARGET ENGINE SECONDS SEED FOLDER

The engine `atheris` is guided by coverage. The engine `builtin` needs no package. It adds an input to its corpus if the target
gives a new answer for it.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import random
import re
import resource
import signal
import struct
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MEMORY_BYTES = 4 * 2**30  # bytes of address space that a worker may use
SLOW_S = 5.0  # seconds of processor time that an input of at most LARGE_BYTES bytes may take
LARGE_BYTES = 100_000  # longer inputs may take longer
HANG_S = 30  # seconds after which an input is aborted
MAX_BYTES = 20_000  # the most bytes of a mutated input; seeds may be longer
MAX_CORPUS = 5_000  # the most inputs in the corpus of the engine `builtin`
SAVED_BYTES = 8 * MAX_BYTES  # bytes of the current input that are kept in the file `running`
HEAD = struct.Struct("<dQ")  # the head of the file `running`: the start time and the length of the input
UNLIMITED = 2**62  # stands for any number of executions, or of inputs

_WORD = re.compile(rb"[A-Za-z_]\w*|\d+|\s+|\.\.|[^\w\s]")


def words(data: bytes) -> list[bytes]:
    """Split an input into words, numbers, signs and spaces."""
    return _WORD.findall(data)


def mutated(data: bytes, known: Sequence[bytes], other: bytes, rng: random.Random) -> bytes:
    """Return the input with some words dropped, repeated, swapped, inserted or changed, cut to MAX_BYTES.

    Args:
        known: words that are inserted or replace others.
        other: an input from which words are copied.
    """
    parts = words(data) or [b""]
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        at, count = rng.randrange(len(parts)), rng.choice((1, 1, 2, 5, 20))
        match rng.randrange(8):
            case 0:
                del parts[at : at + count]
            case 1:
                parts[at:at] = parts[at : at + count] * rng.choice((1, 1, 2, 50))
            case 2:
                second = rng.randrange(len(parts))
                parts[at], parts[second] = parts[second], parts[at]
            case 3:
                parts[at] = rng.choice(known)
            case 4:
                parts.insert(at, rng.choice(known))
            case 5:
                numbers = [i for i, x in enumerate(parts) if x.isdigit() and len(x) < 20]
                if numbers:
                    number_at = rng.choice(numbers)
                    parts[number_at] = str(max(0, int(parts[number_at]) + rng.choice((-1, 1, 2, -7, 64)))).encode()
            case 6:
                other_words = words(other) or [b""]
                start = rng.randrange(len(other_words))
                parts[at:at] = other_words[start : start + count]
            case _:
                word = bytearray(parts[at] or b"x")
                word[rng.randrange(len(word))] = rng.randrange(256)
                parts[at] = bytes(word)
        parts = parts or [b""]
    return b"".join(parts)[:MAX_BYTES]


@dataclass
class Log:
    """The results of a worker. They are written to `log.json` in the folder, and failing inputs to files beside it.

    Attributes:
        failures: by name, what failed; the name is part of the name of the input's file.
        slowest_s, slowest_input: the processor time of the slowest input, and this input.
        corpus_size: inputs in the corpus at the end; 0 with atheris, whose own output says it.
        written: when the log was last written.
    """

    target: str
    folder: Path
    executions: int = 0
    failures: dict[str, str] = field(default_factory=dict)
    slowest_s: float = 0.0
    slowest_input: bytes = b""
    corpus_size: int = 0
    written: float = 0.0

    def write(self, end: bool = False) -> None:
        """Write the log, at most once a second.

        Args:
            end: write it now, for the last time.
        """
        if end or time.monotonic() - self.written > 1:
            self.written = time.monotonic()
            facts: dict[str, Any] = {k: v for k, v in vars(self).items() if k not in ("folder", "slowest_input", "written")}
            facts["slowest_bytes"] = len(self.slowest_input)
            facts["slowest_text"] = self.slowest_input[:200].decode("utf-8", "replace")
            path = self.folder / "log.json"
            path.with_suffix(".new").write_text(json.dumps(facts))
            path.with_suffix(".new").replace(path)

    def fail(self, what: str, data: bytes) -> None:
        """Record a failure, and save its input if it is the shortest one for this failure."""
        name = hashlib.sha256(what.encode()).hexdigest()[:12]
        path = self.folder / f"fail-{name}"
        if not path.exists() or len(data) < path.stat().st_size:
            path.write_bytes(data)
            self.failures[name] = what


class HangError(BaseException):
    """An input took longer than HANG_S seconds."""


def _abort(*_: object) -> None:
    raise HangError


def failure_name(error: BaseException) -> str:
    """Return the kind, the beginning of the message and the place of an error. Failures with the same name count as one.

    The place is the two innermost functions that are not in this folder.
    """
    last = [f for f in traceback.extract_tb(error.__traceback__) if "proof" not in f.filename][-2:]
    where = " < ".join(f"{Path(f.filename).name}:{f.name}" for f in reversed(last))
    return f"{type(error).__name__} {re.sub(r'[0-9]+', 'N', str(error))[:80]} at {where}"


class Runner:
    """Runs inputs one after another, with limits on their time. A file holds the current input, in case the process dies."""

    def __init__(self, target: str, folder: Path) -> None:
        from tests.proof.fuzz_targets import TARGETS  # not at the top: run_worker lets atheris instrument this import

        self.target, self.log = TARGETS[target], Log(target, folder)
        (folder / "running").write_bytes(bytes(HEAD.size + SAVED_BYTES))
        with (folder / "running").open("r+b") as file:
            self.current = mmap.mmap(file.fileno(), 0)
        signal.signal(signal.SIGALRM, _abort)

    def __call__(self, data: bytes) -> str:
        """Run an input, and log it. Return the target's answer.

        For a ChimeraError the answer is the codes of its findings, for any other error ''.
        """
        from chimerac.chimera_ir.diagnostics import ChimeraError
        from tests.proof.fuzz_targets import codes_of

        saved = data[:SAVED_BYTES]
        self.current[: HEAD.size + len(saved)] = HEAD.pack(time.time(), len(data)) + saved
        before, answer = time.process_time(), ""
        signal.alarm(HANG_S)
        try:
            try:
                answer = self.target.run(data)
            except ChimeraError as error:
                answer = codes_of(error)
        except HangError:
            self.log.fail(f"aborted after {HANG_S} seconds", data)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            self.log.fail(failure_name(error), data)
        finally:
            signal.alarm(0)
        spent = time.process_time() - before
        if spent > SLOW_S and len(data) <= LARGE_BYTES:
            self.log.fail(f"more than {SLOW_S} seconds: {answer or 'no answer'}", data)
        if spent > self.log.slowest_s:
            self.log.slowest_s, self.log.slowest_input = spent, data
            (self.log.folder / "slowest").write_bytes(data)
        self.log.executions += 1
        self.log.write()
        return answer


def run_builtin(runner: Runner, seed: int, seconds: float, executions: int = UNLIMITED) -> None:
    """Fuzz without atheris, until the seconds are over or `executions` inputs were run.

    Without a limit on executions, all seeds are run first.
    """
    rng, corpus, seen = random.Random(seed), runner.target.seeds(), set[str]()
    known = known_words(runner)
    end = time.monotonic() + seconds
    for k in range(executions):
        if time.monotonic() > end:
            break
        is_seed = k < len(corpus) and executions == UNLIMITED
        data = corpus[k] if is_seed else mutated(rng.choice(corpus), known, rng.choice(corpus), rng)
        answer = runner(data)
        if answer not in seen and len(corpus) < MAX_CORPUS:
            seen.add(answer)
            if not is_seed:  # the seeds are in the corpus
                corpus.append(data)
    runner.log.corpus_size = len(corpus)
    runner.log.write(end=True)


def known_words(runner: Runner) -> list[bytes]:
    """Return the words from which inputs of a target are built."""
    return [w.encode() for w in runner.target.words] + sorted({w for s in runner.target.seeds() for w in words(s)})


def run_atheris(runner: Runner, seed: int, seconds: float) -> None:
    """Fuzz with atheris for some seconds. Then atheris ends the process."""
    import atheris

    known, rng, corpus = known_words(runner), random.Random(seed), runner.log.folder / "corpus"
    seeds = runner.target.seeds()
    corpus.mkdir(exist_ok=True)
    for data in seeds:
        (corpus / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)

    def mutate(data: bytes, max_bytes: int, mutation_seed: int) -> bytes:
        rng.seed(mutation_seed)
        if rng.random() < 0.3:
            return bytes(atheris.Mutate(data, max_bytes))
        return mutated(data, known, rng.choice(seeds), rng)[:max_bytes]

    # timeout and rss_limit_mb: 0 for no limit; Runner and run_worker have their own
    options = {"max_total_time": int(seconds), "seed": seed % 2**31, "max_len": MAX_BYTES, "timeout": 0, "rss_limit_mb": 0}
    artifacts = f"-artifact_prefix={runner.log.folder}/"  # for slow inputs, which would otherwise go into the repository
    flags = ["-print_final_stats=1", "-reload=0", artifacts]
    arguments = ["fuzz", *(f"-{k}={v}" for k, v in options.items()), *flags, str(corpus)]

    def run_one(data: bytes) -> None:
        runner(data)

    atheris.Setup(arguments, run_one, custom_mutator=mutate)
    atheris.Fuzz()


def run_worker(target: str, engine: str, seconds: float, seed: int, folder: Path) -> None:
    """Fuzz a target with an engine for some seconds.

    Args:
        folder: for the log and the failing inputs.
    """
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    if engine == "atheris":
        import atheris

        # atheris compares the first component of a module's name with `include`.
        with atheris.instrument_imports(include=["chimerac"], enable_loader_override=False):
            import tests.proof.fuzz_targets  # noqa: F401
        run_atheris(Runner(target, folder), seed, seconds)
    else:
        run_builtin(Runner(target, folder), seed, seconds)


if __name__ == "__main__":
    name, engine, seconds, seed, folder = sys.argv[1:]
    run_worker(name, engine, float(seconds), int(seed), Path(folder))
