"""Runs shipped schedules on four ranks over gloo, and writes the differences from one process as JSON.

Usage: torchrun --nproc-per-node 4 tests/distributed/gloo_ranks.py OUT
"""

import json
import sys
from pathlib import Path

from chimerac.compiler import compile_schedule
from chimerac.interpreter.transport.gloo import Gloo, join, leave
from tests.helpers_loopback import deep_model, differences_of_rank, rank_of

# name: (schedule, parameters, width, whether messages are staged through other memory, as on a GPU)
CASES = {
    "chimera": ("chimera", {"D": 4, "N": 8}, 1, False),
    "1f1b": ("1f1b", {"D": 4, "N": 6}, 1, False),
    "gpipe": ("gpipe", {"D": 4, "N": 4}, 1, False),
    "interleaved": ("interleaved", {"D": 4, "N": 4}, 1, False),
    "chimera_zb": ("chimera_zb", {"D": 4, "N": 5, "f": 2}, 1, False),
    "zb_v": ("zb_v", {"D": 4, "N": 7}, 1, False),
    "dualpipe": ("dualpipe", {"D": 4, "N": 8}, 1, False),
    "chimera_doubling": ("chimera_doubling", {"D": 4, "N": 7}, 1, False),
    "chimera_doubling, recomputing": ("chimera_doubling", {"D": 4, "N": 8, "again": 1}, 1, False),
    "chimera_recompute": ("chimera_recompute", {"D": 4, "N": 8}, 1, False),
    "two replicas of chimera": ("chimera", {"D": 2, "N": 4}, 2, False),
    "chimera, staged": ("chimera", {"D": 4, "N": 4}, 1, True),
    "dualpipe, staged": ("dualpipe", {"D": 4, "N": 8}, 1, True),
}


def main() -> None:
    """Run two iterations of every case without updating the weights."""
    join(timeout_s=60)
    results = {}
    for name, (schedule, parameters, width, staged) in CASES.items():
        program = compile_schedule(schedule, parameters, width).program
        transport = Gloo(staged=staged)
        model = deep_model(6)
        found = rank_of(program, model, iterations=2)(transport)
        result = {"loss": found.loss, "wrong": list(differences_of_rank(program, model, found, iteration=1))}
        results[name] = [json.loads(words) for words in transport.all_gather(json.dumps(result))]
    if transport.rank == 0:
        Path(sys.argv[1]).write_text(json.dumps(results))
    leave()


if __name__ == "__main__":
    main()
