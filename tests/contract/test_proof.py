"""docs/proof.md has the results of all recorded parts of `make proof`, for all machines and classes of mutants.

The explorers found no disagreement, the verifier gave no wrong verdict on a mutant, and no reader was worse than linear. The
page may list failures of fuzzing. Other tests are about the parts themselves: what is mutated, what the independent checkers
import, and how results are recorded.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path

import pytest

from chimerac.chimera_ir.instructions import Op
from chimerac.chimera_ir.program import Header, Program
from chimerac.compiler import evaluation_of
from tests.helpers import program
from tests.proof.drawn import MACHINES
from tests.proof.explorer import KINDS, NEEDED, WAITS
from tests.proof.growth_targets import READERS
from tests.proof.mutations import MUTATIONS, mutants
from tests.proof.mutations_header import CHANGES, WHY
from tests.proof.mutations_streams import add_instruction
from tests.proof.record import PAGE, PARTS, block, record, recorded, rows, stamp, table
from tools import ROOT

TEXT = PAGE.read_text(encoding="utf-8")
TRAINING = program("chimera", D=2, N=2)


def number(cell: str) -> int:
    """Return the number in a cell of a table."""
    return int(cell.replace(",", ""))


def test_every_part_has_a_block_a_script_and_a_place_in_make_proof() -> None:
    assert re.findall(r"^<!-- recorded: (\w+) -->$", TEXT, re.MULTILINE) == list(PARTS)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    recipe = makefile.split("\nproof: ")[1].split("\n\n")[0]
    for name in PARTS:
        assert block(name).search(TEXT) and f"proof-{name}" in recipe
        assert find_spec(f"tests.proof.{name}"), name


@pytest.mark.parametrize("name", list(PARTS))
def test_every_recorded_block_begins_with_the_stamp_of_a_run(name: str) -> None:
    assert re.match(r"\nRecorded \d{4}-\d\d-\d\d, in \d+ minutes?\. Seed .*Python 3", recorded(name)), f"run make proof-{name}"


def test_the_explorers_and_the_verifier_agree_on_at_least_ten_thousand_programs() -> None:
    programs, by_machine, _ = rows("explorer")
    counts = {row["programs"]: number(row["number"]) for row in programs}
    total = counts.pop("all, no two of them equal")
    assert set(counts) == set(KINDS.values()) and sum(counts.values()) == total >= 10_000
    assert [row["machine"] for row in by_machine] == [*MACHINES, "all"]
    for row in by_machine[:-1]:
        assert number(row["accepted"]) + number(row["refused"]) == total, row
        assert number(row["accepted"]) > 1000 and number(row["refused"]) > 1000, row
    assert all(row["disagreements"] == "0" for row in by_machine)


def test_the_explorers_detect_a_left_out_kind_of_wait_exactly_if_it_is_needed() -> None:
    *_, waits = rows("explorer")
    assert [row.pop("wait that is left out") for row in waits] == [*WAITS.values()]
    for row, wait in zip(waits, WAITS, strict=True):
        assert [*row] == [*MACHINES]
        for machine, cell in zip(MACHINES, row.values(), strict=True):
            assert (number(cell) > 0) == (wait in NEEDED[machine]), (machine, WAITS[wait])


def test_the_kill_table_has_every_class_and_no_wrong_verdict() -> None:
    (kills,) = rows("kills")
    assert [row["class"] for row in kills] == [*(words for words, _ in MUTATIONS.values()), "all"]
    for row in kills:
        counts = [number(row[outcome]) for outcome in ("rejected", "equivalent", "wrongly accepted", "wrongly rejected")]
        assert counts[2:] == [0, 0] and 0 < sum(counts) == number(row["mutants"])
        why = row["why all have one outcome"]
        assert bool(why) == (0 in counts[:2]), f"{row['class']}: a reason is needed exactly if all mutants have one outcome"
    assert [row["why all have one outcome"] for row in kills[:-1]] == [why for _, why in MUTATIONS.values()]


def test_no_reader_was_found_to_be_worse_than_linear() -> None:
    (readers,) = rows("growth")
    assert [row["reader"] for row in readers] == list(READERS)
    assert all(row["worse than linear"] == "0" and number(row["inputs"]) > 100 for row in readers)


def test_every_field_of_a_header_has_mutants_and_an_instruction_of_every_kind_is_added() -> None:
    def counts(p: Program) -> Counter[str]:
        return Counter(i.op for g in range(p.world) for i in p.stream(g))

    assert [*CHANGES] == [f.name for f in fields(Header)] and {*WHY} <= {*CHANGES}
    for p in (TRAINING, evaluation_of(TRAINING)):
        drawn = [m for seed in "01234567" for m in mutants(p, add_instruction, count=60, seed=seed)]
        added = {op for m in drawn for op in counts(m) - counts(p)}
        assert added == {op.name for op in Op}


@pytest.mark.parametrize("name", ["tests/proof/model.py", "tests/proof/rules.py", "tests/helpers_reference.py"])
def test_independent_checkers_import_only_the_types_of_programs(name: str) -> None:
    nodes = ast.walk(ast.parse((ROOT / name).read_text(encoding="utf-8")))
    modules = {n.module for n in nodes if isinstance(n, ast.ImportFrom)}
    assert {m for m in modules if m.split(".")[0] in ("chimerac", "tests")} == {
        "chimerac.chimera_ir.instructions",
        "chimerac.chimera_ir.program",
    }


def test_a_part_rewrites_its_own_block_and_no_other(tmp_path: Path) -> None:
    page = tmp_path / "proof.md"
    page.write_text("a\n<!-- recorded: kills -->\nold\n<!-- end -->\nb\n<!-- recorded: fuzz -->\nkept\n<!-- end -->\n")
    record("kills", stamp(seconds=61, seed=3) + table(("class", "mutants"), [("drop", 1234)]), page)
    assert "old" not in page.read_text() and recorded("fuzz", page) == "kept\n"
    assert rows("kills", page) == [[{"class": "drop", "mutants": "1,234"}]]
    with pytest.raises(AssertionError):
        record("explorer", "", page)  # the page has no such block
