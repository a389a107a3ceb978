"""Compile a schedule, read what each rank executes, and predict its times, without torch: python inspect_program.py"""

from chimerac.chimera_ir.instructions import Bwd, Fwd, Send
from chimerac.compiler import compile_schedule, simulate

program = compile_schedule("chimera", {"D": 4, "N": 8}).program

for rank in range(program.world):
    stream = program.stream(rank)  # a tuple of instructions, each one a value with fields
    forwards = [i for i in stream if isinstance(i, Fwd)]
    backwards = [i for i in stream if isinstance(i, Bwd)]
    peers = sorted({i.peer for i in stream if isinstance(i, Send)})
    print(f"rank {rank}: {len(forwards)} forwards, {len(backwards)} backwards, sends to ranks {peers}")

print("first instructions of rank 0:")
for row in range(4):  # the rows are the instructions of all ranks, rank after rank
    print(f"    {program.text(row)}")

for hop in (0, 0.5):  # the time of a message; a forward takes 1, a backward 2
    times = simulate(program, {"hop": hop})
    print(f"hop {hop}: makespan {times.time(times.makespan)}, bubble ratio {times.bubble_ratio:.3f}")
