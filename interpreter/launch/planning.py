"""Makes the plan from the settings. It does not import torch, so that findings about the program appear at once.

The compiler is optional: if it cannot be imported, a compiled program runs without being verified again.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from chimerac.chimera_ir.diagnostics import ChimeraError, Source, refuse
from chimerac.chimera_ir.files import read
from chimerac.interpreter.launch.plan import Plan, arranging, check_kind, for_another_machine
from chimerac.interpreter.launch.record import check_folder, check_output
from chimerac.interpreter.launch.settings import RunSettings
from chimerac.interpreter.launch.storage import make_work_dir
from chimerac.interpreter.launch.tensorboard import check_package
from chimerac.interpreter.launch.workloads import check_depth, check_options
from chimerac.interpreter.training.settings import samples_per_micro_batch


def planned(settings: RunSettings, notify: Callable[[str], None] = lambda text: None) -> Plan:
    """Return the plan for a schedule or a compiled program. notify: called with messages for the user.

    All options are checked that can be checked without torch: the cheap ones first, then those that need the program.
    """
    make_work_dir(settings)
    if os.environ.get("RANK", "0") == "0":  # the rank that writes
        check_outputs(settings)
    check_options(settings)
    plan = _plan(settings, notify)
    samples_per_micro_batch(plan.program, settings.micro_batch)
    check_depth(settings, plan.program)
    return plan


def check_outputs(settings: RunSettings) -> None:
    """Raise ChimeraError: E811 for a file or a folder to which the run cannot write, E840 without the package tensorboard."""
    for path, option in ((settings.log_file, "--log-file"), (settings.trace, "--trace")):
        if path is not None:
            check_output(path, option)
    if settings.tensorboard is not None:
        check_package()
        check_folder(settings.tensorboard, "--tensorboard")


def _plan(settings: RunSettings, notify: Callable[[str], None]) -> Plan:
    text = _program_text(settings.schedule)
    if text is not None and (settings.parameters or settings.width is not None):
        raise refuse(
            "E808",
            f"{settings.schedule} is a compiled program: its parameters and its width are fixed",
            help="leave out -p and --width, or give the schedule instead of its program",
        )
    try:
        # The compiler may not be installed. Its import takes 0.2 s, which --help should not need.
        from chimerac.interpreter.launch.compiling import compiled_plan
    except ImportError as error:
        return _unverified(settings, text, str(error), notify)
    return compiled_plan(settings, is_compiled=text is not None)


def _program_text(path: Path) -> Source | None:
    """Return the text of a compiled program; None for a schedule, and for a path that cannot be read."""
    try:
        source = Source(str(path), read(path))
    except ChimeraError:
        return None  # the compiler reports what is wrong
    # It imports numpy and pydantic, which take 0.25 s that --help does not need.
    from chimerac.chimera_ir.forms import is_program

    return source if is_program(source) else None


def _unverified(settings: RunSettings, text: Source | None, reason: str, notify: Callable[[str], None]) -> Plan:
    """Return the plan of a compiled program where the compiler is not installed."""
    from chimerac.chimera_ir.forms import read_program  # 0.2 s that --help does not need

    path = settings.schedule
    if text is None:
        raise refuse(
            "E813",
            f"{path} is no compiled program, and the compiler cannot be imported: {reason}",
            help="compile it where the compiler is: chimerac SCHEDULE --emit json -o p.json",
        )
    notify(f"without the compiler ({reason}): {path} is not verified again, and nothing is evaluated")
    program = read_program(text)
    check_kind(program)
    if program.header.machine == "posted" and not settings.loopback:
        # A program that ends on any machine but `posted` also ends on `window` (docs/semantics.md, "Machines").
        note = "whether it ends there all the same, only the compiler can say"
        raise for_another_machine(program, settings, note, f"where the compiler is: {arranging(path)}")
    return Plan(program, None, None)
