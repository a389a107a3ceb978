"""Train: `torchrun --nproc-per-node 2 interpreter/run.py schedules/chimera.sched -p D=2 -p N=8`.

Exit codes: 0, 1 for findings and failures, 2 for wrong usage.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from io import StringIO

from chimerac.interpreter.launch.failures import GIVE_WAY_S, end, end_with
from chimerac.interpreter.launch.options import parse_options
from chimerac.interpreter.launch.plan import check_world
from chimerac.interpreter.launch.planning import planned
from chimerac.interpreter.launch.settings import RunSettings


def main() -> int:
    """Run this rank and return its exit code."""
    speaks = os.environ.get("LOCAL_RANK", "0") == "0"
    settings = _settings(speaks)
    # Ctrl-C reaches every rank: each ends at once and silently, even while it waits inside gloo.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        plan = planned(settings, say=lambda text: print(text, file=sys.stderr) if speaks else None)
        if not settings.loopback:
            if "RANK" not in os.environ:
                command = f"torchrun --nproc-per-node {plan.program.world} {' '.join(sys.argv)}"
                print(f"one process is one rank; start all {plan.program.world} of them with\n\n  {command}\n", file=sys.stderr)
                return 2
            check_world(plan.program, int(os.environ["WORLD_SIZE"]))
        # torch and what needs it take 2.6 s to import: findings about the program do not wait for them.
        from chimerac.interpreter.launch.start import start

        return start(plan, settings)
    except BrokenPipeError:  # the reader of the output, head for instance, has closed it
        os._exit(1)
    except Exception as error:
        end_with(error, speaks)


def _settings(speaks: bool) -> RunSettings:
    """Return the settings. All ranks read the same command line; one rank of a machine reports what is wrong with it."""
    with ExitStack() as quiet:
        if not speaks:
            quiet.enter_context(redirect_stdout(StringIO()))
            quiet.enter_context(redirect_stderr(StringIO()))
        try:
            return parse_options()
        except SystemExit as exit:
            end(int(exit.code or 0), after_s=GIVE_WAY_S if exit.code and not speaks else 0)


if __name__ == "__main__":
    sys.exit(main())
