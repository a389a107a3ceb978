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
from collections.abc import Callable
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from chimerac.chimera_ir.diagnostics import ChimeraError, Source, refuse, render
from chimerac.chimera_ir.files import read
from chimerac.chimera_ir.forms import is_program, read_program
from chimerac.chimera_ir.program import Machine, Program
from chimerac.interpreter.launch.options import parse_options
from chimerac.interpreter.launch.plan import Plan, Times

if TYPE_CHECKING:
    from chimerac.interpreter.launch.job import Job
    from chimerac.interpreter.transport import Transport

TRANSPORT: Machine = "window"  # what ranks of their own run, over gloo and NCCL: docs/semantics.md, "Machines"
GIVE_WAY_S = 20  # torchrun ends all ranks as soon as one has failed: the one that says why must be the first


def main() -> int:
    """Run this rank and return its exit code."""
    speaks = os.environ.get("LOCAL_RANK", "0") == "0"
    options = _options(speaks)
    # Ctrl-C reaches every rank: each ends at once and silently, even while it waits inside gloo.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        plan = planned(options, speaks)
        if options.loopback:
            return run_loopback(plan, options)
        if "RANK" not in os.environ:
            command = f"torchrun --nproc-per-node {plan.program.world} {' '.join(sys.argv)}"
            print(f"one process is one rank; start all {plan.program.world} of them with\n\n  {command}\n", file=sys.stderr)
            return 2
        check_world(plan.program, int(os.environ["WORLD_SIZE"]))
        return run_rank(plan, options)
    except ChimeraError as error:
        # Every rank finds the same, as a rule. One that is still there after a while has found something of its own.
        time.sleep(0 if speaks else GIVE_WAY_S)
        print(render(error.diagnostics, sys.stderr.isatty()), end="", file=sys.stderr)
        _end(1)
    except BrokenPipeError:  # the reader of our output, head for instance, has seen enough
        os._exit(1)
    except Exception as error:
        # RankError names rank and instruction. Where only a peer is gone, that peer's own message has the reason.
        # Where nobody can move, every rank's wait is the whole story.
        causes = (error, error.__cause__)
        time.sleep(max(getattr(e, "give_way_s", 0) for e in causes))
        gone = any(isinstance(e, ConnectionError) for e in causes)
        if not gone and type(error).__name__ != "StuckError":
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


def planned(options: argparse.Namespace, speaks: bool) -> Plan:
    """Return the verified program of a schedule or of a compiled file, and what the compiler derives from it."""
    text = _program_text(options.schedule)
    if text is not None and (options.parameters or options.width is not None):
        raise refuse(
            "E808",
            f"{options.schedule} is a compiled program: its parameters and its width stand",
            help="leave out -p and --width, or give the schedule instead of its program",
        )
    try:
        from chimerac.compiler import load_program
    except ImportError as error:
        return _unverified(options, text, str(error), speaks)
    program = _compiled(options) if text is None else load_program(options.schedule)
    _must_train(program)
    if options.loopback:
        return plan_of(program, timed=False, machine=options.machine)
    _must_end(program, options)
    return plan_of(program, timed=options.timed is not None, machine=TRANSPORT)


def plan_of(program: Program, timed: bool, machine: Machine | None = None) -> Plan:
    """Return a program with what the compiler derives from it. machine: on which it runs; its own if not given."""
    from chimerac.compiler import evaluation_of, simulate

    _must_train(program)
    running = program.with_header(machine=machine or program.header.machine)
    if not timed:
        return Plan(program, evaluation_of(running), None)
    # Messages are real: they take the time that they take.
    simulated = simulate(running, {"hop": 0})
    idle = tuple(bubble / simulated.makespan for bubble in simulated.wall_bubbles) if simulated.makespan else (0.0,)
    return Plan(program, None, Times(simulated.makespan / simulated.scale, idle))


def _program_text(path: Path) -> Source | None:
    """Return the text of a compiled program, or nothing where the path is not that of one."""
    try:
        source = Source(str(path), read(path))
    except ChimeraError:
        return None  # the compiler says what is wrong with it
    return source if is_program(source) else None


def _compiled(options: argparse.Namespace) -> Program:
    """Return the program of a schedule. A parameter D that is not given follows from the number of processes."""
    from chimerac.compiler import compile_schedule

    parameters, width = dict(options.parameters), options.width or 1
    started = int(os.environ.get("WORLD_SIZE", "0"))
    if "D" not in parameters and started and started % width == 0 and not options.loopback:
        depth = started // width
        try:
            return compile_schedule(options.schedule, parameters | {"D": depth}, width).program
        except ChimeraError as error:
            if all(d.code != "E203" for d in error.diagnostics):  # the schedule has a parameter D
                note = f"D = {depth} follows from the {started} processes that were started"
                raise ChimeraError(
                    replace(d, notes=tuple(note if n == f"D was given: -p D={depth}" else n for n in d.notes))
                    for d in error.diagnostics
                ) from None
    return compile_schedule(options.schedule, parameters, width).program


