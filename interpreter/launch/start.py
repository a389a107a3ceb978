"""Starting the ranks of a plan: the job, the transport, and one call of the job for each rank."""

from __future__ import annotations

import os

import torch

from chimerac.chimera_ir.diagnostics import refuse
from chimerac.interpreter.launch.failures import end_silently, end_with, write_error_file
from chimerac.interpreter.launch.job import Job, TrainingJob
from chimerac.interpreter.launch.measure import processors
from chimerac.interpreter.launch.plan import Plan
from chimerac.interpreter.launch.settings import RunSettings
from chimerac.interpreter.launch.timed_job import TimedJob
from chimerac.interpreter.launch.workloads import data_of, model_of
from chimerac.interpreter.transport import Transport, gloo, nccl
from chimerac.interpreter.transport.loopback import run_in_loopback
from chimerac.interpreter.transport.rendezvous import rendezvous


def start(plan: Plan, settings: RunSettings) -> int:
    """Run the ranks of this process: one of torchrun's, or all of them in loopback. Return the exit code."""
    return run_loopback(plan, settings) if settings.loopback else run_rank(plan, settings)


def prepared(plan: Plan, settings: RunSettings, ranks_here: int) -> Job:
    """Return the job of every rank. All checks that can fail are made here, before the ranks connect.

    ranks_here: how many ranks this machine has.
    """
    if settings.timed is not None:
        return TimedJob(plan, settings, settings.timed, model_of(settings, plan.program))
    model = model_of(settings, plan.program)
    return TrainingJob(plan, settings, model, data_of(settings, plan.program, model), ranks_here)


def run_rank(plan: Plan, settings: RunSettings) -> int:
    """Run as one of the ranks that torchrun has started; return the exit code."""
    ranks_here, local_rank = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["LOCAL_RANK"])
    torch.set_num_threads(max(1, processors() // ranks_here))
    if settings.transport != "gloo" and not torch.cuda.is_available():
        raise refuse(
            "E815", f"--transport {settings.transport} needs a GPU, and torch finds none", help="leave it out to run on CPUs"
        )
    job = prepared(plan, settings, ranks_here)
    try:
        code = job.run(_joined(settings, local_rank))
        gloo.leave()
    except BrokenPipeError:  # the process that reads the output, such as head, has closed it
        end_silently("the output was closed", rendezvous().liveness)
    except Exception as error:
        end_with(error, reports=local_rank == 0, job=rendezvous().liveness)
    if code:
        write_error_file(f"rank {os.environ['RANK']} ended with exit code {code}")
    return code


def _joined(settings: RunSettings, local_rank: int) -> Transport:
    """Return the transport of this rank, after all ranks have met."""
    match settings.transport:
        case "nccl":
            nccl.join(settings.timeout, local_rank)
            return nccl.Nccl()
        case "staged":
            gpu = torch.device("cuda", local_rank % torch.cuda.device_count())
            torch.cuda.set_device(gpu)
            gloo.join(settings.timeout)
            return gloo.Gloo(gpu)
        case "gloo":
            gloo.join(settings.timeout)
            return gloo.Gloo()


def run_loopback(plan: Plan, settings: RunSettings) -> int:
    """Run all ranks in this process, one at a time; return the exit code."""
    job = prepared(plan, settings, ranks_here=plan.program.world)
    machine = settings.machine or plan.program.header.machine
    return max(run_in_loopback(plan.program, job.run, settings.seed, machine))
