"""Trains a small GPT on the text of the standard library, generates a text with it, and compares it with a bigram model.

    python -m tools.trained_gpt            train, and print the losses and a text: ten to twenty minutes on two cores
    python -m tools.trained_gpt --write    and record the losses and the text in docs/models.md
    python -m tools.trained_gpt --folder F --write    keep the weights and the output of the training in F; if F has them
                                                      already, do not train, but generate the text again

run.py trains with two processes and exports the weights, and `chimerac.interpreter.generate` writes the text. The exit status
is 1 if the held-out loss is not at least MARGIN below that of the bigram model.
"""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.proof.record import record, stamp, table
from tools import ROOT

TRAIN = (
    "interpreter/run.py -p D=2 -p N=8 --model gpt-small --lr 3e-3 --iterations 2500 --eval-every 500 --eval-samples 512 "
    "--export gpt.safetensors"
)
GENERATE = "-m chimerac.interpreter.generate gpt.safetensors --prompt 'def ' --tokens 500 --temperature 0.7 --seed 1"
MARGIN = 0.5  # nats per byte
PAGE = ROOT / "docs" / "models.md"
SEED = 0  # of the training: the default of run.py
HEAD = ("", "nats per byte")


def training_output(folder: Path) -> str:
    """Return what the training printed. It runs only if the folder does not have its output and its weights already."""
    output_file = folder / "output.txt"
    if not (output_file.is_file() and (folder / "gpt.safetensors").is_file()):
        words = [*shlex.split(TRAIN), "--work-dir", str(folder)]
        done = subprocess.run([sys.executable, *words], cwd=ROOT, text=True, stdout=subprocess.PIPE, check=True)
        output_file.write_text(done.stdout, encoding="utf-8")
    return output_file.read_text(encoding="utf-8")


def generated_text(folder: Path) -> str:
    """Return the text that the trained model generates."""
    command = [sys.executable, *shlex.split(GENERATE)]
    return subprocess.run(command, cwd=folder, text=True, stdout=subprocess.PIPE, check=True).stdout


def losses(output: str) -> dict[str, float]:
    """Return what a run printed in nats per byte, by name: held-out losses, loss of the bigram model, unigram entropy."""
    found = {
        f"held-out loss, {iteration} iterations": loss
        for iteration, loss in re.findall(r"^iteration +(\d+) +held-out loss ([\d.]+)$", output, re.MULTILINE)
    }
    found |= dict(re.findall(r"^(bigram model|unigram entropy) +([\d.]+)", output, re.MULTILINE))
    return {name: float(loss) for name, loss in found.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.trained_gpt", description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="where output and weights are kept; by default they are deleted")
    parser.add_argument("--write", action="store_true", help="record losses and text in docs/models.md")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        output = training_output(folder)
        text = generated_text(folder)
    found = losses(output)
    (speed,) = re.findall(r"^tokens per second +([\d,]+)", output, re.MULTILINE)
    ((count, samples, length),) = re.findall(r"(\d+) micro-batches of (\d+) samples of (\d+)", output)
    iterations = max(map(int, re.findall(r"^iteration +(\d+)", output, re.MULTILINE)))
    # The time of the training, from its speed: with --folder, the training may have run before.
    seconds = iterations * int(count) * int(samples) * int(length) / float(speed.replace(",", ""))
    body = stamp(seconds, SEED, ("torch",)) + table(HEAD, [(name, f"{loss:.3f}") for name, loss in found.items()])
    body += f"````text\n{text.rstrip()}\n````\n"
    print(body)
    if given.write:
        record("trained_gpt", body, PAGE)
    last = found[f"held-out loss, {iterations} iterations"]
    return 0 if last <= found["bigram model"] - MARGIN else 1


if __name__ == "__main__":
    sys.exit(main())
