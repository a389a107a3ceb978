"""The imports between the project's modules, read from the source, including imports inside functions."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import networkx as nx

from tools import ROOT

ENTRY = "chimerac.__main__"  # the entry of the command; `graph` leaves out its imports
PACKAGES = ("chimera_ir", "compiler", "models", "interpreter", "schedules", "experiments")


@dataclass(frozen=True, slots=True)
class Import:
    """An import of the module `target` in the module `source`.

    Attributes:
        lazy: inside a function.
        typing: only for the type checker.
    """

    source: str
    target: str
    line: int
    lazy: bool
    typing: bool


def module_name(path: Path) -> str:
    """Return the import name of a file."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    dotted = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    return dotted if parts[0] == "chimerac" else f"chimerac.{dotted}"


@cache
def modules() -> dict[str, Path]:
    """Return the files of all modules of the project's packages, by import name."""
    files = [*(ROOT / "chimerac").glob("*.py"), *(p for name in PACKAGES for p in (ROOT / name).rglob("*.py"))]
    return {module_name(path): path for path in sorted(files)}


@cache
def imports() -> tuple[Import, ...]:
    """Return all imports between modules of the project's packages. Relative imports are not found: there are none."""
    return tuple(
        found for name, path in modules().items() for found in _imports_of(name, ast.parse(path.read_text(encoding="utf-8")))
    )


def _imports_of(source: str, node: ast.AST, lazy: bool = False, typing: bool = False) -> Iterator[Import]:
    """Yield the imports below a node of the module `source`.

    Args:
        lazy, typing: as in `Import`, for the node.
    """
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.Import(names=names):
                targets = [x.name for x in names]
            case ast.ImportFrom(module=str(module), level=0, names=names):
                # `from a import b`: b is a module, or else an attribute of a.
                targets = [f"{module}.{x.name}" if f"{module}.{x.name}" in modules() else module for x in names]
            case _:
                targets = []
                inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
                guarded = isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
                yield from _imports_of(source, child, lazy or inside, typing or guarded)
        for target in sorted({*targets} & {*modules()} - {source}):
            yield Import(source, target, child.lineno, lazy, typing)  # type: ignore[attr-defined]


def part(module: str) -> str:
    """Return the part of the project that has a module: the top folder; in compiler and interpreter the subfolder or file."""
    parts = module.removeprefix("chimerac.").split(".")
    return parts[0] if parts[0] not in ("compiler", "interpreter") else ".".join(parts[:2])


def graph(of_parts: bool = False) -> nx.DiGraph:
    """Return the graph of the imports between modules, without those of ENTRY.

    Args:
        of_parts: between the parts of the project instead (`part`).
    """
    key = part if of_parts else str
    pairs = {(key(i.source), key(i.target)) for i in imports() if i.source != ENTRY}
    return nx.DiGraph(sorted((a, b) for a, b in pairs if a != b))


def diagram(_: str) -> str:
    """Return a mermaid diagram of the imports between parts of the project, as a transitive reduction."""
    reduced = nx.transitive_reduction(graph(of_parts=True))
    ids = {name: name.replace(".", "_") for name in sorted(reduced)}
    lines = [f"{node_id}[{name.replace('.', '/')}]" for name, node_id in ids.items()]
    lines += [f"{ids[source]} --> {ids[target]}" for source, target in sorted(reduced.edges)]
    return "\n```mermaid\nflowchart TD\n" + "".join(f"    {line}\n" for line in lines) + "```\n\n"
