"""Commands that write files of the project: figures, tables of measurements, descriptions, profiles and the site."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent  # the folder of the checkout
