"""Train: `python interpreter/run.py schedules/chimera.sched -p D=2 -p N=8` starts the ranks of the program.

torchrun can start them too. Exit codes: 0 for success; 1 for findings and failures; 2 for a wrong command line or config file;
130 after Ctrl-C; 143 after SIGTERM. If this process starts the ranks and they fail, it returns the exit code of the rank that
failed first, or 128 plus the number of the signal that killed that rank.
"""

from __future__ import annotations

if __name__ == "__main__":
    # Before all other imports: from here on Ctrl-C ends this process without a traceback, and a rank ends when its parent ends.
    from chimerac.interpreter.launch.startup import begin_process

    begin_process()

import os
import sys
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

from chimerac.chimera_ir.files import write_stderr
from chimerac.interpreter.errors import InterpreterError
from chimerac.interpreter.launch.failures import EXIT_DELAY_S, end, end_with, write_error_file
from chimerac.interpreter.launch.options import parse_options
from chimerac.interpreter.launch.planning import make_plan
from chimerac.interpreter.launch.settings import RunSettings
from chimerac.interpreter.pipeline.world import check_world


def main() -> int:
    """Run this rank if torchrun has started this process, otherwise start all ranks, and return the exit code.

    With --loopback all ranks run in this process.
    """
    # Python searches the folder of the script first, so `import training` would import interpreter/training.
    if sys.path and sys.path[0] and Path(sys.path[0]).resolve() == Path(__file__).resolve().parent:
        del sys.path[0]
    is_first_here = os.environ.get("LOCAL_RANK", "0") == "0"  # the first rank of each host prints messages
    settings = _settings(is_first_here)
    try:
        plan = make_plan(settings, notify=lambda text: write_stderr(f"{text}\n") if is_first_here else None)
        if not settings.loopback:
            if "RANK" not in os.environ:
                # The launcher imports torch, which takes 2 s. Findings about the program are printed before that.
                from chimerac.interpreter.launch.launcher import launch

                return launch(["--standalone", f"--nproc-per-node={plan.program.world}", __file__, *sys.argv[1:]], plan)
            _check_environment()
            check_world(plan.program, int(os.environ["WORLD_SIZE"]))
        # torch and the modules that use it take 2.6 s to import. Findings about the program are printed before that.
        from chimerac.interpreter.launch.start import start

        return start(plan, settings)
    except BrokenPipeError:  # the process that reads the output, such as head, has closed it
        os._exit(1)
    except Exception as error:
        end_with(error, is_first_here)


def _settings(prints: bool) -> RunSettings:
    """Return the settings of the command line.

    Args:
        prints: whether this rank prints help and errors.
    """
    with ExitStack() as stack:
        if not prints:
            stack.enter_context(redirect_stdout(StringIO()))
            stack.enter_context(redirect_stderr(StringIO()))
        try:
            return parse_options()
        except SystemExit as exit:
            if exit.code and prints:
                write_error_file("the command line or the config file is wrong")
            # The rank that prints the error must exit first: then torchrun ends the others.
            end(int(exit.code or 0), after_s=EXIT_DELAY_S if exit.code and not prints else 0)


def _check_environment() -> None:
    """Raise InterpreterError if the environment has RANK, but lacks other variables that torchrun sets together with it."""
    if missing := [name for name in ("WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE") if name not in os.environ]:
        raise InterpreterError(
            f"the environment has RANK, as in a process that torchrun started, but lacks {', '.join(missing)}: "
            "start the ranks with torchrun, or unset RANK to start all of them on this host"
        )


if __name__ == "__main__":
    sys.exit(main())
