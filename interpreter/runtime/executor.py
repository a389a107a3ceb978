"""The executor: one rank's stream, instruction by instruction, on a store keyed by value.

It implements the meaning of each instruction (docs/semantics.md), and depends on no scheme or placement. A SEND takes its
values out of the store, a RECV adds its values. FWD reads act[s, m] and writes act[s + 1, m], but the first stage reads
samples, and the last one computes the loss. In this example stage 1 is the last:

    stream                              store afterwards
    RECV act down s1 m0 <- 0            act down s1 m0, being received
    FWD down s1 m0                      act down s1 m0
    BWD down s1 m0                      grad down s0 m0
    SEND grad down s0 m0 -> 0

Each instruction is bound once to one call. The call depends on the class and the fields of the instruction, and on whether the
program is an evaluation (runtime/work.py has the calls of tasks). On a GPU the calls of some tasks are then changed, so that
overlapped pairs run at the same time (runtime/overlap.py). A run of the stream makes the calls in order. It reads the clock
before the first call and after each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import assert_never

import numpy as np
import torch
from torch import Tensor
from torch.profiler import record_function

from chimerac.chimera_ir.instructions import (
    AllReduce,
    Bwd,
    BwdInput,
    BwdWeight,
    Free,
    Fwd,
    Instruction,
    Recompute,
    Recv,
    Send,
    Task,
)
from chimerac.chimera_ir.program import Program
from chimerac.chimera_ir.textline import instruction_text
from chimerac.interpreter.errors import RankError
from chimerac.interpreter.runtime.batch import MicroBatches
from chimerac.interpreter.runtime.buffers import unchanged_buffers
from chimerac.interpreter.runtime.device_clock import clock_of
from chimerac.interpreter.runtime.messages import Boundary, Layout, with_gradient
from chimerac.interpreter.runtime.model import Objective, Stage, Values
from chimerac.interpreter.runtime.overlap import SecondStream, on_streams, second_stream_of
from chimerac.interpreter.runtime.parameters import Gradients, check_copies, holders_by_group, parameter_groups
from chimerac.interpreter.runtime.store import Key, Message, Slot, Store
from chimerac.interpreter.runtime.times import Times, times_of
from chimerac.interpreter.runtime.work import Iteration, Work
from chimerac.interpreter.transport import Pending, Transport
from chimerac.interpreter.transport.gpu_waits import GpuWaits
from chimerac.interpreter.transport.progress import NUMBER

Call = Callable[[], None]
Invoke = Callable[[int, Call], None]
SecondStreamOf = Callable[[torch.device], SecondStream | None]


class Executor:
    """Executes the stream of one rank.

    Args:
        objective: the loss, the precision, and how predictions are counted.
        stages: the stages of this rank, by number.
        boundary_table: for each stage of the model, the tensors that it passes to the next one; for the last stage, those that
            the loss takes.
        profile_ranges: whether each instruction is a range, named by its text, for torch.profiler and the profilers that read
            torch's ranges; the epilogue is one too.
        second_stream: a function of a device that returns a second stream for overlapped pairs (runtime/overlap.py), or None;
            by default only CUDA devices have one.

    Attributes:
        groups: this rank's parameters by group, each once.
        is_summed: whether the last run was with sync, also on a rank without a stage; True before the first run.

    All ranks create their executors of a program together, because they compare their copies of the parameters. Raises
    ChimeraError E810 on all ranks if copies differ, and ValueError if this rank has different copies of a tied parameter.
    """

    def __init__(
        self,
        program: Program,
        objective: Objective,
        stages: Mapping[int, Stage],
        boundary_table: Sequence[Boundary],
        transport: Transport,
        profile_ranges: bool = False,
        second_stream: SecondStreamOf = second_stream_of,
    ) -> None:
        self.header, self.pipe_names = program.header, program.pipe_names
        self.stream = program.stream(transport.rank)
        self.stages, self.boundary_table, self.transport = stages, boundary_table, transport
        self.groups = parameter_groups(program.header, stages)
        self.check_copies()
        trained = self.groups if program.header.kind == "training" else {}
        holders = holders_by_group(program.header)
        self.gradients = {
            name: Gradients(parameters, transport.device, is_first=holders[name][0] == transport.rank)
            for name, parameters in trained.items()
        }
        self.is_summed = True
        self.store = Store()
        self._clock = clock_of(transport.device)
        self._waits_of_gpu = GpuWaits(transport.device) if transport.device.type == "cuda" else None
        self.iteration = Iteration(objective, transport.device, self._clock.read, evaluates=program.header.kind == "evaluation")
        self.work: dict[tuple[int, int, int], Work] = {}
        self.collectives: list[Pending] = []
        self._program_key = transport.progress.add(program)
        for i in self.stream:
            if isinstance(i, Free):
                for slot in self._message(i)[0]:
                    slot.waits_for_free = True
        self.calls = [self._bind(i) for i in self.stream]
        self._epilogue: Call = self._finish
        self._second_stream = second_stream(transport.device) if trained and any(_has_overlap(i) for i in self.stream) else None
        if self._second_stream is not None:
            self.calls = on_streams(self.stream, self.calls, self._second_stream)
            self.iteration.keep = self._second_stream.keep
        if profile_ranges:
            texts = [instruction_text(i, self.pipe_names) for i in self.stream]
            self.calls = [partial(_in_range, text, call) for text, call in zip(texts, self.calls, strict=True)]
            self._epilogue = partial(_in_range, "epilogue", self._finish)
        self._is_task = np.array([isinstance(i, Task) for i in self.stream], bool)
        self._is_reduction = [isinstance(i, AllReduce) for i in self.stream]
        # The readings of the clock, and how long the transport had waited in all, in nanoseconds: at the start, after each
        # instruction, and after `_finish`.
        self._stamps, self._waits = [0] * (len(self.calls) + 2), [0] * (len(self.calls) + 2)
        self._sends_complete = 0  # the reading when all sends of the last run were complete
        self._needs_rehearsal = transport.rehearsal is not None

    def run(self, batch: MicroBatches, sync: bool = True, invoke: Invoke | None = None) -> float:
        """Execute the stream once, on one batch, and return this rank's share of the loss.

        Args:
            sync: the same on all ranks; False leaves out the ALLREDUCEs. After a run with sync every trained parameter has its
                complete gradient, added to the one that it had. After a run without sync each rank has the gradient of its own
                tasks, on the first holder of a group added to a complete gradient that it had. A later run with sync adds up
                those of all ranks.
            invoke: a function that is called instead of each instruction's call, with the number of the instruction and the
                call; it makes the call. The executor's part of the epilogue is called in the same way, with the number after
                the last instruction.

        Raises RankError, which names the instruction that failed, or the epilogue. If the batch cannot be read before the first
        instruction, it names this one.
        """
        if self._needs_rehearsal:
            self.rehearse(batch)
            self._needs_rehearsal = False
        for gradients in self.gradients.values():
            gradients.begin(are_complete=self.is_summed)
        clock, transport, number = self._clock.read, self.transport, 0
        self._clock.begin()
        if self._waits_of_gpu is not None:
            self._waits_of_gpu.begin()
            transport.waits_of_gpu = self._waits_of_gpu
        stamps, waits = self._stamps, self._waits
        position = transport.progress.begin(self._program_key)
        stamps[0], waits[0] = clock(), transport.waited_ns
        try:
            self.iteration.begin(batch)
            for number, call in enumerate(self._calls_of(sync, invoke)):
                position[NUMBER] = number  # for messages of other ranks and of the launcher, if something fails
                call()
                stamps[number + 1], waits[number + 1] = clock(), transport.waited_ns
        except Exception as cause:
            raise self._failure(number, cause) from cause
        finally:
            transport.waits_of_gpu = None
        self.is_summed = sync
        return self.iteration.total_loss()

    def rehearse(self, batch: MicroBatches, invoke: Invoke | None = None) -> None:
        """Run the stream once without messages, if the transport needs that; restore gradients, buffers and torch's generators.

        Afterwards the kernels of such a run are loaded, and most of its memory is allocated (transport/nccl.py). The first run
        of a stream is rehearsed by `run`; one with another `invoke` launches other kernels, so its caller rehearses it.

        Args:
            invoke: as in `run`.

        Raises RankError as `run`.
        """
        if self.transport.rehearsal is None:
            return
        own_gradients = [(p, p.grad) for parameters in self.groups.values() for p in parameters]
        for p, _ in own_gradients:
            p.grad = None
        generators, number, position = self.iteration.generators, 0, self.transport.progress.begin(self._program_key)
        try:
            with self.transport.rehearsal(), generators.restored(generators.states()), unchanged_buffers(self.stages.values()):
                for gradients in self.gradients.values():
                    gradients.begin()
                self.iteration.begin(batch)
                for number, call in enumerate(self._calls_of(sync=True, invoke=invoke)):
                    position[NUMBER] = number
                    call()
        except Exception as cause:
            raise self._failure(number, cause) from cause
        finally:
            for p, gradient in own_gradients:
                p.grad = gradient

    @property
    def times(self) -> Times:
        """Return when the instructions ran in the last run of the stream."""
        recomputed = self.iteration.recomputed
        readings = [*self._stamps, self._sends_complete, *(reading for pair in recomputed for reading in pair)]
        times_ns = self._clock.times_ns(readings)
        end = len(self._stamps)
        stamps, sent, bounds = times_ns[:end], times_ns[end], times_ns[end + 1 :]
        waits = self._waits if self._waits_of_gpu is None else self._waits_of_gpu.totals_ns(end)
        return times_of(stamps, waits, self._is_task, sent, recompute_ns=sum(bounds[1::2]) - sum(bounds[::2]))

    def check_copies(self) -> None:
        """Raise ChimeraError E810 on all ranks if copies of a parameter differ in any bit; called by all ranks together."""
        check_copies(self.transport, self.groups)

    def _calls_of(self, sync: bool, invoke: Invoke | None) -> list[Call]:
        """Return the calls of a run. The last one is the executor's part of the epilogue."""
        calls = self.calls
        if not sync:
            calls = [_nothing if skipped else call for call, skipped in zip(calls, self._is_reduction, strict=True)]
        calls = [*calls, self._epilogue]
        if invoke is None:
            return calls
        if self._second_stream is not None:  # `invoke` may read what a call computes: the main stream waits for it
            calls = [_sequence([call, self._second_stream.join]) for call in calls]
        return [partial(invoke, number, call) for number, call in enumerate(calls)]

    def _failure(self, number: int, cause: Exception) -> RankError:
        """Return the error of the instruction of this number, or of the epilogue, which follows the last one."""
        rank, name = self.transport.rank, self.transport.named([self.transport.rank])
        if number == len(self.stream):
            return RankError(rank, None, "epilogue", cause, name)
        return RankError(rank, number, instruction_text(self.stream[number], self.pipe_names), cause, name)

    def _finish(self) -> None:
        """Wait for sends and collectives: the executor's part of the epilogue."""
        self.transport.flush()
        self._sends_complete = self._clock.read()
        for pending in self.collectives:
            pending.wait()
        self.collectives.clear()
        held, unfinished = self.store.held_keys(), [key for key, work in self.work.items() if work.ran]
        assert not held and not unfinished, f"a stream left values {held} and tasks {unfinished} behind: it was not verified"

    def _bind(self, i: Instruction) -> Call:
        """Return the call that executes an instruction."""
        match i:
            case Fwd():
                if self.header.kind == "evaluation":
                    return self._for_each_micro_batch(i, Work.forward_only)
                return self._for_each_micro_batch(i, Work.forward_to_recompute if i.recompute else Work.forward)
            case Bwd():
                return self._for_each_micro_batch(i, Work.backward)
            case BwdInput():
                for m in i.micro_batches:
                    self._work(i.pipe, i.stage, m).split_backward()
                return self._for_each_micro_batch(i, Work.backward_input)
            case BwdWeight():
                return self._for_each_micro_batch(i, Work.backward_weight)
            case Recompute():
                return self._for_each_micro_batch(i, Work.recompute)
            case Send():
                slots, boundary = self._message(i)
                layout = Layout(boundary * len(slots), self.transport.device)
                if len(slots) == 1:
                    return partial(_send, self.transport.send, i.peer, slots[0].pop, layout.pack)
                return partial(_send_group, self.transport.send, i.peer, slots, layout.pack)
            case Recv():
                slots, boundary = self._message(i)
                return Message(self.transport, i.peer, slots, Layout(boundary * len(slots), self.transport.device)).receive
            case AllReduce():
                return _sequence([partial(self._launch, i.ranks, tensor) for tensor in self.gradients[i.group].flat])
            case Free():
                return _sequence([slot.free for slot in self._message(i)[0]])
            case _:
                assert_never(i)

    def _for_each_micro_batch(self, i: Task, method: Callable[[Work], None]) -> Call:
        return _sequence([partial(method, self._work(i.pipe, i.stage, m)) for m in i.micro_batches])

    def _work(self, pipe: int, stage: int, m: int) -> Work:
        """Return the work that the instructions of one pipe, stage and micro-batch share."""
        if (pipe, stage, m) not in self.work:
            first, last = stage == 0, stage == self.header.stages - 1
            self.work[pipe, stage, m] = Work(
                self.iteration,
                self.stages[stage],
                m,
                input=None if first else self.store.slot(Key("act", pipe, stage, m)),
                needs_gradient=() if first else [declared.gradient for declared in self.boundary_table[stage - 1]],
                output=None if last else self.store.slot(Key("act", pipe, stage + 1, m)),
                kept=[declared.kept for declared in self.boundary_table[stage]],
                output_gradient=None if last else self.store.slot(Key("grad", pipe, stage, m)),
                input_gradient=None if first else self.store.slot(Key("grad", pipe, stage - 1, m)),
            )
        return self.work[pipe, stage, m]

    def _message(self, i: Send | Recv | Free) -> tuple[list[Slot], Boundary]:
        """Return the slots of the values that an instruction names, and the tensors of each value.

        The `act` that stage s reads is the output of stage s - 1. The `grad` that it reads is the gradient of its own output.
        """
        slots = [self.store.slot(Key(i.value, i.pipe, i.stage, m)) for m in i.micro_batches]
        return slots, self.boundary_table[i.stage - 1] if i.value == "act" else with_gradient(self.boundary_table[i.stage])

    def _launch(self, ranks: tuple[int, ...], gradients: Tensor) -> None:
        self.collectives.append(self.transport.launch_all_reduce(ranks, gradients))


def _has_overlap(i: Instruction) -> bool:
    return isinstance(i, Task) and i.overlap


def _send(post: Callable[[int, Tensor], None], peer: int, pop: Callable[[], Values], pack: Callable[[Values], Tensor]) -> None:
    post(peer, pack(pop()))


def _send_group(
    post: Callable[[int, Tensor], None], peer: int, slots: Sequence[Slot], pack: Callable[[Values], Tensor]
) -> None:
    post(peer, pack(tuple([t for slot in slots for t in slot.pop()])))


def _in_range(name: str, call: Call) -> None:
    """Make a call, as a range of this name for profilers."""
    with record_function(name):
        call()


def _nothing() -> None:
    """Do nothing, in the place of an ALLREDUCE that is left out."""


def _sequence(calls: Sequence[Call]) -> Call:
    """Return one call that makes all of these, one after the other."""
    if len(calls) == 1:
        return calls[0]

    def call_all() -> None:
        for call in calls:
            call()

    return call_all
