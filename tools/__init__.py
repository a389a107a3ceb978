"""Commands that write files of the project: figures and benchmarks."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent  # of the checkout
