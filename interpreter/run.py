"""Train: `torchrun --nproc-per-node 2 interpreter/run.py schedules/chimera.sched -p D=2 -p N=8`.

The one file that sees everything: it compiles the schedule, builds the model and the data, and runs this rank.
Exit codes: 0, 1 for findings and failures, 2 for wrong usage. torch is imported only after the program is compiled, so
that findings come at once.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
import traceback
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from io import StringIO
from typing import TYPE_CHECKING, NoReturn

from chimera_ir.diagnostics import ChimeraError, refuse, render
from chimera_ir.program import Program
from interpreter.options import parse_options

if TYPE_CHECKING:
    from interpreter.data import Windows
    from interpreter.training import Trainer

GRADIENT_TOLERANCE = 1e-4  # relative, float32
HELD_OUT_SAMPLES = 256
GIVE_WAY_S = 20  # torchrun ends all ranks as soon as one has failed: the one that says why must be the first


def main() -> int:
    """Run this rank and return its exit code."""
    speaks = os.environ.get("LOCAL_RANK", "0") == "0"
    options = _options(speaks)
    # Ctrl-C reaches every rank: each ends at once and silently, even while it waits inside gloo.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        program = compiled(options)
        if "RANK" not in os.environ:
            command = f"torchrun --nproc-per-node {program.world} {' '.join(sys.argv)}"
            print(f"one process is one rank; start all {program.world} of them with\n\n  {command}\n", file=sys.stderr)
            return 2
        return run(program, options)
    except ChimeraError as error:
        # Every rank finds the same, as a rule. One that is still there after a while has found something of its own.
        time.sleep(0 if speaks else GIVE_WAY_S)
        print(render(error.diagnostics, sys.stderr.isatty()), end="", file=sys.stderr)
        _end(1)
    except Exception as error:
        # RankError names rank and instruction. Where only a peer is gone, that peer's own message has the reason.
        if not isinstance(error.__cause__ or error, ConnectionError):
            traceback.print_exc()
        print(f"error: {error}", file=sys.stderr)
        _end(1)


def _options(speaks: bool) -> argparse.Namespace:
    """Return the command line's options. All ranks read the same one, and one of a machine says what is wrong with it."""
    with ExitStack() as quiet:
        if not speaks:
            quiet.enter_context(redirect_stdout(StringIO()))
            quiet.enter_context(redirect_stderr(StringIO()))
        try:
            return parse_options()
        except SystemExit as end:
            _end(int(end.code or 0), after_s=GIVE_WAY_S if end.code and not speaks else 0)


def _end(code: int, after_s: float = 0) -> NoReturn:
    """End this process at once: unwinding would wait for transfers whose peers may never come."""
    time.sleep(after_s)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def compiled(options: argparse.Namespace) -> Program:
    """Return the verified program of a schedule or a JSON file."""
    from compiler import compile_schedule, load_program

    if options.schedule.suffix != ".json":
        return compile_schedule(options.schedule, dict(options.parameters), options.width).program
    if options.parameters or options.width != 1:
        raise refuse(
            "E808",
            f"{options.schedule} is a compiled program: its parameters and its width stand",
            help="leave out -p and --width, or give the schedule instead of its program",
        )
    return load_program(options.schedule)


def check_world(program: Program, started: int) -> None:
    """Raise ChimeraError E800 where the program has not one stream for every process that was started."""
    if started != program.world:
        raise refuse(
            "E800",
            f"{program.world} ranks are needed and {started} were started",
            notes=(f"{program.header.width} data-parallel replicas x {program.header.ranks} pipeline ranks",),
            help=f"start them with: torchrun --nproc-per-node {program.world} ...",
        )


def run(program: Program, options: argparse.Namespace) -> int:
    """Prepare, train and report; return the exit code."""
    check_world(program, int(os.environ["WORLD_SIZE"]))

    import torch

    from interpreter.data import Windows, load_text, split_text
    from interpreter.training import Settings, Trainer, samples_per_micro_batch
    from interpreter.transport.gloo import Gloo, join, leave
    from models.describe import describe
    from models.gpt import gpt

    torch.set_num_threads(max(1, (os.cpu_count() or 1) // int(os.environ["LOCAL_WORLD_SIZE"])))
    settings = Settings(options.iterations, options.seed, options.micro_batch, options.lr)
    model = gpt(options.model, options.seq_len, options.dropout)
    description = describe(model, samples_per_micro_batch(program, options.micro_batch))
    description.cut(program.header.stages)  # whatever can be refused is refused before ranks meet
    parts = split_text(load_text(options.data), options.seq_len)
    source, held_out = (Windows(part, options.seq_len, options.seed) for part in parts)
    join(options.timeout)
    trainer = Trainer(program, model, description, source, Gloo(), settings)
    if trainer.transport.rank == 0:
        h = program.header
        print(f"{h.schedule}: {program.world} ranks, {h.stages} stages, {h.micro_batches} micro-batches", end="")
        print(f" of {trainer.size} samples of {options.seq_len} bytes")
        print(f"{model.name}: {description.parameters:,} parameters; ", end="")
        print(f"text: {len(source.text):,} bytes, {len(held_out.text):,} held out", flush=True)
    code = train(trainer, held_out, options.check_gradients)
    leave()
    return code


def train(trainer: Trainer, held_out: Windows, check_gradients: bool) -> int:
    """Run all iterations, saying on rank 0 how it goes, and return the exit code."""
    from interpreter import reference
    from interpreter.data import unigram_entropy

    iterations, transport = trainer.settings.iterations, trainer.transport
    tokens = trainer.batch(0, 0).valid_targets
    parent, every = os.getppid(), max(1, iterations // 10)
    losses, trained_s = [], 0.0

    def say(text: str) -> None:
        if transport.rank == 0:
            print(text, flush=True)

    for iteration in range(iterations):
        if os.getppid() != parent:
            _end(1)  # torchrun is gone: nobody would end this rank any more
        start = time.perf_counter()
        loss = trainer.gradients(iteration)
        taken_s = time.perf_counter() - start
        if iteration == 0 and check_gradients:
            difference = reference.largest_difference(trainer)
            if difference > GRADIENT_TOLERANCE:
                say(f"gradients differ from one process: by {difference:.1e}, more than {GRADIENT_TOLERANCE:.0e}")
                return 1
            say(f"gradients equal one process: largest relative difference {difference:.1e}")
        start = time.perf_counter()
        result = trainer.update(iteration, loss)
        taken_s += time.perf_counter() - start
        trained_s += taken_s
        losses.append(result.loss)
        if iteration % every == 0 or iteration == iterations - 1:
            speed = f"{tokens / taken_s:9,.0f} tokens/s"
            say(f"iteration {iteration + 1:>5}   loss {result.loss:6.3f}   gradient norm {result.norm:7.3f}   {speed}")
    unseen = reference.held_out_loss(trainer, held_out, HELD_OUT_SAMPLES)
    say(f"\nloss at the start   {losses[0]:9.3f}   nats per byte")
    say(f"loss at the end     {losses[-1]:9.3f}")
    say(f"held-out loss       {unseen:9.3f}")
    say(f"unigram entropy     {unigram_entropy(held_out.text):9.3f}   of the held-out text")
    say(f"tokens per second   {tokens * iterations / trained_s:9,.0f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
