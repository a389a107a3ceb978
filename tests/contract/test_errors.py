"""Every error code means one thing, and a golden file shows how it reads (tests/contract/test_docs.py: docs/errors.md)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("chimera_ir", "compiler", "interpreter", "models")

# What the hundreds and tens of a code say, and the only files that may raise it.
ROOMS = {
    "E0": ("compiler/cli.py", "compiler/library.py", "compiler/__init__.py"),
    "E1": ("compiler/syntax/parse.py", "compiler/syntax/build.py"),
    "E2": ("compiler/resolve/", "compiler/pipeline.py"),
    "E30": ("compiler/order/", "compiler/deadlock.py"),
    "E40": ("compiler/verify/wellformed.py",),
    "E41": ("compiler/verify/tasks.py",),
    "E42": ("compiler/verify/dataflow.py",),
    "E43": ("compiler/verify/matching.py",),
    "E44": ("compiler/verify/progress.py",),
    "E45": ("compiler/verify/collectives.py",),
    "E46": ("compiler/verify/memory.py", "compiler/memory.py"),
    "E6": ("chimera_ir/jsonform.py", "chimera_ir/textform.py"),
    "E7": ("chimera_ir/model.py", "models/"),
    "E8": ("interpreter/", "models/"),
}


def raised() -> Iterator[tuple[str, str]]:
    """Yield (code, file) for every code in the source, but for those that findings are only compared with."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            compared = {id(x) for node in ast.walk(tree) if isinstance(node, ast.Compare) for x in node.comparators}
            for node in ast.walk(tree):
                if (
                    id(node) not in compared
                    and isinstance(node, ast.Constant)
                    and isinstance(node.value, str)
                    and re.fullmatch(r"E\d{3}", node.value)
                ):
                    yield node.value, path.relative_to(ROOT).as_posix()


def test_a_code_is_raised_in_one_room() -> None:
    """A pass has codes of its own: where a code is raised says what it is about."""
    found = sorted(set(raised()))
    assert len({code for code, _ in found}) > 40
    for code, file in found:
        room = next((files for start, files in ROOMS.items() if code.startswith(start)), ())
        assert any(file.startswith(part) for part in room), f"{code} in {file}"


def test_every_code_of_a_schedule_or_program_has_a_golden_file() -> None:
    """What a user can cause by a text is shown; a code that no file causes is listed here with the reason."""
    golden = "".join(path.read_text() for path in (ROOT / "tests/golden").rglob("*.txt"))
    shown = set(re.findall(r"error\[(E\d{3})\]", golden))
    elsewhere = {
        "E105": "a text of a million characters",
        "E423": "tests/unit/test_verify.py",
        "E426": "tests/unit/test_verify.py",
        "E451": "tests/unit/test_verify_collectives.py",
        "E453": "tests/unit/test_verify_collectives.py",
        "E701": "tests/unit/test_models_description.py",
        "E702": "tests/unit/test_models_description.py",
        "E703": "tests/unit/test_models_description.py",
        "E704": "tests/unit/test_models_description.py",
        "E705": "tests/unit/test_models_description.py",
    }
    codes = {code for code, _ in raised() if code < "E8"}
    assert codes - shown == set(elsewhere)
