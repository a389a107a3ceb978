"""The symbolic reference: it executes a program on symbols and shares no code with the verifier.

A value is the term by which it is computed, so two gradients are equal exactly if the same tasks computed them from the
same inputs. Channels are first in, first out. Windows are simulated on the machines `window` and `rendezvous`. The
windows and queues of `paired` and `serial` are not simulated here, but in tests/proof/model.py. A message does not name
its values: a RECV gets whatever was sent. A rank's collectives run one at a time. The next rank to run is drawn at
random.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable

from chimerac.chimera_ir.instructions import AllReduce, Bwd, BwdInput, BwdWeight, Free, Fwd, Instruction, Recompute, Recv, Send
from chimerac.chimera_ir.program import Program

Term = tuple[object, ...]
AnyTask = Fwd | Bwd | BwdInput | BwdWeight | Recompute


class WrongError(Exception):
    """The program is wrong: for instance it deadlocks, reads a value that does not exist, or computes a wrong result."""


class Execution:
    """An execution of all ranks of a program on symbols.

    Args:
        seed: of the order in which ranks run.
    """

    def __init__(self, program: Program, streams: list[tuple[Instruction, ...]], seed: int):
        self.header = program.header
        self.training = program.header.kind == "training"
        windows = {"rendezvous": 0, "window": program.header.window}
        # How many SENDs of a channel may be incomplete. On other machines any number may be: len(program) is no limit.
        self.window = windows.get(program.header.machine, len(program))
        self.streams = streams
        self.position = [0] * program.world
        self.random = random.Random(seed)
        self.store: list[dict[Term, Term]] = [{} for _ in self.streams]  # by rank: the values by their keys (see `reads`)
        # By rank and received value: its channel, the number of its message on the channel, and its index in the message.
        self.posted: list[dict[Term, tuple[tuple[int, int], int, int]]] = [{} for _ in self.streams]
        self.sent: dict[tuple[int, int], list[Term]] = {}  # channel -> its messages so far
        self.received: Counter[tuple[int, int]] = Counter()  # channel -> how many of its RECVs are posted
        self.buffers: list[dict[Term, bool]] = [{} for _ in self.streams]  # by rank and received value: False after its FREE
        self.gradient: list[dict[int, Counter[Term]]] = [{} for _ in self.streams]  # per rank and stage
        self.recomputed = {  # (rank, pipe, stage, micro-batch) for which a RECOMPUTE exists
            (g, i.pipe, i.stage, m)
            for g, stream in enumerate(streams)
            for i in stream
            if isinstance(i, Recompute)
            for m in i.micro_batches
        }
        self.groups = {f"stage {s}": (s,) for s in range(self.header.stages)} | {t.name: t.stages for t in self.header.tied}
        self.sums: dict[str, dict[int, list[Counter[Term]]]] = {}  # group -> rank -> its contributions
        self.launched: list[list[AllReduce]] = [[] for _ in self.streams]  # by rank: its collectives, in order
        self.done: Counter[Term] = Counter()  # (kind of task, replica, stage, micro-batch) -> how often it ran
        self.losses: set[Term] = set()

    def run(self) -> None:
        """Run every stream to its end.

        Raises WrongError if the ranks deadlock, an instruction is wrong, or a transfer is not complete or not read at the end.
        """
        unfinished = [g for g, s in enumerate(self.streams) if s]
        while unfinished:
            self.random.shuffle(unfinished)
            before = sum(self.position)
            for g in unfinished:
                stop = min(self.position[g] + self.random.choice((1, 1, 2, 50)), len(self.streams[g]))
                while self.position[g] < stop and self.execute(g, self.streams[g][self.position[g]]):
                    self.position[g] += 1
            if sum(self.position) == before:
                raise WrongError(f"deadlock: {[self.streams[g][self.position[g]] for g in unfinished]}")
            unfinished = [g for g in unfinished if self.position[g] < len(self.streams[g])]
        for channel in {*self.sent, *self.received}:
            if len(self.sent.get(channel, [])) != self.received[channel]:
                raise WrongError(f"channel {channel} ends with an incomplete transfer")
        for g, awaited in enumerate(self.posted):
            if awaited:
                raise WrongError(f"rank {g} receives {list(awaited)}, but never reads them")

    def execute(self, g: int, i: Instruction) -> bool:
        """Execute one instruction and return True, or return False if it must wait."""
        match i:
            case Fwd() | Bwd() | BwdInput() | BwdWeight() | Recompute():
                return self.pair(g, i) if i.overlap else self.task(g, i)
            case Send():
                channel = (g, i.peer)
                messages = self.sent.setdefault(channel, [])
                # A SEND is incomplete while its RECV is not posted. A SEND waits while `window` sends before it are
                # incomplete, with window 0 until its own RECV is posted.
                if len(messages) - self.window >= self.received[channel]:
                    return False
                keys = [(i.value, i.pipe, i.stage, m) for m in i.micro_batches]
                messages.append(tuple(self.take(g, key) for key in keys))
                for key in keys:
                    self.store[g].pop(key, None)
                return True
            case Recv():
                channel = (i.peer, g)
                number = self.received[channel]
                self.received[channel] += 1
                for k, m in enumerate(i.micro_batches):
                    key = (i.value, i.pipe, i.stage, m)
                    if key in self.posted[g] or key in self.store[g]:
                        raise WrongError(f"rank {g} receives {key} a second time")
                    self.posted[g][key] = (channel, number, k)
                    self.buffers[g][key] = True
                return True
            case Free():
                for m in i.micro_batches:
                    key = (i.value, i.pipe, i.stage, m)
                    if not self.buffers[g].get(key):
                        raise WrongError(f"rank {g} frees {key}, which it does not hold")
                    self.buffers[g][key] = False
                return True
            case AllReduce():
                # An ALLREDUCE names the first stage of its group.
                if min(self.groups.get(i.group, (-1,))) != i.stage:
                    raise WrongError(f"there is no group {i.group} at stage {i.stage}")
                self.sums.setdefault(i.group, {}).setdefault(g, []).append(self.contribution(g, i.group))
                self.launched[g].append(i)
                return True
            case _:
                raise WrongError(f"unknown instruction {i}")

    def contribution(self, g: int, group: str) -> Counter[Term]:
        """Return what rank g has added so far to the gradient of a group."""
        return sum((self.gradient[g].get(stage, Counter()) for stage in self.groups[group]), Counter())

    def take(self, g: int, key: Term) -> Term:
        """Return a value that rank g has stored. Raises WrongError if the rank does not have it."""
        if key not in self.store[g]:
            raise WrongError(f"rank {g} has no {key}")
        return self.store[g][key]

    def arrived(self, g: int, key: Term) -> bool:
        """Return whether rank g need not wait for a value.

        A value whose RECV is posted and whose message was sent is put into the store.
        """
        if key in self.posted[g]:
            channel, number, index = self.posted[g][key]
            if len(self.sent.get(channel, [])) <= number:
                return False
            values = self.sent[channel][number]
            if index >= len(values):
                raise WrongError(f"rank {g} receives more than was sent")
            self.store[g][key] = values[index]
            del self.posted[g][key]
        return True

    def pair(self, g: int, i: AnyTask) -> bool:
        """Run an overlapped pair as one; return False if it must wait.

        Both tasks start when both can, so neither may depend on the other.
        """
        stream = self.streams[g]
        other = stream[self.position[g] + 1] if self.position[g] + 1 < len(stream) else None
        if not isinstance(other, AnyTask) or other.overlap:
            raise WrongError(f"rank {g}: no second task overlaps with {i}")
        if not all(self.arrived(g, key) for x in (i, other) for key in self.reads(x)):
            return False
        for key in self.reads(other):  # the rank must have the values of the second task before the first one runs
            self.take(g, key)
        if not (self.task(g, i) and self.task(g, other)):
            raise WrongError(f"rank {g}: {other} waits for {i}")
        self.position[g] += 1  # past the first task; `run` adds 1 for the second
        return True

    def reads(self, i: AnyTask) -> list[Term]:
        """Return the values that a task reads, each as its key in `store`: (value, pipe, stage, micro-batch).

        There are three values besides act and grad. kept: what the forward keeps for its backward; inner: what the weight
        gradient is computed from; only input: what a forward keeps instead of `kept` if a RECOMPUTE runs it again.
        """
        values = {"FWD": ["act"] if i.stage > 0 else [], "BWD_WEIGHT": ["inner"], "RECOMPUTE": ["only input"]}
        of_backward = ["kept", "grad"] if i.stage < self.header.stages - 1 else ["kept"]
        return [(value, i.pipe, i.stage, m) for value in values.get(i.op, of_backward) for m in i.micro_batches]

    def task(self, g: int, i: AnyTask) -> bool:
        """Run a task and return True, or return False if it must wait for a value."""
        last = self.header.stages - 1
        replica = g // self.header.ranks
        arrivals = [self.arrived(g, key) for key in self.reads(i)]
        if not all(arrivals):
            return False
        for m in i.micro_batches:
            cell = (i.pipe, i.stage, m)
            for value in ("act", "grad") if isinstance(i, Bwd | BwdInput) else ("act",):
                if not self.buffers[g].get((value, *cell), True):
                    raise WrongError(f"rank {g} reads a buffer that it has freed")
            if isinstance(i, Fwd):
                input_value = self.take(g, ("act", *cell)) if i.stage else ("sample", replica, m)
                output: Term = ("F", i.stage, input_value)
                if self.training:
                    # Without a RECOMPUTE the backward itself runs the forward again from the same input, as if it were kept.
                    self.put(g, ("only input" if i.recompute and (g, *cell) in self.recomputed else "kept", *cell), input_value)
                if i.stage < last:
                    self.put(g, ("act", i.pipe, i.stage + 1, m), output)
                else:
                    self.losses.add((replica, m, output))
                self.done["F", replica, i.stage, m] += 1
            if isinstance(i, Recompute):
                self.put(g, ("kept", *cell), self.take(g, ("only input", *cell)))
            if isinstance(i, Bwd | BwdInput):
                kept = self.take(g, ("kept", *cell))
                output_gradient = self.take(g, ("grad", *cell)) if i.stage < last else ("loss", replica, m)
                self.put(g, ("grad", i.pipe, i.stage - 1, m), ("I", i.stage, kept, output_gradient))
                self.put(g, ("inner", *cell), ("W", i.stage, kept, output_gradient))
                self.done["I", replica, i.stage, m] += 1
            if isinstance(i, Bwd | BwdWeight):
                self.gradient[g].setdefault(i.stage, Counter())[self.take(g, ("inner", *cell))] += 1
                self.done["W", replica, i.stage, m] += 1
        return True

    def put(self, g: int, key: Term, value: Term) -> None:
        """Store a value on rank g. Raises WrongError if it is stored already."""
        if key in self.store[g]:
            raise WrongError(f"rank {g} computes {key} a second time")
        self.store[g][key] = value

    def check(self) -> None:
        """Check that each task ran once, and that loss and gradients are those of all micro-batches. Raises WrongError."""
        h = self.header
        kinds, micro_batches = "FIW" if self.training else "F", [(w, m) for w in range(h.width) for m in range(h.micro_batches)]
        expected = {(k, w, s, m) for k in kinds for w, m in micro_batches for s in range(h.stages)}
        if wrong := {task for task in expected | set(self.done) if self.done[task] != (task in expected)}:
            raise WrongError(f"tasks missing, unknown or run more than once: {wrong}")
        if self.losses != {(w, m, forward(h.stages, w, m)[-1]) for w, m in micro_batches}:
            raise WrongError("the loss is wrong")
        if self.training:
            self.check_sums()
        elif self.sums:
            raise WrongError("an evaluation must not sum gradients")

    def check_sums(self) -> None:
        """Check that every group's gradient is summed once over all its copies, and equals that of one process.

        Raises WrongError.
        """
        h = self.header
        stage_gradients = gradients(h.stages, h.micro_batches, h.width)
        for group, stages in self.groups.items():
            holders = {w * h.ranks + p.placement[s] for p in h.pipes for w in range(h.width) for s in stages}
            by_rank = self.sums.get(group, {})
            if len(holders) == 1 and not by_rank:
                summed = self.contribution(holders.pop(), group)
            else:
                if len(holders) == 1 or set(by_rank) != holders:
                    expected = sorted(holders) if len(holders) > 1 else []
                    raise WrongError(f"{group} is summed by ranks {sorted(by_rank)}, and should be by {expected}")
                if any(len(x) != 1 for x in by_rank.values()):
                    raise WrongError(f"{group} is summed more than once")
                for g, contributions in by_rank.items():
                    if contributions[0] != self.contribution(g, group):
                        raise WrongError(f"rank {g} adds to the gradient of {group} after its sum")
                summed = sum((contributions[0] for contributions in by_rank.values()), Counter())
            if summed != sum((stage_gradients[s] for s in stages), Counter()):
                raise WrongError(f"the gradient of {group} is wrong")
        by_group: dict[str, set[tuple[int, ...]]] = {}
        for stream in self.streams:
            for i in stream:
                if isinstance(i, AllReduce):
                    by_group.setdefault(i.group, set()).add(i.ranks)
        # `set(*ranks)`: the members in the only tuple of `ranks`
        if any(len(ranks) != 1 or set(*ranks) != set(self.sums[group]) for group, ranks in by_group.items()):
            raise WrongError("an all-reduce does not name exactly the ranks that take part in it")
        self.run_sums()

    def run_sums(self) -> None:
        """Run the collectives: on every rank one at a time, in the order in which it launched them. Raises WrongError."""
        while any(self.launched):
            heads = [own[0] for own in self.launched if own]
            next_sum = next((i for i in heads if all(self.launched[r][:1] == [i] for r in i.ranks)), None)
            if next_sum is None:
                raise WrongError("collectives wait for each other in a cycle")
            for r in next_sum.ranks:
                self.launched[r].pop(0)


def forward(stages: int, replica: int, m: int) -> list[Term]:
    """Return the input of every stage, and then the output of the last one, as one process without a pipeline computes them."""
    inputs: list[Term] = [("sample", replica, m)]
    for stage in range(stages):
        inputs.append(("F", stage, inputs[-1]))
    return inputs


def gradients(stages: int, micro_batches: int, width: int) -> list[Counter[Term]]:
    """Return the gradient of every stage, as one process without a pipeline computes it."""
    result: list[Counter[Term]] = [Counter() for _ in range(stages)]
    for replica in range(width):
        for m in range(micro_batches):
            inputs = forward(stages, replica, m)
            output_gradient: Term = ("loss", replica, m)
            for stage in reversed(range(stages)):
                result[stage]["W", stage, inputs[stage], output_gradient] += 1
                output_gradient = ("I", stage, inputs[stage], output_gradient)
    return result


def find_error(program: Program, seeds: Iterable[int] = range(3)) -> str:
    """Return why a program is wrong under one of these interleavings; an empty string if it is correct under all of them.

    Args:
        seeds: one for each interleaving.

    Everything that the header and the instructions name must exist, except the ranks of all-reduces. tests/proof/rules.py
    checks this.
    """
    streams = [program.stream(g) for g in range(program.world)]
    for seed in seeds:
        execution = Execution(program, streams, seed)
        try:
            execution.run()
            execution.check()
        except WrongError as error:
            return str(error)
    return ""
