"""Every error code is raised in one part of the code, and compiler/explain has a text for it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from chimerac.compiler.explain.entries import entries

ROOT = Path(__file__).parents[2]
PACKAGES = ("chimera_ir", "compiler", "interpreter", "models")

# The first digits of a code, and the only files that may raise it.
FILES_OF_CODES = {
    "E0": (
        "chimera_ir/files.py",
        "compiler/command/",
        "compiler/given.py",
        "compiler/explain/",
        "compiler/library.py",
        "compiler/descriptions.py",
        "compiler/plan/partition.py",
        "compiler/analyze/simulate.py",
    ),
    "E1": ("compiler/syntax/parse.py", "compiler/syntax/build.py", "compiler/diagnose/unexpected.py"),
    "E2": ("compiler/resolve/", "compiler/size.py", "interpreter/experiments/runs.py"),
    "E30": ("compiler/order/", "compiler/tasks.py", "compiler/diagnose/deadlock.py", "compiler/diagnose/stuck.py"),
    "E40": ("compiler/verify/wellformed.py",),
    "E41": ("compiler/verify/tasks.py",),
    "E42": ("compiler/verify/dataflow.py",),
    "E43": ("compiler/verify/matching.py",),
    "E44": ("compiler/verify/progress.py", "compiler/diagnose/hang.py"),
    "E45": ("compiler/verify/collectives.py", "compiler/diagnose/collectives.py"),
    "E46": ("compiler/verify/memory.py", "compiler/analyze/memory.py"),
    "E6": ("chimera_ir/jsonform.py", "chimera_ir/textform.py"),
    "E7": ("chimera_ir/model.py", "chimera_ir/partition.py", "compiler/plan/partition.py"),
    "E801": ("models/presets.py", "chimera_ir/preset.py", "compiler/descriptions.py", "interpreter/launch/"),
    "E804": ("chimera_ir/header.py",),
    "E8": ("interpreter/", "models/"),
}


def raised() -> Iterator[tuple[str, str]]:
    """Yield (code, file) for every code in the source, except in comparisons."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            compares = [x for node in ast.walk(tree) if isinstance(node, ast.Compare) for x in node.comparators]
            compared = {id(x) for comparator in compares for x in ast.walk(comparator)}
            for node in ast.walk(tree):
                if (
                    id(node) not in compared
                    and isinstance(node, ast.Constant)
                    and isinstance(node.value, str)
                    and re.fullmatch(r"E\d{3}", node.value)
                ):
                    yield node.value, path.relative_to(ROOT).as_posix()


def test_a_code_is_raised_in_one_part_of_the_project() -> None:
    """Every pass has its own codes, so a code shows which pass raised it."""
    found = sorted(set(raised()))
    assert len({code for code, _ in found}) > 40
    for code, file in found:
        files = next((files for start, files in FILES_OF_CODES.items() if code.startswith(start)), ())
        assert any(file.startswith(part) for part in files), f"{code} in {file}"


def test_every_code_is_explained_and_no_other() -> None:
    assert set(entries()) == {code for code, _ in raised()}
