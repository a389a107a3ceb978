"""A headless Chromium of this host, driven through playwright. Nothing is downloaded."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ["--no-sandbox", "--disable-gpu"]  # in a container Chromium's sandbox has no user namespace


@contextmanager
def browser() -> Iterator[Any]:
    """Yield a Chromium. The test is skipped if playwright is not installed or the host has no Chromium."""
    sync = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install 'chimerac[browser]'")
    if CHROMIUM is None:
        pytest.skip("needs Chromium, such as Debian's package chromium")
    with sync.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        try:
            yield chromium
        finally:
            chromium.close()
