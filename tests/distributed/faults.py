"""Runs jobs of two ranks that fail, hang or are slow, and prints as JSON the exit code and the messages of every rank.

Usage: PYTHONPATH=. python tests/distributed/faults.py [JOB...]

Without JOB, all jobs in `JOBS` are run. The jobs run at the same time. Their processes are forks of this one, so torch is
imported only once.
"""

import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from chimerac.chimera_ir.model import ModelDescription
from chimerac.chimera_ir.program import Program
from chimerac.compiler import compile_schedule
from chimerac.interpreter.launch.failures import end_with
from chimerac.interpreter.runtime.describe import describe
from chimerac.interpreter.runtime.model import Model
from chimerac.interpreter.runtime.partitioned import partitioned
from chimerac.interpreter.training.trainer import Settings, Trainer
from chimerac.interpreter.transport import liveness, shared
from chimerac.interpreter.transport.gloo import Gloo, join, leave
from chimerac.interpreter.transport.progress import NONE, WAITS_FOR, position_of
from chimerac.interpreter.transport.rendezvous import rendezvous
from tests.distributed.integers import IntegerSamples, integer_model
from tests.distributed.programs import program
from tests.helpers_processes import free_port, rank_environment

TIMEOUT_S = 5.0  # how long a rank waits for another one
CHIMERA = compile_schedule("chimera", {"D": 2, "N": 2}).program
GPIPE = compile_schedule("gpipe", {"D": 2, "N": 2}).program
# Each rank waits for the other: rank 0 sends the activation only after its backward, which needs the gradient of rank 1.
CYCLE = program(
    """pipe main  on 0 1  micro_batches 0

rank 0:
  RECV grad main s0 m0 <- 1
  FWD main s0 m0
  BWD main s0 m0
  SEND act main s1 m0 -> 1

rank 1:
  RECV act main s1 m0 <- 0
  FWD main s1 m0
  BWD main s1 m0; SEND grad main s0 m0 -> 0
""",
    "cycle",
    ranks=2,
    stages=2,
    micro_batches=1,
)


class LossyGloo(Gloo):
    """Gloo on a network that loses messages: the next `drops` sends are left out."""

    def __init__(self) -> None:
        super().__init__()
        self.drops = 0

    def send(self, peer: int, buffer: torch.Tensor) -> None:
        if self.drops:
            self.drops -= 1
        else:
            super().send(peer, buffer)


