"""Programs written by hand, on one or two ranks: all instructions, and different placements and pipes.

They are written as text, so they do not depend on the compiler.
"""

from chimerac.chimera_ir.program import Program
from chimerac.chimera_ir.textform import program_from_text


def program(text: str, name: str, ranks: int, stages: int, micro_batches: int, width: int = 1, window: int = 2) -> Program:
    """Return the program of this text, which begins with the first pipe.

    The lines before the pipes are added here. They have the arguments, and the same costs for every program.
    """
    header = f"""chimera-program 1
schedule {name}
sizes width={width} ranks={ranks} stages={stages} micro_batches={micro_batches} window={window} machine=window \
kind=training micro_batch_size=1/1
costs FWD=1 BWD=2 BWD_INPUT=1 BWD_WEIGHT=1 hop=0
"""
    return program_from_text(header + text, name)


# One forward, one backward: rank 1 alternates from the start.
ONE_F_ONE_B = """pipe main on 0 1 micro_batches 0 1 2 3

rank 0:
  FWD main s0 m0; SEND act main s1 m0 -> 1
  FWD main s0 m1; SEND act main s1 m1 -> 1; RECV grad main s0 m0 <- 1
  BWD main s0 m0
  FWD main s0 m2; SEND act main s1 m2 -> 1; RECV grad main s0 m1 <- 1
  BWD main s0 m1
  FWD main s0 m3; SEND act main s1 m3 -> 1; RECV grad main s0 m2 <- 1
  BWD main s0 m2; RECV grad main s0 m3 <- 1
  BWD main s0 m3
rank 1:
  RECV act main s1 m0 <- 0; RECV act main s1 m1 <- 0
  FWD main s1 m0
  BWD main s1 m0; SEND grad main s0 m0 -> 0; RECV act main s1 m2 <- 0
  FWD main s1 m1
  BWD main s1 m1; SEND grad main s0 m1 -> 0; RECV act main s1 m3 <- 0
  FWD main s1 m2
  BWD main s1 m2; SEND grad main s0 m2 -> 0
  FWD main s1 m3
  BWD main s1 m3; SEND grad main s0 m3 -> 0
"""

# Two pipes in opposite directions: both ranks hold both stages, and sum their gradients.
TWO_PIPES = """pipe down on 0 1 micro_batches 0 1
pipe up on 1 0 micro_batches 2 3

rank 0:
  RECV act up s1 m2 <- 1; RECV grad down s0 m0 <- 1; RECV act up s1 m3 <- 1; RECV grad down s0 m1 <- 1
  FWD down s0 m0; SEND act down s1 m0 -> 1
  FWD up s1 m2
  BWD up s1 m2; SEND grad up s0 m2 -> 1
  BWD down s0 m0
  FWD down s0 m1; SEND act down s1 m1 -> 1
  FWD up s1 m3
  BWD up s1 m3; SEND grad up s0 m3 -> 1; ALLREDUCE s1 over 0,1
  BWD down s0 m1; ALLREDUCE s0 over 0,1
rank 1:
  RECV act down s1 m0 <- 0; RECV grad up s0 m2 <- 0; RECV act down s1 m1 <- 0; RECV grad up s0 m3 <- 0
  FWD up s0 m2; SEND act up s1 m2 -> 0
  FWD down s1 m0
  BWD down s1 m0; SEND grad down s0 m0 -> 0
  BWD up s0 m2
  FWD up s0 m3; SEND act up s1 m3 -> 0
  FWD down s1 m1
  BWD down s1 m1; SEND grad down s0 m1 -> 0; ALLREDUCE s1 over 0,1
  BWD up s0 m3; ALLREDUCE s0 over 0,1
"""

# The pipe up has a placement but no micro-batches: its copies contribute zeros to the all-reduces.
IDLE_PIPE = """pipe down on 0 1 micro_batches 0
pipe up on 1 0 micro_batches

rank 0:
  FWD down s0 m0; SEND act down s1 m0 -> 1; RECV grad down s0 m0 <- 1; ALLREDUCE s1 over 0,1
  BWD down s0 m0; ALLREDUCE s0 over 0,1
rank 1:
  RECV act down s1 m0 <- 0
  FWD down s1 m0
  BWD down s1 m0; SEND grad down s0 m0 -> 0; ALLREDUCE s1 over 0,1; ALLREDUCE s0 over 0,1
"""

# Two replicas of one rank that holds both stages: no transfers, only all-reduces.
TWO_REPLICAS = """pipe main on 0 0 micro_batches 0 1

rank 0:
  FWD main s0 m0
  FWD main s1 m0
  BWD main s1 m0
  BWD main s0 m0
  FWD main s0 m1
  FWD main s1 m1
  BWD main s1 m1; ALLREDUCE s1 over 0,1
  BWD main s0 m1; ALLREDUCE s0 over 0,1
rank 1:
  FWD main s0 m0
  FWD main s1 m0
  BWD main s1 m0
  BWD main s0 m0
  FWD main s0 m1
  FWD main s1 m1
  BWD main s1 m1; ALLREDUCE s1 over 0,1
  BWD main s0 m1; ALLREDUCE s0 over 0,1
"""

