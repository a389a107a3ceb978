"""Starts the ranks of a job like torchrun, with the same options, and prints one message if a rank fails.

    python -m chimerac.interpreter.launch.launcher --nnodes 2 --rdzv-backend c10d --rdzv-endpoint HOST:PORT SCRIPT ...

It runs the agent of torch.distributed.elastic, so rendezvous and restarts are those of torch. Unlike torchrun it prints neither
the log of torch nor a table of failures. One rank prints the message of the job (failures.py). If none did, as when a rank was
killed, the launcher prints the message. If ranks fail and no restart is left, the exit code of the launcher is that of the rank
that failed first, or 128 plus the number of the signal that killed that rank.
"""

from __future__ import annotations

if __name__ == "__main__":
    # Before torch is imported: from here on Ctrl-C ends this process without a traceback.
    from chimerac.interpreter.launch.startup import begin_process

    begin_process()

import logging
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from torch.distributed import DistNetworkError
from torch.distributed import run as torchrun
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.elastic.rendezvous import RendezvousConnectionError, RendezvousTimeoutError
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint
from torch.distributed.launcher import api

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.chimera_ir.files import reason, write_stderr
from chimerac.interpreter.launch.failures import LAUNCHER, end_with
from chimerac.interpreter.launch.options import parse_options
from chimerac.interpreter.launch.plan import Plan
from chimerac.interpreter.launch.planning import make_plan
from chimerac.interpreter.launch.rendezvous_handler import NonBlockingHandler
from chimerac.interpreter.launch.startup import INTERRUPTED, LAUNCHER_LEVEL, LOG_LEVEL, RANK_LEVEL
from chimerac.interpreter.launch.stopping import STOPPED
from chimerac.interpreter.transport.progress import Position, Progress, progress_file, read_position

RUN = Path(__file__).parents[1] / "run.py"
_programs = Progress()  # has the programs of run.py, with which the position of a rank is written as text


class Agent(LocalElasticAgent):
    """torch's agent of one host. It reports each failure at once, also if the ranks are then restarted.

    Ranks that SIGTERM has stopped during the training (stopping.py) are not restarted.
    """

    has_reported = False  # whether ranks have failed; the message of the job, if it needs one, is printed by a rank or here

    def __init__(self, spec: WorkerSpec, *arguments: Any, **options: Any) -> None:
        spec.rdzv_handler = NonBlockingHandler(spec.rdzv_handler)
        super().__init__(spec, *arguments, **options)

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        result: RunResult = super()._monitor_workers(worker_group)
        if result.failures:
            files = {} if self._pcontext is None else self._pcontext.error_files
            text = message(result.failures, files, is_only_host=worker_group.group_world_size == 1)
            limit = worker_group.spec.max_restarts
            Agent.has_reported = True
            if first_failure(result.failures)[1].exitcode == STOPPED:
                self._remaining_restarts = 0
            if self._remaining_restarts > 0:
                text += f"restarting all ranks, restart {limit - self._remaining_restarts + 1} of at most {limit}\n"
            if text:
                write_stderr(text)
        return result


def first_failure(failures: Mapping[int, ProcessFailure]) -> tuple[int, ProcessFailure]:
    """Return the rank that is taken for the one that failed first, with its failure.

    It is the first whose error file says that its message has been printed or is not needed (`printed`), else the first that
    was killed by another signal than SIGTERM, else the first that the agent noticed.

    Args:
        failures: by rank, in the order in which the agent noticed them.
    """
    for rank, failure in failures.items():
        if _extra(failure.error_file_data).get("printed"):
            return rank, failure
    for rank, failure in failures.items():
        if failure.exitcode < 0 and failure.exitcode != -signal.SIGTERM:  # SIGTERM is what the agent sends to the others
            return rank, failure
    return next(iter(failures.items()))


def message(failures: Mapping[int, ProcessFailure], error_files: Mapping[int, str], is_only_host: bool = False) -> str:
    """Return the message of the job, for ranks that have failed; an empty text if a rank has printed it or will.

    The text is also empty if no message is needed, as when SIGTERM has stopped the ranks during the training.

    Args:
        failures: by rank, in the order in which the agent noticed them.
        error_files: the paths of the error files, by local rank.
        is_only_host: whether all ranks of the job are on this host.
    """
    rank, failure = first_failure(failures)
    reports = [_extra(f.error_file_data) for f in failures.values()]
    texts = [text for report in reports if (text := str(report.get("py_callstack", "")))]
    if any(report.get("printed") for report in reports):
        return ""
    if failure.exitcode < 0:
        place = _last_place(rank, texts, error_files.get(failure.local_rank))
        hint = ", as the system does when memory runs out" if failure.exitcode == -signal.SIGKILL else ""
        return f"error: rank {rank}{place}: killed by {failure.signal_name()}{hint}\n"
    if texts:
        return f"{texts[0]}\n"
    if not is_only_host and any(_position(error_files.get(f.local_rank)) for f in failures.values()):
        return ""  # one of these ranks had begun to connect to the others: a rank of another host that lost it will report
    return f"error: rank {rank} ended with exit code {failure.exitcode}\n"


