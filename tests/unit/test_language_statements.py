"""Statements of docs/language.md about recomputation, windows and limits hold for its examples, or for 1f1b."""

from __future__ import annotations

import re

import pytest

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.chimera_ir.instructions import Op
from chimerac.compiler import compile_text
from chimerac.compiler.analyze.report import report
from chimerac.compiler.analyze.simulate import simulate
from chimerac.compiler.library import find
from chimerac.compiler.lower.width import tasks_only
from tools import ROOT

TEXT = (ROOT / "docs/language.md").read_text(encoding="utf-8")


def example(name: str) -> str:
    """Return the last version of an example file on the page."""
    return str(re.findall(rf"<!-- file: {name} -->\n```sched\n(.*?)```", TEXT, re.DOTALL)[-1])


def test_recomputation_changes_no_order_if_prefer_does_not_name_it() -> None:
    text = example("again.sched").replace("prefer B, F, R", "prefer B, F").replace("    limit R - B <= early\n", "")
    recomputing, plain = (compile_text(t).program for t in (text, text.replace(" recompute", "")))
    orders = [[p.text(row).replace(" recompute", "") for row in range(len(p))] for p in map(tasks_only, (recomputing, plain))]
    assert orders[0] == orders[1]
    # A backward costs 2, and 1 more if it runs its forward again.
    assert simulate(plain).makespan < simulate(recomputing).makespan == simulate(plain, {"B": 3}).makespan


def test_the_scheduler_counts_recomputation_if_prefer_names_it() -> None:
    early, late = (compile_text(example("again.sched"), {"early": k}) for k in (1, 0))
    assert not (late.program.table.op == Op.RECOMPUTE).any() and (early.program.table.op == Op.RECOMPUTE).any()
    makespans = [simulate(compiled.program).makespan for compiled in (early, late)]
    assert makespans[0] < makespans[1]
    for compiled in (early, late):
        assert int(compiled.timing.end.max()) == simulate(compiled.program).makespan


def test_only_full_windows_make_the_critical_path_longer_than_the_scheduler_plans() -> None:
    for window in range(4):
        compiled = compile_text(example("hops.sched"), {"K": window})
        simulation = simulate(compiled.program)
        planned = int(compiled.timing.end.max())  # the makespan with the hop, but without windows
        assert f"critical path   {simulation.makespan} = " in report(compiled.program, simulation)
        posted = compiled.program.with_header(machine="posted")  # a machine without windows
        assert f"critical path   {planned} = " in report(posted, simulate(posted))
        assert simulation.makespan >= planned
        if window == 0:  # a SEND waits only until its RECV is posted, and here the RECV is posted before it
            assert simulation.makespan == planned


def test_a_limit_counts_recomputed_activations_in_full() -> None:
    text = find("1f1b").text.replace("on rank s ", "on rank s recompute ")
    compile_text(f"{text}limit activations <= 4\n", {"D": 4, "N": 8})
    with pytest.raises(ChimeraError, match="E460: rank 0 holds 4 activations at its peak; the limit is 3"):
        compile_text(f"{text}limit activations <= 3\n", {"D": 4, "N": 8})
