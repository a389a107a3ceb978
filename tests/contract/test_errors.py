"""Every error code is raised only in the files listed here, and is explained. Runs write texts to stderr with one function."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from chimerac.compiler.explain.entries import entries
from tools import ROOT

PACKAGES = ("chimera_ir", "compiler", "interpreter", "models")

# By the first digits of a code: the only files and folders that may raise it. If a code begins with several keys, the
# longest one counts.
FILES_OF_CODES = {
    "E001": ("chimera_ir/files.py", "compiler/library.py", "compiler/command/files.py"),
    "E002": (
        "chimera_ir/files.py",
        "compiler/command/",
        "compiler/explain/page.py",
        "compiler/given.py",
        "compiler/descriptions.py",
        "compiler/plan/partition.py",
        "compiler/analyze/durations.py",
        "compiler/analyze/compare.py",
        "compiler/draw/layout.py",
        "compiler/draw/picture.py",
        "compiler/exchange/torch_csv.py",
        "compiler/search/",
    ),
    "E003": ("chimera_ir/files.py", "compiler/explain/page.py"),
    "E10": ("compiler/syntax/parse.py", "compiler/syntax/build.py", "compiler/diagnose/unexpected.py"),
    "E2": ("compiler/resolve/",),
    "E20": ("compiler/resolve/", "compiler/analyze/compare.py"),
    "E211": ("compiler/resolve/", "compiler/size.py"),
    "E30": ("compiler/order/",),
    "E304": ("compiler/tasks.py", "compiler/diagnose/deadlock.py"),
    "E305": ("compiler/order/greedy.py", "compiler/diagnose/stuck.py"),
    "E40": ("compiler/verify/wellformed.py",),
    "E41": ("compiler/verify/tasks.py",),
    "E42": ("compiler/verify/dataflow.py",),
    "E43": ("compiler/verify/matching.py",),
    "E44": ("compiler/verify/progress.py", "compiler/diagnose/hang.py"),
    "E45": ("compiler/verify/collectives.py",),
    "E460": ("compiler/verify/memory.py",),
    "E461": ("compiler/analyze/memory.py",),
    "E60": ("chimera_ir/jsonform.py", "chimera_ir/textform.py"),
    "E61": ("chimera_ir/timeline_form.py",),
    "E62": ("compiler/exchange/torch_csv.py",),
    "E624": ("compiler/exchange/listing.py",),
    "E70": ("chimera_ir/model.py", "chimera_ir/partition.py"),
    "E709": ("compiler/plan/partition.py",),
    "E71": ("chimera_ir/profile.py",),
    "E715": ("chimera_ir/profile.py", "compiler/command/modelled.py", "compiler/command/plan.py"),
    "E716": ("compiler/profiles.py",),
    "E717": ("compiler/profiles.py",),
    "E718": ("compiler/plan/explore.py",),
    "E719": ("compiler/plan/explore.py",),
    "E80": ("interpreter/launch/", "interpreter/pipeline/"),
    "E801": ("models/presets.py", "chimera_ir/preset.py", "compiler/descriptions.py", "interpreter/adapters/own.py"),
    "E802": ("interpreter/data/", "interpreter/launch/workloads.py"),
    "E803": ("interpreter/data/",),
    "E804": ("chimera_ir/header.py",),
    "E805": ("interpreter/runtime/partitioned.py",),
    "E81": ("interpreter/launch/", "interpreter/pipeline/"),
    "E810": ("interpreter/runtime/parameters.py",),
    "E811": ("interpreter/launch/", "interpreter/runtime/gathered.py"),
    "E815": ("interpreter/launch/start.py", "interpreter/transport/nccl.py"),
    "E819": ("interpreter/transport/addresses.py",),
    "E821": ("chimera_ir/sequences.py",),
    "E83": ("interpreter/pipeline/", "interpreter/training/"),
    "E84": ("interpreter/launch/",),
    "E85": ("interpreter/adapters/",),
    "E86": ("interpreter/data/",),
    "E861": ("interpreter/data/", "interpreter/adapters/own.py", "models/presets.py"),
    "E862": ("interpreter/launch/generating.py",),
}


def raised() -> Iterator[tuple[str, str]]:
    """Yield (code, file) for every string in the code of PACKAGES that is a code, except on the right of a comparison."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            operands = [x for node in ast.walk(tree) if isinstance(node, ast.Compare) for x in node.comparators]
            compared = {id(x) for operand in operands for x in ast.walk(operand)}
            for node in ast.walk(tree):
                if (
                    id(node) not in compared
                    and isinstance(node, ast.Constant)
                    and isinstance(node.value, str)
                    and re.fullmatch(r"E\d{3}", node.value)
                ):
                    yield node.value, path.relative_to(ROOT).as_posix()


def test_the_interpreter_and_the_models_write_to_stderr_only_with_write_stderr() -> None:
    """If stderr is closed, sys.stderr is None, and print(file=None) writes to stdout. If it is full, print raises OSError.

    The test finds prints to sys.stderr and calls of its write and flush. It does not find what a package writes, such as a
    progress bar.
    """
    for package in ("interpreter", "models"):
        for path in sorted((ROOT / package).rglob("*.py")):
            found = re.search(r"file=sys\.stderr|sys\.stderr\.(write|flush)", path.read_text(encoding="utf-8"))
            assert not found, f"{path} has {found[0] if found else ''}: take chimera_ir.files.write_stderr"


def test_a_code_is_raised_only_in_its_files() -> None:
    """Most codes of the compiler belong to one pass. So they show which pass has found the error."""
    found = sorted(set(raised()))
    assert len({code for code, _ in found}) > 40
    used = set()
    for code, file in found:
        key = max((k for k in FILES_OF_CODES if code.startswith(k)), key=len, default="")
        parts = [part for part in FILES_OF_CODES.get(key, ()) if file.startswith(part)]
        assert parts, f"{file} may not raise {code}"
        used |= {(key, part) for part in parts}
    allowed = {(key, part) for key, parts in FILES_OF_CODES.items() for part in parts}
    assert allowed == used, "a file or folder of FILES_OF_CODES raises none of its codes"


def test_every_code_is_explained_and_no_other() -> None:
    assert set(entries()) == {code for code, _ in raised()}
