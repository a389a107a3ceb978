"""The documentation site builds without a warning, and a link that leads nowhere is an error."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from chimerac import compiler, interpreter
from tools import site


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the site, built as `make site` does."""
    folder = tmp_path_factory.mktemp("site")
    assert site.main(["-o", str(folder)]) == 0
    return folder


def test_every_page_is_in_the_navigation(built: Path) -> None:
    index = (built / "index.html").read_text(encoding="utf-8")
    for name in [*site.pages().values(), "api"]:
        assert (built / f"{name}.html").exists() and f'href="{name}.html"' in index


def test_no_page_is_replaced_by_one_of_sphinx(built: Path) -> None:
    for path, name in site.pages().items():
        title = re.search(r"^# (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
        assert title and f"<h1>{title[1]}<" in (built / f"{name}.html").read_text(encoding="utf-8")


def test_the_api_has_every_public_name(built: Path) -> None:
    text = (built / "api.html").read_text(encoding="utf-8")
    for module in (compiler, interpreter):
        assert [name for name in module.__all__ if f'id="{module.__name__}.{name}"' not in text] == []


def test_links_to_sources_and_anchors_lead_to_pages_of_the_site(built: Path) -> None:
    checked = 0
    for page in built.glob("*.html"):
        text = page.read_text(encoding="utf-8")
        # The classes are those that Sphinx gives to links within the site.
        for target, anchor in re.findall(r'class="(?:std std-doc )?reference internal" href="([^"#]*)#?([^"]*)"', text):
            leads_to = built / target if target else page
            assert leads_to.exists(), f"{page.name}: {target}"
            assert not anchor or f'id="{anchor}"' in leads_to.read_text(encoding="utf-8"), f"{page.name}: {target}#{anchor}"
            checked += 1
    assert checked > 500


def test_a_link_that_leads_nowhere_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "CONTRIBUTING.md").write_text("# How\n")
    (tmp_path / "README.md").write_text("# What\n\nSee [how](CONTRIBUTING.md), and [where](docs/nowhere.md).\n")
    monkeypatch.setattr(site, "ROOT", tmp_path)
    assert site.main(["--sources", str(tmp_path / "sources")]) == 1
    assert capsys.readouterr().err == "README.md links docs/nowhere.md, which does not exist\n"
