"""Build the documentation site with Sphinx: the pages of docs/, README, CONTRIBUTING, and the Python API from its docstrings.

    python -m tools.site [-o FOLDER]       write the site to FOLDER, by default build/site; a browser opens its index.html
                                           without a server
    python -m tools.site --sources FOLDER  only write what Sphinx reads

A link to a file or a heading that does not exist is an error; addresses on the web are not checked. Every warning of Sphinx is
an error too, such as one about a docstring that it cannot read. The pages are Markdown files of the project, which a forge
shows too. A picture or an HTML file of docs/ that they link to is copied. Any other file or folder that they link to, such as
a source file, becomes a page of the site too.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from chimerac.chimera_ir.files import reason
from tools import ROOT

# The lists of pages in the navigation. One of `pages` that none of them names is in a last list, REST.
LISTS: dict[str, tuple[str, ...]] = {
    "Start": ("README", "tutorial", "examples", "editor", "playground", "comparison"),
    "Schedules": ("language", "bubbles", "schedules", "gallery", "viewer", "semantics", "errors"),
    "The compiler": ("partition", "profile", "plan", "search_page", "exchange", "speed", "proof"),
    "Training": ("training", "running", "data", "models", "any_model", "runtime"),
    "Runs and their results": ("checkpoints", "experiments", "reproducing", "benchmarks"),
    "The project": ("architecture", "CONTRIBUTING", "api"),
}
REST = "More"
OF_SPHINX = ("index", "search", "genindex", "api")  # names of pages that Sphinx or this file writes itself
API: dict[str, tuple[str, ...]] = {  # by heading, directives of autodoc
    "Compile, verify, simulate": ("automodule:: chimerac.compiler",),
    "Programs": ("autoclass:: chimerac.chimera_ir.program.Program",),
    "Instructions": ("autoclass:: chimerac.chimera_ir.instructions.Op",),
    "Findings": (
        "autoclass:: chimerac.chimera_ir.diagnostics.ChimeraError",
        "autoclass:: chimerac.chimera_ir.diagnostics.Diagnostic",
        "autoclass:: chimerac.chimera_ir.diagnostics.Span",
        "autoclass:: chimerac.chimera_ir.diagnostics.Source",
        "autofunction:: chimerac.chimera_ir.diagnostics.render",
    ),
    "Pipeline: one rank in a training loop": (
        "autoclass:: chimerac.interpreter.Pipeline",
        "autofunction:: chimerac.interpreter.held_stages",
        "autofunction:: chimerac.interpreter.save_checkpoint",
        "autofunction:: chimerac.interpreter.load_checkpoint",
    ),
}
SHOWN = (".svg", ".png", ".html")  # of files that a browser shows: subfolders of docs/ with such files are copied
LANGUAGES = {".py": "python", ".sched": "sched", ".sh": "bash", ".sbatch": "bash", ".json": "json", ".yaml": "yaml"}

_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
# The target and the anchor of a Markdown link. A target with a colon, such as https://..., does not match.
_LINK = re.compile(r"(?<=\]\()(?P<target>[^)#\s:]+)(?P<anchor>#[^)\s]*)?(?=\))")


class LinkError(Exception):
    """A link leads nowhere, or to a file outside of the project."""


def pages() -> dict[Path, str]:
    """Return the names of the pages, by their Markdown files. A name of OF_SPHINX gets the suffix `_page`."""
    files = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
    return {path: path.stem + ("_page" if path.stem in OF_SPHINX else "") for path in files}


def write_sources(folder: Path) -> None:
    """Write what Sphinx reads to an empty folder. Raises LinkError."""
    names = pages()
    sources: dict[Path, str] = {}  # other files and folders that pages link to, with the names of their pages
    for path, name in names.items():
        (folder / f"{name}.md").write_text(_with_links(path, names, sources), encoding="utf-8")
    for path, name in sources.items():
        page = folder / f"{name}.md"
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(_source_page(path), encoding="utf-8")
    (folder / "api.md").write_text(_api(), encoding="utf-8")
    (folder / "index.md").write_text(_index(set(names.values()) | {"api"}), encoding="utf-8")
    shutil.copy(ROOT / "tools/site_conf.py", folder / "conf.py")
    for subfolder in ROOT.glob("docs/*/"):  # drawings that pages show, and viewers that pages link to
        if any(path.suffix in SHOWN for path in subfolder.rglob("*")):
            shutil.copytree(subfolder, folder / subfolder.name, dirs_exist_ok=True)


def _with_links(path: Path, names: dict[Path, str], sources: dict[Path, str]) -> str:
    """Return the text of a page, in which links to files of the project lead to pages and copied files of the site.

    Args:
        names: as in `pages`.
        sources: the linked files and folders that need a page of their own are added.

    Raises LinkError.
    """
    text = path.read_text(encoding="utf-8")

    def linked(link: re.Match[str]) -> str:
        target = (path.parent / link["target"]).resolve()
        anchor = link["anchor"] or ""
        if target in names:
            return f"{names[target]}.md{anchor}"
        if not target.exists():
            raise LinkError(f"{path.relative_to(ROOT)} links {link['target']}, which does not exist")
        if not target.is_relative_to(ROOT):
            raise LinkError(f"{path.relative_to(ROOT)} links {link['target']}, which is outside of the project")
        relative = target.relative_to(ROOT)
        if target.suffix in SHOWN and relative.parts[0] == "docs":
            return relative.relative_to("docs").as_posix()
        sources[target] = f"source/{relative.as_posix().replace('.', '_')}"
        return f"{sources[target]}.md"

    parts, end = [], 0
    for fence in _FENCE.finditer(text):
        parts += [_LINK.sub(linked, text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, _LINK.sub(linked, text[end:])])


def _source_page(path: Path) -> str:
    """Return the page of a file or a folder. That of a folder lists its files that have a suffix, without compiled Python."""
    head = f"---\norphan: true\n---\n\n# {path.relative_to(ROOT).as_posix()}\n\n"
    if path.is_dir():
        files = sorted(p for p in path.rglob("*") if p.is_file() and p.suffix not in (".pyc", ""))
        return head + "".join(f"- `{p.relative_to(path).as_posix()}`\n" for p in files)
    text = path.read_text(encoding="utf-8")
    return f"{head}````{LANGUAGES.get(path.suffix, 'text')}\n{text}````\n"


def _api() -> str:
    """Return the page of the Python API, whose texts are the docstrings."""
    parts = ["# Python API\n\nWhat a program of your own may call. Findings are raised as `ChimeraError`.\n"]
    for title, directives in API.items():
        lines = []
        for directive in directives:
            options = {"automodule": ["   :members:", "   :imported-members:"], "autoclass": ["   :members:"]}
            lines += [f".. {directive}", *options.get(directive.partition(":")[0], []), ""]
        parts.append(f"## {title}\n\n```{{eval-rst}}\n" + "\n".join(lines) + "```\n")
    return "\n".join(parts)


def _index(names: set[str]) -> str:
    """Return the first page, with the lists of the navigation.

    Args:
        names: of all other pages, without those of linked files and folders.
    """
    named = {name for listed in LISTS.values() for name in listed}
    lists = {**LISTS, REST: tuple(sorted(names - named))}
    blocks = []
    for title, listed in lists.items():
        if found := [name for name in listed if name in names]:
            entries = "\n".join("Overview <README>" if name == "README" else name for name in found)
            blocks.append(f"```{{toctree}}\n:caption: {title}\n:maxdepth: 1\n\n{entries}\n```\n")
    return f"""# chimerac