def launch(arguments: Sequence[str], plan: Plan | None = None) -> int:
    """Start the ranks with a command line of torchrun, wait for their end, and return the exit code.

    Args:
        plan: what the ranks run, if it is known.
    """
    if plan is not None:
        _add_programs(plan)
    options = _options(arguments)
    logging.disable(logging.CRITICAL)
    os.environ[LAUNCHER] = "1"
    if os.environ.get(LOG_LEVEL) == LAUNCHER_LEVEL:  # torch has read it already: the change is for the ranks, which inherit it
        os.environ[LOG_LEVEL] = RANK_LEVEL
    # torchrun does the same for several ranks of a host, with a warning. start.py sets torch's threads.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # Ctrl-C ends this process at once, and the ranks end with it. torch would forward it to the ranks and wait for them.
    options.signals_to_handle = ",".join(name for name in options.signals_to_handle.split(",") if name != "SIGINT")
    with tempfile.TemporaryDirectory(prefix="chimerac_") as folder:
        options.log_dir = options.log_dir or folder

        def interrupted(signum: int, frame: FrameType | None) -> None:
            write_stderr("interrupted\n")
            shutil.rmtree(folder, ignore_errors=True)
            os._exit(INTERRUPTED)

        signal.signal(signal.SIGINT, interrupted)
        return _run(options)


def _run(options: Any) -> int:
    """Run torch's launcher with the class Agent of this file, and return the exit code."""
    vars(api)["LocalElasticAgent"] = Agent  # torch has no argument for the class of the agent
    try:
        torchrun.run(options)  # type: ignore[no-untyped-call]
    except ChildFailedError as error:
        _, failure = first_failure(error.failures)
        return int(failure.exitcode if failure.exitcode > 0 else 128 - failure.exitcode)
    except SignalException as error:
        return 128 + int(error.sigval)
    except Exception as error:
        what = "the ranks cannot be restarted" if Agent.has_reported else "the launcher cannot start the ranks"
        endpoint = torchrun.get_rdzv_endpoint(options)  # type: ignore[no-untyped-call]
        write_stderr(f"error: {what}: {_reason(error, endpoint)}\n")
        return 1
    return 0


def _reason(error: Exception, endpoint: str) -> str:
    """Return why torch's launcher has failed: for the common errors in words of our own, else the first sentence of the error.

    Args:
        endpoint: HOST:PORT of the rendezvous.
    """
    if isinstance(error, RendezvousTimeoutError):
        return "not all hosts have joined in time (--rdzv-conf join_timeout=SECONDS)"
    if not isinstance(error, (RendezvousConnectionError, DistNetworkError)):
        return str(error).split(". ")[0].rstrip(".") or type(error).__name__
    if "EADDRINUSE" in str(error):
        return f"the port of {endpoint} is in use: give another one"
    try:
        socket.getaddrinfo(parse_rendezvous_endpoint(endpoint, default_port=0)[0], None)
    except OSError as unresolved:
        return f"the host of {endpoint} cannot be resolved: {reason(unresolved)}"
    return f"no connection to the rendezvous at {endpoint}: its launcher does not run, or another program uses the port"


def _options(arguments: Sequence[str]) -> Any:
    """Return the options of torchrun. If the number of processes is not given, it is that of `_ranks_per_host`."""
    parser = torchrun.get_args_parser()
    parser.prog = "python -m chimerac.interpreter.launch.launcher"
    if "PET_NPROC_PER_NODE" not in os.environ:  # torchrun's variable for this option
        parser.set_defaults(nproc_per_node="")
    options = parser.parse_args(arguments)
    if not options.nproc_per_node:
        options.nproc_per_node = str(_ranks_per_host(options))
    return options


def _add_programs(plan: Plan) -> None:
    for program in (plan.program, plan.evaluation):
        if program is not None:
            _programs.add(program)


def _ranks_per_host(options: Any) -> int:
    """Return how many ranks each host has for the program of run.py; 1 for another script, as with torchrun.

    If the arguments of run.py are wrong, print what is wrong and end this process.
    """
    script = Path(options.training_script)
    if options.module or not script.exists() or not script.samefile(RUN):
        return 1
    try:
        plan = make_plan(parse_options(options.training_script_args))
    except ChimeraError as error:
        end_with(error, is_first_here=True)
    _add_programs(plan)
    hosts: int = torchrun.parse_min_max_nnodes(options.nnodes)[1]
    return -(-plan.program.world // hosts)  # rounded up


def _extra(error_file_data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the field `extraInfo` of a rank's error file (failures.py); empty if there is none."""
    content = error_file_data.get("message")
    extra = content.get("extraInfo") if isinstance(content, dict) else None
    return extra if isinstance(extra, dict) else {}


def _position(error_file: str | None) -> Position | None:
    path = progress_file(error_file)
    return None if path is None else read_position(path)


def _last_place(rank: int, texts: Sequence[str], error_file: str | None) -> str:
    """Return the last position of a rank as text with a comma before it; an empty text if the position is not known.

    Args:
        rank, error_file: of the rank that ended.
        texts: the messages of ranks; some may name this rank and its instruction.
    """
    for text in texts:
        if found := re.search(rf"\brank {rank} has ended, in (?:the )?(.*)", text):
            return f", {found[1]}"
    position = _position(error_file)
    return "" if position is None else f", {_programs.place(rank, position).removeprefix('the ')}"


if __name__ == "__main__":
    sys.exit(launch(sys.argv[1:]))
