"""Starting the ranks of a plan in this process: the job, the transport, and one call of the job for each rank."""

from __future__ import annotations

import os

import torch

from chimerac.chimera_ir.diagnostics import refuse
from chimerac.chimera_ir.host import processors
from chimerac.interpreter.launch.failures import end_silently, end_with, write_error_file
from chimerac.interpreter.launch.job import Job, TrainingJob
from chimerac.interpreter.launch.plan import Plan
from chimerac.interpreter.launch.settings import RunSettings
from chimerac.interpreter.launch.timed_job import TimedJob
from chimerac.interpreter.launch.workloads import data_of, model_of
from chimerac.interpreter.runtime.describe import first_boundary
from chimerac.interpreter.training.settings import samples_per_micro_batch
from chimerac.interpreter.transport import gloo, nccl
from chimerac.interpreter.transport.loopback import run_in_loopback
from chimerac.interpreter.transport.processes import Processes
from chimerac.interpreter.transport.rendezvous import rendezvous


def start(plan: Plan, settings: RunSettings) -> int:
    """Run the ranks of this process: one that torchrun started, or all of them in loopback. Return the exit code."""
    return run_loopback(plan, settings) if settings.loopback else run_rank(plan, settings)


def make_job(plan: Plan, settings: RunSettings, ranks_here: int) -> Job:
    """Return the job, the same for every rank. The checks that need no other rank are made here, before the ranks connect.

    Args:
        ranks_here: how many ranks this host has.
    """
    model = model_of(settings, plan.program)
    if settings.timed is not None:
        message = first_boundary(model, samples_per_micro_batch(plan.program, settings.micro_batch))[0]
        return TimedJob(plan, settings, settings.timed, message)
    return TrainingJob(plan, settings, model, data_of(settings, plan.program, model), ranks_here)


def run_rank(plan: Plan, settings: RunSettings) -> int:
    """Run as one of the ranks that torchrun has started; return the exit code.

    Raises ChimeraError for what the checks of `make_job` find, and E815 if the transport needs a GPU and torch finds none.
    After these checks, an error ends this process.
    """
    ranks_here, local_rank = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["LOCAL_RANK"])
    torch.set_num_threads(max(1, processors() // ranks_here))
    if settings.transport == "nccl":  # before the first call of CUDA
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", str(nccl.connections(plan.program, int(os.environ["RANK"]))))
    if settings.transport != "gloo" and not torch.cuda.is_available():
        raise refuse(
            "E815", f"--transport {settings.transport} needs a GPU, and torch finds none", help="omit it to run on CPUs"
        )
    job = make_job(plan, settings, ranks_here)
    try:
        transport = _join(settings, local_rank)
        code = job.run(transport)
        gloo.leave()
        transport.close()
    except BrokenPipeError:  # the process that reads the output, such as head, has closed it
        end_silently("the output was closed", rendezvous().liveness)
    except Exception as error:
        end_with(error, is_first_here=local_rank == 0, job=rendezvous().liveness)
    if code:
        write_error_file(f"rank {os.environ['RANK']} ended with exit code {code}")
    return code


def _join(settings: RunSettings, local_rank: int) -> Processes:
    """Connect to the other ranks, and return the transport of this rank."""
    match settings.transport:
        case "nccl":
            nccl.join(settings.timeout, local_rank)
            return nccl.Nccl()
        case "staged":
            gpu = gloo.gpu_of(local_rank)
            torch.cuda.set_device(gpu)
            gloo.join(settings.timeout)
            return gloo.Gloo(gpu)
        case "gloo":
            gloo.join(settings.timeout)
            return gloo.Gloo()


def run_loopback(plan: Plan, settings: RunSettings) -> int:
    """Run all ranks in this process, in turns; return the largest of their exit codes."""
    job = make_job(plan, settings, ranks_here=plan.program.world)
    machine = settings.machine or plan.program.header.machine
    return max(run_in_loopback(plan.program, job.run, settings.seed, machine))
