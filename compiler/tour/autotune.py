"""The fourth part of the tour: the fastest schedule that fits into memory."""

from __future__ import annotations

from collections.abc import Sequence

from chimerac.chimera_ir.model import ModelDescription
from chimerac.chimera_ir.partition import partition_for
from chimerac.chimera_ir.program import Program
from chimerac.compiler.analyze.compare import Compared, ForModel, Setting, compare, fastest_first
from chimerac.compiler.descriptions import find_model
from chimerac.compiler.given import StageChoice, stage_choice
from chimerac.compiler.library import find, names
from chimerac.compiler.tour.guide import Guide

MODEL = "gpt-small/14"
RANKS = 4
SHARES = {"medium": 0.6, "small": 0.3, "large": 1.0}  # of the memory that the schedule with the highest peak needs


def run(guide: Guide) -> int:
    """Run this part, and return the exit status."""
    guide.title("Autotune: choose by figures")
    guide.say("""This part compares all schedules that come with the project for one size, and takes the fastest one whose
        ranks fit into the memory that they have. Two other commands search further. `chimerac plan` also chooses the numbers
        of ranks, replicas and micro-batches, from the times of a model. `chimerac search` finds new orders of tasks.""")
    size = int(guide.choose("How many micro-batches?", ["8", "16"]))
    rows = _rows(size)
    highest = max(row.figures.bytes.memory for row in rows if row.figures and row.figures.bytes)
    share = guide.choose("How much memory does a rank have?", list(SHARES))
    limit = int(highest * SHARES[share])
    guide.say(f"""The model is {MODEL}, a GPT with 14 blocks, on {RANKS} ranks. The schedule that needs most takes
        {highest:,} bytes on one rank. A rank has {limit:,} bytes here.""")
    words = ("-p", f"D={RANKS}", "-p", f"N={size}", "--model", MODEL, "--memory", str(limit))
    guide.command("compare", *words)
    guide.say("Rows with E461 need more than a rank has. Recomputation lowers what a rank needs, and takes time:")
    guide.wait()
    guide.command("compare", *words, "--recompute", "all")
    found = [(_fastest(rows, limit), ""), (_fastest(_rows(size, stage_choice("all")), limit), " --recompute all")]
    fitting = [(row.figures, row.schedule, option) for row, option in found if row is not None and row.figures]
    if not fitting:
        guide.say("No schedule fits. More ranks or smaller micro-batches would need less.")
        return 0
    figures, name, option = min(fitting, key=lambda x: x[0].makespan)
    how = ", with recomputation on all stages" if option else ""
    guide.say(f"""The fastest that fits, of both tables, is {name}{how}: makespan {float(figures.makespan):g},
        bubble ratio {100 * figures.bubble_ratio:.1f} %. This trains with it, where torch is installed:""")
    guide.show(f"python interpreter/run.py {name} -p D={RANKS} -p N={size} --model {MODEL}{option}")
    return 0


def _fastest(rows: Sequence[Compared], limit: int) -> Compared | None:
    """Return the fastest schedule none of whose ranks needs more bytes than the limit."""
    fitting = [row for row in rows if row.figures and row.figures.bytes and row.figures.bytes.memory <= limit]
    return fastest_first(fitting)[0] if fitting else None


def _rows(size: int, recompute: StageChoice | None = None) -> list[Compared]:
    """Return all schedules of the library for the model, without a limit."""

    def describe(program: Program) -> tuple[Program, ModelDescription]:
        model = find_model(MODEL, program.header.samples)
        return program.with_partition(partition_for(None, model, program.header.stages)), model

    schedules = {name: find(name) for name in names()}
    return compare(schedules, Setting({"D": RANKS, "N": size}, recompute=recompute), ForModel(describe))
