"""Runs a script as ranks that are forks of one process, so that torch is imported once.

Usage: python -m tests.forked_ranks RANKS SCRIPT ARGUMENT...

As under torchrun, each rank has its number and the number of ranks in its environment, and one store serves all process groups
of the script. If a rank fails, the others are killed, and the exit status is 1.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import traceback
from pathlib import Path

import torch
import torch._dynamo.config  # describing a model needs it, and importing it takes as long as importing torch
from torch.distributed import TCPStore

from chimerac.interpreter import Pipeline  # noqa: F401 (most scripts import it)
from chimerac.interpreter.launch.startup import end_with_parent
from tests.helpers_processes import free_port, kill, rank_environment

# The ranks use the store of the process that started them (torch.distributed.run sets the same).
STORE = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}


def run_rank(script: str, arguments: list[str], environment: dict[str, str]) -> int:
    """Run the script in this process, as Python would; return its exit code."""
    end_with_parent()
    os.environ |= environment
    sys.argv, sys.path[0] = [script, *arguments], str(Path(script).parent)
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
            return 1
        return end.code or 0
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def main(ranks: int, script: str, *arguments: str) -> int:
    """Run the script on `ranks` ranks. Return 0, or 1 if a rank fails."""
    torch.set_num_threads(1)  # so that torch starts no threads: a fork would not have them
    port, running = free_port(), []
    for rank in range(ranks):
        pid = os.fork()
        if not pid:
            os._exit(run_rank(script, [*arguments], rank_environment(rank, ranks, port) | STORE))
        running.append(pid)
    # The store exists until the ranks have ended. It is made after the forks, because it has a thread.
    _store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    while running:
        pid, status = os.wait()
        running.remove(pid)
        if code := os.waitstatus_to_exitcode(status):
            if code == -signal.SIGKILL:
                print("a rank was killed", file=sys.stderr)
            for other in running:
                kill(other)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), *sys.argv[2:]))