A compiler for pipeline schedules: a small text becomes a verified program that trains on torch.distributed. The
[overview](README.md) has a first run of five minutes, and the [tutorial](tutorial.md) leads to a schedule of your own.

{chr(10).join(blocks)}"""


def build(sources: Path, output: Path) -> int:
    """Run Sphinx, with every warning as an error, and return its exit status."""
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-W", "--keep-going", "-q", "-d", str(sources / "_build")]
    return subprocess.run([*command, str(sources), str(output)], cwd=ROOT).returncode


def main(argv: Sequence[str] | None = None) -> int:
    """Build the site and return the exit status.

    It is 1 for a LinkError, 2 for a file that cannot be read or written, and otherwise that of Sphinx; 0 with --sources, which
    does not run Sphinx.
    """
    p = argparse.ArgumentParser(prog="python -m tools.site", description="Build the documentation site.")
    p.add_argument("-o", metavar="FOLDER", dest="output", default=str(ROOT / "build/site"), help="default build/site")
    p.add_argument("--sources", metavar="FOLDER", help="only write what Sphinx reads, to this empty folder")
    options = p.parse_args(argv)
    try:
        if options.sources is not None:
            Path(options.sources).mkdir(parents=True, exist_ok=True)
            write_sources(Path(options.sources))
            return 0
        with tempfile.TemporaryDirectory() as folder:
            write_sources(Path(folder))
            status = build(Path(folder), Path(options.output))
    except LinkError as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        print(f"{error.filename}: {reason(error)}", file=sys.stderr)
        return 2
    if status == 0:
        print(f"{options.output}/index.html")
    return status


if __name__ == "__main__":
    sys.exit(main())
