"""Makes the plan of a run from its settings.

`make_plan` imports torch, which takes 2 s, only for images. So without images, findings appear before that. The compiler is
optional: if it cannot be imported, a compiled program runs without being verified again.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from chimerac.chimera_ir.diagnostics import ChimeraError, Source, refuse
from chimerac.chimera_ir.files import read
from chimerac.chimera_ir.machines import PROCESSES
from chimerac.interpreter.adapters.own import is_own
from chimerac.interpreter.launch.plan import Plan, check_kind
from chimerac.interpreter.launch.record import check_folder, check_output
from chimerac.interpreter.launch.settings import RunSettings
from chimerac.interpreter.launch.storage import make_work_dir
from chimerac.interpreter.launch.tensorboard import check_package
from chimerac.interpreter.launch.workloads import check_depth, check_options, with_partition
from chimerac.interpreter.pipeline.world import arrange_command, fixed_recomputation, wrong_machine
from chimerac.interpreter.training.export_file import check_export
from chimerac.interpreter.training.settings import samples_per_micro_batch

if TYPE_CHECKING:
    from chimerac.chimera_ir.model import ModelDescription


def make_plan(settings: RunSettings, notify: Callable[[str], None] = lambda text: None) -> Plan:
    """Return the plan for a schedule or a compiled program.

    Args:
        notify: called with messages for the user.

    It also makes the folder of --work-dir, and checks the options: first those that need no program, then the others. What only
    the model can show is checked later. Raises ChimeraError for what is wrong.
    """
    make_work_dir(settings)
    if os.environ.get("RANK", "0") == "0":  # only this rank writes these outputs
        check_outputs(settings)
    check_options(settings)
    plan = _plan(settings, notify)
    samples_per_micro_batch(plan.program, settings.micro_batch)  # raises E804
    check_depth(settings, plan.program)
    return plan


def fitted(plan: Plan, settings: RunSettings, description: ModelDescription) -> Plan:
    """Return the plan for a user's own model, whose layers and tied parameters are known only from its description.

    Its program has the partition of --split or --partition, if one is given. If it was compiled from a schedule here, the
    parameters that stages of the model share are also tied; a compiled program keeps its ties. For a preset, the plan is
    returned as it is.

    Raises ChimeraError: E705 for more stages than layers, E706 for a partition of another model, E708 for a split that does not
    fit; and as `compiled_plan` (compiling.py).
    """
    if not is_own(settings.model):
        return plan
    # This imports torch: 2.6 s, which are already spent where there is a description.
    from chimerac.interpreter.runtime.partitioned import missing_ties

    program = with_partition(settings, plan.program, description)
    is_compiled = _program_text(settings.schedule) is not None
    tied = () if is_compiled else missing_ties(program, description)
    if program.partition == plan.program.partition and not tied:
        return plan
    if plan.memory is None:  # no compiler, or a timed run: nothing is evaluated
        return replace(plan, program=program)
    from chimerac.interpreter.launch.compiling import compiled_plan  # imports the compiler: 0.2 s

    return compiled_plan(settings, is_compiled, tied, description)


def check_outputs(settings: RunSettings) -> None:
    """Raise ChimeraError: E811 and E835 for files and folders to which the run cannot write, E840 for a missing tensorboard."""
    for path, option in ((settings.log_file, "--log-file"), (settings.trace, "--trace"), (settings.timeline, "--timeline")):
        if path is not None:
            check_output(path, option)
    if settings.export is not None:
        check_export(settings.export)
    if settings.tensorboard is not None:
        check_package()
        check_folder(settings.tensorboard, "--tensorboard")


def _plan(settings: RunSettings, notify: Callable[[str], None]) -> Plan:
    """Return the plan, made by the compiler if it is installed.

    Raises ChimeraError: E808 for options that a compiled program does not allow, and as `compiled_plan` or `_unverified`.
    """
    text = _program_text(settings.schedule)
    if text is not None and (settings.parameters or settings.width is not None):
        raise refuse(
            "E808",
            f"{settings.schedule} is a compiled program: its parameters and its width are fixed",
            help="leave out -p and --width, or give the schedule instead of its program",
        )
    if text is not None and settings.recompute is not None:
        raise fixed_recomputation(str(settings.schedule), "--recompute")
    try:
        # The compiler may not be installed. Its import takes 0.2 s, which --help does not need.
        from chimerac.interpreter.launch.compiling import compiled_plan
    except ImportError as error:
        return _unverified(settings, text, str(error), notify)
    return compiled_plan(settings, is_compiled=text is not None)


def _program_text(path: Path) -> Source | None:
    """Return the text of a compiled program; None for a schedule, and for a path that cannot be read."""
    try:
        source = Source(str(path), read(path))
    except ChimeraError:
        return None  # the name of a schedule of the library, or a wrong path, which the compiler reports
    # This imports numpy and pydantic: 0.25 s, which --help does not need.
    from chimerac.chimera_ir.forms import is_program

    return source if is_program(source) else None


def _unverified(settings: RunSettings, text: Source | None, reason: str, notify: Callable[[str], None]) -> Plan:
    """Return the plan of a compiled program without the compiler.

    Args:
        reason: why the compiler cannot be imported.
        text: of the program; None as `_program_text` returns it.

    Raises ChimeraError: E813 if it is None, E814 for a program that does not train, E816 for one that may hang, and the errors
    of a text that is no program and of `with_partition`.
    """
    from chimerac.chimera_ir.forms import read_program  # imports pydantic: 0.2 s, not for --help

    path = settings.schedule
    if text is None:
        raise refuse(
            "E813",
            f"{path} is not a compiled program, and the compiler cannot be imported: {reason}",
            help="compile it where the compiler is: chimerac SCHEDULE --emit json -o p.json",
        )
    notify(f"without the compiler ({reason}): {path} is not verified again, and nothing is evaluated")
    program = with_partition(settings, read_program(text))
    check_kind(program)
    if program.header.machine == "posted" and not settings.loopback:
        # A program that terminates on any machine but `posted` also terminates on `window` (docs/semantics.md, "Machines").
        note = "only the compiler can check whether it ends there"
        ranks, help = f"ranks over {settings.transport}", f"where the compiler is: {arrange_command(path)}"
        raise wrong_machine(program, str(path), ranks, PROCESSES, note, help)
    return Plan(program, evaluation=None, predicted=None)