# Two replicas of a rank with one stage per layer. The last layer has no parameters, but its stage has an all-reduce too.
_FORWARDS = "\n".join(f"  FWD main s{s} m0" for s in range(5))
_BACKWARDS = "\n".join(f"  BWD main s{s} m0; ALLREDUCE s{s} over 0,1" for s in reversed(range(5)))
LAYER_BY_LAYER = f"""pipe main on 0 0 0 0 0 micro_batches 0

rank 0:
{_FORWARDS}
{_BACKWARDS}
rank 1:
{_FORWARDS}
{_BACKWARDS}
"""

# Stages in a V on two ranks (0 and 3 on rank 0): groups of two micro-batches in one message, recomputation, split and full
# backwards, an act freed by an explicit FREE.
SPLIT_V = """pipe main on 0 1 1 0 micro_batches 0 1

rank 0:
  FWD main s0 m0,1 recompute; SEND act main s1 m0,1 -> 1; RECV act main s3 m0,1 <- 1
  FWD main s3 m0,1
  BWD_INPUT main s3 m1
  BWD_INPUT main s3 m0; SEND grad main s2 m0,1 -> 1; RECV grad main s0 m0 <- 1; RECV grad main s0 m1 <- 1
  BWD_WEIGHT main s3 m0,1; FREE act main s3 m0
  BWD main s0 m0
  BWD_INPUT main s0 m1
  BWD_WEIGHT main s0 m1
rank 1:
  RECV act main s1 m0,1 <- 0
  FWD main s1 m0
  FWD main s1 m1 recompute
  FWD main s2 m1,0 recompute; SEND act main s3 m0,1 -> 0; RECV grad main s2 m0,1 <- 0
  BWD main s2 m0
  BWD main s1 m0; SEND grad main s0 m0 -> 0
  BWD_INPUT main s2 m1
  BWD_INPUT main s1 m1; SEND grad main s0 m1 -> 0
  BWD_WEIGHT main s1 m1
  BWD_WEIGHT main s2 m1
"""

# The same, but RECOMPUTE runs some forwards again earlier than their backwards would: in a group, for only some micro-batches,
# before full and split backwards.
EARLY_V = (
    SPLIT_V.replace("  BWD main s0 m0\n", "  RECOMPUTE main s0 m1,0\n  BWD main s0 m0\n")
    .replace("  BWD main s2 m0\n", "  RECOMPUTE main s2 m1\n  BWD main s2 m0\n")
    .replace("  BWD_INPUT main s2 m1\n", "  RECOMPUTE main s1 m1\n  BWD_INPUT main s2 m1\n")
)

TWO_RANKS = {
    "1f1b": program(ONE_F_ONE_B, "one_f_one_b", ranks=2, stages=2, micro_batches=4),
    "1f1b, window 1": program(ONE_F_ONE_B, "one_f_one_b", ranks=2, stages=2, micro_batches=4, window=1),
    "1f1b, window 9": program(ONE_F_ONE_B, "one_f_one_b", ranks=2, stages=2, micro_batches=4, window=9),
    "two pipes": program(TWO_PIPES, "two_pipes", ranks=2, stages=2, micro_batches=4),
    "two pipes, window 0": program(TWO_PIPES, "two_pipes", ranks=2, stages=2, micro_batches=4, window=0),
    "idle pipe": program(IDLE_PIPE, "idle_pipe", ranks=2, stages=2, micro_batches=1),
    "two replicas": program(TWO_REPLICAS, "two_replicas", ranks=1, stages=2, micro_batches=2, width=2),
    "layer by layer": program(LAYER_BY_LAYER, "layer_by_layer", ranks=1, stages=5, micro_batches=1, width=2),
    "split V": program(SPLIT_V, "split_v", ranks=2, stages=4, micro_batches=2),
    "early V": program(EARLY_V, "early_v", ranks=2, stages=4, micro_batches=2),
}

# One rank that holds three stages: tasks of every kind but RECOMPUTE, no transfers.
ALONE = """pipe main on 0 0 0 micro_batches 0 1

rank 0:
  FWD main s0 m0,1
  FWD main s1 m0 recompute
  FWD main s1 m1
  FWD main s2 m1
  FWD main s2 m0 recompute
  BWD main s2 m0
  BWD_INPUT main s2 m1
  BWD_INPUT main s1 m1
  BWD_WEIGHT main s2 m1
  BWD main s1 m0
  BWD main s0 m0,1
  BWD_WEIGHT main s1 m1
"""
ONE_RANK = program(ALONE, "alone", ranks=1, stages=3, micro_batches=2)
