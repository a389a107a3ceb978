"""Small programs and a small model, whose times and bytes the tests compute by hand."""

from __future__ import annotations

from chimerac.chimera_ir.model import Layer, ModelDescription, Tensor
from chimerac.chimera_ir.program import Machine, Program
from chimerac.chimera_ir.textform import program_from_text
from chimerac.compiler.analyze.memory import RankMemory, memory
from chimerac.compiler.verify import verify

# Rank 0 sends three activations, and rank 1 three gradients. Both ranks post these transfers in the same order, so that the
# program deadlocks on no machine.
THREE = """chimera-program 1
schedule three
sizes width=1 ranks=2 stages=2 micro_batches=3 window={window} machine={machine} kind=training micro_batch_size=1/1
costs FWD=1 BWD=1 BWD_INPUT=1 BWD_WEIGHT=1 hop=4
pipe main on 0 1 micro_batches 0 1 2
rank 0:
  FWD main s0 m0; SEND act main s1 m0 -> 1
  FWD main s0 m1; SEND act main s1 m1 -> 1
  FWD main s0 m2; SEND act main s1 m2 -> 1
  RECV grad main s0 m0 <- 1; RECV grad main s0 m1 <- 1; RECV grad main s0 m2 <- 1
  BWD main s0 m0; BWD main s0 m1; BWD main s0 m2
rank 1:
  RECV act main s1 m0 <- 0; RECV act main s1 m1 <- 0; RECV act main s1 m2 <- 0
  FWD main s1 m0; BWD main s1 m0; SEND grad main s0 m0 -> 0
  FWD main s1 m1; BWD main s1 m1; SEND grad main s0 m1 -> 0
  FWD main s1 m2; BWD main s1 m2; SEND grad main s0 m2 -> 0
"""


def three(machine: Machine, window: int = 2) -> Program:
    """Return the program THREE with this machine and this window in its header."""
    return verify(program_from_text(THREE.format(machine=machine, window=window)))


# TOY has two layers, one for each of two stages. An act between them has 16 + 8 bytes; its grad has 16 bytes.
BETWEEN = (Tensor((4,), "float32", gradient=True), Tensor((1,), "int64", gradient=False))
OUTPUT = (Tensor((1,), "float32", gradient=True),)
TOY = ModelDescription(
    name="toy",
    samples=2,
    layers=(
        Layer("first", parameters=100, weight_bytes=400, kept_bytes=50, weight_kept_bytes=20, boundary=BETWEEN, cost=1),
        Layer("second", parameters=10, weight_bytes=40, kept_bytes=7, weight_kept_bytes=3, boundary=OUTPUT, cost=1),
    ),
)

# A program of TOY without its tasks, which `memory_of` appends.
ONE_RANK = """chimera-program 1
schedule one
sizes width=1 ranks=1 stages=2 micro_batches=2 window=2 machine=window kind=training micro_batch_size=1/1
costs FWD=1 BWD=2 BWD_INPUT=1 BWD_WEIGHT=1 hop=0
pipe main on 0 0 micro_batches 0 1

rank 0:
"""


def memory_of(*tasks: str) -> RankMemory:
    """Return the memory of one rank that runs these tasks of TOY, with both stages and two micro-batches.

    Args:
        tasks: instructions in the text form.
    """
    program = verify(program_from_text(ONE_RANK + "".join(f"  {task}\n" for task in tasks)))
    [of_rank_0] = memory(program, TOY)
    return of_rank_0
