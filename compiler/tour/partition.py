"""The second part of the tour: which layers form which stage, and what a rank then needs."""

from __future__ import annotations

from chimerac.compiler.analyze.memory import memory
from chimerac.compiler.descriptions import find_model
from chimerac.compiler.given import stage_choice
from chimerac.compiler.library import find
from chimerac.compiler.pipeline import compile_source
from chimerac.compiler.plan.partition import best_partition
from chimerac.compiler.tour.guide import Guide, schedules

RANKS = 4


def run(guide: Guide) -> int:
    """Run this part, and return the exit status."""
    guide.title("Partition: which layers form which stage")
    guide.say(f"""A stage is a run of consecutive layers. All micro-batches pass every stage, so the slowest stage decides
        how fast the pipeline is. The partition makes the slowest stage as fast as it can be. Here it is for one model and
        for Chimera on {RANKS} ranks. No torch is needed: the sizes of the models are in files of this project.""")
    model = guide.choose("Which model?", ["gpt-small", "gpt2-small", "bert-base"])
    words = (schedules()["two_directions"], "-p", f"D={RANKS}", "--model", model)
    guide.command("partition", *words)
    guide.say("""The first table has a line for each stage: its layers, its share of the computation, and its bytes. Chimera
        has two copies of each stage, on the ranks of the last column. The second table has a line for each rank.
        Activations are what a forward keeps for its backward. Usually they need most of the memory, and a schedule decides
        how many of them a rank holds at the same time.""")
    guide.wait()
    peak, recomputed = _needs(model, "none"), _needs(model, "all")
    limit = (peak + recomputed) // 2
    guide.say(f"""The rank with the highest peak needs {peak:,} bytes. Suppose that a rank has only {limit:,}. The option
        --memory looks for a partition in which every rank has enough, or says what would help.""")
    status = guide.command("partition", *words, "--memory", str(limit))
    fits, does_not_fit = (
        "This is the fastest partition that was found to fit.",
        "No partition was found that fits. The message says how much memory would be enough.",
    )
    guide.say(does_not_fit if status else fits)
    guide.wait()
    guide.say(f"""Recomputation trades time for memory: a stage keeps only its input, and runs its forward again before its
        backward. With --recompute all, every stage does so, and the highest peak is {recomputed:,} bytes.""")
    guide.command("partition", *words, "--recompute", "all", "--memory", str(limit))
    guide.say("""The runs of interpreter/run.py take --model and --recompute too. In both commands --split gives the number of
        layers of each stage by hand. docs/partition.md describes these options.""")
    return 0


def _needs(model: str, recompute: str) -> int:
    """Return the bytes of the rank that needs most, in the best partition without a limit.

    Args:
        recompute: 'all' or 'none'.
    """
    program = compile_source(find(schedules()["two_directions"]), {"D": RANKS}, recompute=stage_choice(recompute)).program
    description = find_model(model, program.header.samples)
    partition = best_partition(program, description).partition
    return max(rank.peak for rank in memory(program.with_partition(partition), description))