def stop_self(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def kill_self(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_peer_in_a_wait(*_: object) -> None:
    """Kill rank 1 once it waits for this rank in an instruction after its first one."""
    while (position := position_of(1)) is None or position.waits_for == NONE or position.number <= 0:
        time.sleep(0.01)
    with suppress(ProcessLookupError):
        os.kill(position.pid, signal.SIGKILL)


def fail(*_: object) -> None:
    raise ValueError("no such token: 7")


def pause(seconds: float) -> Callable[..., None]:
    """Return a fault that sleeps for this time and does nothing else."""
    return lambda *_: time.sleep(seconds)


def before_forwards(rank: int, fault: Callable[..., None]) -> Callable[[Trainer], None]:
    """Return a function that makes a rank call `fault` before each of its forwards."""

    def prepare(trainer: Trainer) -> None:
        if trainer.transport.rank == rank:
            for stage in trainer.pipeline.stages.values():
                stage.register_forward_pre_hook(fault)

    return prepare


def killed_in_all_reduce(trainer: Trainer) -> None:
    """Make rank 1 kill itself when it launches an all-reduce."""
    if trainer.transport.rank == 1:
        trainer.transport.launch_all_reduce = kill_self


def killed_in_a_shared_sum(trainer: Trainer) -> None:
    """Make all all-reduces use shared memory, and make rank 1 kill itself in one for which it waits.

    At the end of the stream a rank waits for its sends before it waits for the all-reduces.
    """
    shared.LEAST_BYTES = 0
    position = trainer.transport.progress.position
    all_reduces = [n for n, instruction in enumerate(CHIMERA.stream(1)) if instruction.op == "ALLREDUCE"]

    def kill_in_a_wait(*_: object) -> None:
        while position[WAITS_FOR] not in all_reduces:
            time.sleep(0.01)
        kill_self()

    if trainer.transport.rank == 1:
        shared.SharedMemory.step = kill_in_a_wait


def killed_before_the_norm(trainer: Trainer) -> None:
    """Make rank 1 kill itself when the gradient norm is summed."""
    if trainer.transport.rank == 1:
        trainer.transport.all_reduce = kill_self


def without_a_send(trainer: Trainer) -> None:
    """Make rank 0 leave out its first send."""
    if trainer.transport.rank == 0:
        trainer.transport.drops = 1


# By name: the program of a job, and a function that is called with the trainer of each rank and prepares the fault. The fault
# of "cycle" is in its program.
JOBS: dict[str, tuple[Program, Callable[[Trainer], None]]] = {
    "killed in FWD": (GPIPE, before_forwards(rank=1, fault=kill_self)),
    "killed in a wait": (GPIPE, before_forwards(rank=0, fault=kill_peer_in_a_wait)),
    "killed in ALLREDUCE": (CHIMERA, killed_in_all_reduce),
    "killed in a shared sum": (CHIMERA, killed_in_a_shared_sum),
    "killed before the norm": (GPIPE, killed_before_the_norm),
    "stopped": (GPIPE, before_forwards(rank=1, fault=stop_self)),
    "exception": (GPIPE, before_forwards(rank=1, fault=fail)),
    "dropped": (GPIPE, without_a_send),
    "late": (GPIPE, before_forwards(rank=1, fault=pause(seconds=60))),
    "cycle": (CYCLE, lambda trainer: None),
    "slow": (GPIPE, before_forwards(rank=1, fault=pause(seconds=1))),
}


def run(name: str, model: Model, description: ModelDescription) -> None:
    """Run one rank of a job."""
    job_program, prepare = JOBS[name]
    join(timeout_s=60)  # longer than TIMEOUT_S, because the ranks start at different times
    rendezvous().limit = timedelta(seconds=TIMEOUT_S)
    dist.group.WORLD._get_backend(torch.device("cpu")).set_timeout(rendezvous().limit)
    transport = LossyGloo()
    settings = Settings(iterations=1, seed=0, micro_batch=1, rate=1e-3)
    parts = partitioned(job_program, model, description)
    trainer = Trainer(job_program, parts, IntegerSamples(), transport, settings)
    prepare(trainer)
    trainer.update(0, trainer.gradients(0))
    leave()


def start_rank(name: str, rank: int, port: int, folder: Path, model: Model, description: ModelDescription) -> int:
    """Start one rank of a job as a fork of this process; return the id of the fork.

    Args:
        folder: for its output.
    """
    if pid := os.fork():
        return pid
    os.dup2(os.open(folder / "output", os.O_WRONLY | os.O_CREAT), 2)
    os.environ |= rank_environment(rank, 2, port) | {"TORCHELASTIC_ERROR_FILE": str(folder / "error.json")}
    try:
        run(name, model, description)
    except Exception as error:
        end_with(error, is_first_here=rank == 0, job=rendezvous().liveness)
    os._exit(0)


def main() -> None:
    torch.set_num_threads(1)
    liveness.POLL_INTERVAL_S, liveness.LINGER_S = 0.1, 1.0  # shorter than in a real run, so that the jobs end sooner
    model = integer_model(middle=2)
    description = describe(model, samples=1)
    folder = Path(tempfile.mkdtemp())
    ranks: dict[int, tuple[str, int]] = {}  # by the id of the process: its job and its rank
    for name in sys.argv[1:] or JOBS:
        port = free_port()
        for rank in (0, 1):
            rank_folder = folder / name / str(rank)
            rank_folder.mkdir(parents=True)
            ranks[start_rank(name, rank, port, rank_folder, model, description)] = name, rank
    results: dict[str, dict[int, tuple[int, str]]] = {}
    while ranks:
        pid, status = os.wait()
        name, rank = ranks.pop(pid)
        output = (folder / name / str(rank) / "output").read_text()
        results.setdefault(name, {})[rank] = os.waitstatus_to_exitcode(status), output
    shutil.rmtree(folder)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
