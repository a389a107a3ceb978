"""How fast the viewer is: python -m tools.bench_viewer [--parameters D=16 N=1088] [--write].

A page of about 100,000 instructions is opened in a headless Chromium: the time until its first frame is drawn, and the time of
the frames of a scripted pan over the whole program, at three zooms. --write puts the table into docs/viewer.md.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chimerac.compiler import compile_schedule
from chimerac.compiler.analyze.simulate import simulate
from chimerac.compiler.analyze.viewed import viewed
from chimerac.compiler.draw.viewer.page import page
from tools import ROOT

DOCUMENT = ROOT / "docs/viewer.md"
BEGIN, END = "<!-- measured: python -m tools.bench_viewer --write -->", "<!-- end of measured -->"
LOADS = 5  # how often the page is opened
FRAMES = 120  # of a pan
ZOOMS = (1.0, 0.3, 0.01)  # the part of the makespan that is in view

# Moves the view FRAMES times by an equal distance. With all of the time in view, it moves to and fro instead. A move is drawn
# in the next animation frame. The time of a frame is half of the time until the second animation frame after the move. Returns
# the times of the frames, and how long the page itself worked on each.
PAN = """async (share) => {
  const total = viewer.state.panels[0].total, times = [];
  const next = () => new Promise((resolve) => requestAnimationFrame(resolve));
  await next();
  for (let k = 0; k < FRAMES; k++) {
    const from = (total * (1 - share) * k) / FRAMES - (share === 1 ? 0.04 * total * (k % 2) : 0);
    const begin = performance.now();
    viewer.setView(from, from + share * total);
    await next();
    await next();
    times.push((performance.now() - begin) / 2);
  }
  return [times, viewer.frameTimes().slice(-FRAMES)];
}""".replace("FRAMES", str(FRAMES))


def measure(path: Path) -> tuple[list[float], dict[float, tuple[list[float], list[float]]]]:
    """Return the times of loading in seconds, and by zoom the milliseconds between frames and those of the page's own work."""
    from playwright.sync_api import sync_playwright

    from tests.helpers_browser import CHROMIUM, FLAGS

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        loads, pans = [], {}
        for k in range(LOADS):
            opened: Any = browser.new_page(viewport={"width": 1400, "height": 900})
            begin = time.perf_counter()
            opened.goto(path.as_uri())
            opened.wait_for_selector("html[data-ready]")
            # The callback of the second animation frame runs after the first one was drawn.
            opened.evaluate("new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)))")
            loads.append(time.perf_counter() - begin)
            if k == LOADS - 1:
                pans = {share: tuple(opened.evaluate(PAN, share)) for share in ZOOMS}
            opened.close()
        browser.close()
    return loads, pans


def run(argv: Sequence[str] | None = None) -> int:
    """Measure, print the table, write it if asked to, and return the exit status."""
    parser = argparse.ArgumentParser(description="How fast the viewer is.")
    parser.add_argument("--parameters", nargs="+", default=["D=16", "N=1088"], metavar="NAME=VALUE")
    parser.add_argument("--write", action="store_true", help="write the table to docs/viewer.md")
    options = parser.parse_args(argv)
    parameters = {name: int(value) for name, _, value in (x.partition("=") for x in options.parameters)}
    compiled = compile_schedule("chimera", parameters)
    begin = time.perf_counter()
    text = page([viewed(simulate(compiled.program), "chimera", ordered=compiled.ordered)], ["chimerac", "chimera"], parameters)
    made_s = time.perf_counter() - begin
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.html"
        path.write_text(text, encoding="utf-8")
        loads, pans = measure(path)
    program = compiled.program
    lines = [
        f"`chimera` with {' '.join(options.parameters)}: {len(program):,} instructions on {program.world} ranks,",
        f"a file of {len(text) / 1e6:.1f} MB, simulated and written in {made_s:.1f} s. The page is 1400 x 900 pixels.",
        "",
        "| what | median | slowest |",
        "|---|---:|---:|",
        f"| open the file, until the first frame is drawn | {statistics.median(loads):.2f} s | {max(loads):.2f} s |",
    ]
    for share, (between, own) in pans.items():
        what = "all of the time in view" if share == 1 else f"{100 * share:g} % of the time in view"
        lines.append(f"| a frame of a pan, {what} | {statistics.median(between):.0f} ms | {max(between):.0f} ms |")
        lines.append(f"| the page's own work on its drawing | {statistics.median(own):.0f} ms | {max(own):.0f} ms |")
    table = "\n".join(lines) + "\n"
    print(table)
    if options.write:
        document = DOCUMENT.read_text(encoding="utf-8")
        before, rest = document.split(f"{BEGIN}\n")
        DOCUMENT.write_text(f"{before}{BEGIN}\n{table}{END}{rest.split(END)[1]}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(run())
