"""Train: `torchrun --nproc-per-node 2 interpreter/run.py schedules/chimera.sched -p D=2 -p N=8`.

Exit codes: 0, 1 for findings and failures, 2 for wrong usage.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

from chimerac.interpreter.launch.failures import EXIT_DELAY_S, end, end_with
from chimerac.interpreter.launch.options import parse_options
from chimerac.interpreter.launch.planning import planned
from chimerac.interpreter.launch.settings import RunSettings
from chimerac.interpreter.pipeline.world import check_world


def main() -> int:
    """Run this rank and return its exit code."""
    # Python puts the folder of a script first: `import training` would find interpreter/training.
    if sys.path and sys.path[0] and Path(sys.path[0]).resolve() == Path(__file__).resolve().parent:
        del sys.path[0]
    reports = os.environ.get("LOCAL_RANK", "0") == "0"
    settings = _settings(reports)
    # Ctrl-C reaches every rank: each exits at once and without a message, even while it waits inside gloo.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        plan = planned(settings, notify=lambda text: print(text, file=sys.stderr) if reports else None)
        if not settings.loopback:
            if "RANK" not in os.environ:
                command = f"torchrun --nproc-per-node {plan.program.world} {' '.join(sys.argv)}"
                print(f"one process is one rank; start all {plan.program.world} of them with\n\n  {command}\n", file=sys.stderr)
                return 2
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
            end(int(exit.code or 0), after_s=EXIT_DELAY_S if exit.code and not reports else 0)


if __name__ == "__main__":
    sys.exit(main())
