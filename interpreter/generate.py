"""Generate text with trained weights: `python -m chimerac.interpreter.generate gpt.safetensors --prompt "def "`.

The file is what `--export` of run.py has written. The header of a .safetensors file names the model, the length of its samples
and the encoding. For a .pt file, --model and --seq-len are needed. A model that was trained with a tokenizer needs --tokenizer
for both kinds of files; the header only shows whether it is the right one.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path

from chimerac.chimera_ir.arguments import Parser
from chimerac.chimera_ir.diagnostics import ChimeraError, render
from chimerac.chimera_ir.files import discard_output, write_stderr, write_stdout


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    parser = _parser()
    given = parser.parse_args(arguments)
    counts = {"--tokens": given.tokens, "--top-k": given.top_k, "--seq-len": given.seq_len}
    if too_small := [name for name, count in counts.items() if count is not None and count < 1]:
        parser.error(f"argument {too_small[0]}: expected 1 or more, found {counts[too_small[0]]}")
    if not 0 <= given.temperature < math.inf:
        parser.error(f"argument --temperature: expected a finite number of 0 or more, found {given.temperature:g}")
    if not 0 <= given.seed < 2**63:
        parser.error(f"argument --seed: expected a number from 0 to 2^63 - 1, found {given.seed}")
    try:
        # torch takes 2 s to import. Errors in options are reported before that.
        from chimerac.interpreter.launch.generating import Sampling, generator_of

        generator = generator_of(given.weights, given.model, given.seq_len, given.tokenizer)
        sampling = Sampling(given.tokens, given.temperature, given.top_k, given.seed)
        write_stdout(given.prompt + generator.continued(given.prompt, sampling) + "\n")
    except ChimeraError as error:
        write_stderr(render(error.diagnostics))
        return 1
    except BrokenPipeError:  # the process that reads the output, such as head, has closed it
        discard_output(sys.stdout)
    return 0


def _parser() -> Parser:
    parser = Parser(
        prog="python -m chimerac.interpreter.generate", description="Generate text with weights that run.py has exported."
    )
    parser.add_argument("weights", type=Path, metavar="WEIGHTS", help="a .safetensors or .pt file that --export has written")
    parser.add_argument("--prompt", default="\n", help="the text to continue (default: a line end)")
    parser.add_argument("--tokens", type=int, default=300, help="how many tokens to add (default: %(default)s)")
    parser.add_argument(
        "--temperature",
        type=float,
        default=0.8,
        help="divides the logits; 0: always the likeliest token (default: %(default)s)",
    )
    parser.add_argument("--top-k", type=int, metavar="K", help="draw from the K likeliest tokens only (default: from all)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random draws (default: %(default)s)")
    parser.add_argument("--tokenizer", type=Path, help="the tokenizer of the training, if it had one")
    parser.add_argument("--model", help="the model, where the file does not name it (.pt)")
    parser.add_argument("--seq-len", type=int, help="--seq-len of the training, where the file does not say it (.pt)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