def _unverified(options: argparse.Namespace, text: Source | None, reason: str, speaks: bool) -> Plan:
    """Return the program of a compiled file as it stands: the interpreter needs no compiler."""
    path = options.schedule
    if text is None:
        raise refuse(
            "E813",
            f"{path} is no compiled program, and the compiler cannot be imported: {reason}",
            help="compile it where the compiler is: chimerac SCHEDULE --emit json -o p.json",
        )
    if speaks:
        print(f"without the compiler ({reason}): {path} is not verified again, and nothing is evaluated", file=sys.stderr)
    program = read_program(text)
    _must_train(program)
    if program.header.machine == "posted" and not options.loopback:
        # What ends on another machine than `posted` ends on the transport's too (docs/semantics.md, "Machines").
        note = "whether it ends there all the same, only the compiler can say"
        raise _for_another(program, options, note, f"where the compiler is: {_arranging(options.schedule)}")
    return Plan(program, None, None)


def _must_end(program: Program, options: argparse.Namespace) -> None:
    """Raise ChimeraError E816 where a verified program does not end on the machine of the transport."""
    from chimerac.compiler import verify
    from chimerac.compiler.lower.again import arranged
    from chimerac.compiler.verify import findings

    there = program.with_header(machine=TRANSPORT)
    try:
        verify(there)
    except ChimeraError as error:
        why = error.diagnostics[0].message
        result = arranged(there, TRANSPORT)
        left = [] if result is None else findings(result)
        if result is None or left:
            tried = f"comes to {left[0].code}" if left else "finds no one order for all replicas"
            raise _for_another(program, options, why, f"add --loopback, as --for {TRANSPORT} was tried and {tried}") from None
        raise _for_another(program, options, why, f"{_arranging(options.schedule)} was tried: it then ends there") from None


def _for_another(program: Program, options: argparse.Namespace, note: str, help: str) -> ChimeraError:
    machine, window = program.header.machine, program.header.window
    message = f"{options.schedule} is for the {machine} machine, and ranks over {options.transport} run {TRANSPORT}({window})"
    return refuse("E816", message, notes=(note,), help=help)


def _arranging(path: Path) -> str:
    return f"chimerac {path} --for {TRANSPORT} --emit json -o arranged.json"


def _must_train(program: Program) -> None:
    if program.header.kind != "training":
        raise refuse("E814", f"the program is of kind {program.header.kind}: it has nothing to train with")


def check_world(program: Program, started: int) -> None:
    """Raise ChimeraError E800 where the program has not one stream for every process that was started."""
    if started != program.world:
        raise refuse(
            "E800",
            f"{program.world} ranks are needed and {started} were started",
            notes=(f"{program.header.width} data-parallel replicas x {program.header.ranks} pipeline ranks",),
            help=f"start them with: torchrun --nproc-per-node {program.world} ...",
        )


def prepared(plan: Plan, options: argparse.Namespace, ranks_here: int) -> Job:
    """Return the work of every rank. Whatever can be refused is refused here, before ranks meet."""
    from chimerac.interpreter.launch.job import TimedJob, TrainingJob

    if options.timed is not None:
        return TimedJob(plan, options)
    return TrainingJob(plan, options, ranks_here)


def run_rank(plan: Plan, options: argparse.Namespace) -> int:
    """Run as one of the ranks that torchrun has started; return the exit code."""
    import torch

    from chimerac.interpreter.launch.measure import processors
    from chimerac.interpreter.transport import gloo, nccl

    ranks_here, local_rank = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["LOCAL_RANK"])
    torch.set_num_threads(max(1, processors() // ranks_here))
    if options.transport != "gloo" and not torch.cuda.is_available():
        raise refuse(
            "E815", f"--transport {options.transport} needs a GPU, and torch finds none", help="leave it out to run on CPUs"
        )
    job = prepared(plan, options, ranks_here)
    transport: Transport
    match options.transport:
        case "nccl":
            nccl.join(options.timeout, local_rank)
            transport = nccl.Nccl()
        case "staged":
            gpu = torch.device("cuda", local_rank % torch.cuda.device_count())
            torch.cuda.set_device(gpu)
            gloo.join(options.timeout)
            transport = gloo.Gloo(gpu)
        case _:
            gloo.join(options.timeout)
            transport = gloo.Gloo()
    code = job.run(transport, alive=_watch_parent())
    gloo.leave()
    return code


def run_loopback(plan: Plan, options: argparse.Namespace) -> int:
    """Run all ranks in this process, one at a time; return the exit code."""
    from chimerac.interpreter.transport.loopback import run_in_loopback

    job = prepared(plan, options, ranks_here=plan.program.world)
    machine = options.machine or plan.program.header.machine
    codes = run_in_loopback(plan.program, lambda transport: job.run(transport, alive=lambda: None), options.seed, machine)
    return max(codes)


def _watch_parent() -> Callable[[], None]:
    """Return what ends this rank where torchrun is gone: nobody else would."""
    parent = os.getppid()

    def alive() -> None:
        if os.getppid() != parent:
            _end(1)

    return alive


if __name__ == "__main__":
    sys.exit(main())
