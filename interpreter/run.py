"""Train: `python interpreter/run.py schedules/chimera.sched -p D=2 -p N=8` starts the ranks of the program.

torchrun can start them too. Exit codes: 0, 1 for findings and failures, 2 for wrong usage, 130 after Ctrl-C, 143 after SIGTERM.
"""

from __future__ import annotations

if __name__ == "__main__":
    # Before all other imports: from here on this process ends when its parent ends, and at Ctrl-C without a traceback.
    from chimerac.interpreter.launch.startup import begin_process

    begin_process()

import os
import sys
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

from chimerac.interpreter.launch.failures import EXIT_DELAY_S, end, end_with, write_error_file
from chimerac.interpreter.launch.options import parse_options
from chimerac.interpreter.launch.planning import planned
from chimerac.interpreter.launch.settings import RunSettings
from chimerac.interpreter.pipeline.world import check_world


def main() -> int:
    """Run this rank, or start all ranks where torchrun has not, and return the exit code."""
    # Python puts the folder of a script first: `import training` would find interpreter/training.
    if sys.path and sys.path[0] and Path(sys.path[0]).resolve() == Path(__file__).resolve().parent:
        del sys.path[0]
    reports = os.environ.get("LOCAL_RANK", "0") == "0"
    settings = _settings(reports)
    try:
        plan = planned(settings, notify=lambda text: print(text, file=sys.stderr) if reports else None)
        if not settings.loopback:
            if "RANK" not in os.environ:
                # The launcher imports torch, which takes 2.6 s. Findings about the program come before that.
                from chimerac.interpreter.launch.launcher import launch

                return launch(["--standalone", f"--nproc-per-node={plan.program.world}", __file__, *sys.argv[1:]], plan)
            check_world(plan.program, int(os.environ["WORLD_SIZE"]))
        # torch and the modules that use it take 2.6 s to import. Findings about the program come before that.
        from chimerac.interpreter.launch.start import start

        return start(plan, settings)
    except BrokenPipeError:  # the process that reads the output, such as head, has closed it
        os._exit(1)
    except Exception as error:
        end_with(error, reports)


def _settings(reports: bool) -> RunSettings:
    """Return the settings. All ranks read the same command line; the first rank of each machine reports errors in it."""
    with ExitStack() as stack:
        if not reports:
            stack.enter_context(redirect_stdout(StringIO()))
            stack.enter_context(redirect_stderr(StringIO()))
        try:
            return parse_options()
        except SystemExit as exit:
            if exit.code and reports:
                write_error_file("the command line is wrong")
            end(int(exit.code or 0), after_s=EXIT_DELAY_S if exit.code and not reports else 0)


if __name__ == "__main__":
    sys.exit(main())
