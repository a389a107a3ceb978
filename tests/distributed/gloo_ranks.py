"""Runs schedules of the library on four ranks over gloo, and writes what each rank computed as JSON.

Usage: PYTHONPATH=. torchrun --nproc-per-node 4 tests/distributed/gloo_ranks.py OUT

For each case and rank: its share of the loss, and the stages whose gradients differ from those of one process.
"""

import json
import sys
from functools import partial
from pathlib import Path

from chimerac.compiler import compile_schedule
from chimerac.interpreter.transport.gloo import Gloo, join, leave
from tests.helpers_loopback import deep_model, differences_of_rank, rank_of
from tools.slow_link import SlowLink

STAGED = partial(Gloo, staged=True)  # each message is copied to other memory and sent from there, as on a GPU
# By name: schedule, parameters, width, and the class or function that makes the transport.
CASES = {
    "chimera": ("chimera", {"D": 4, "N": 8}, 1, Gloo),
    "1f1b": ("1f1b", {"D": 4, "N": 6}, 1, Gloo),
    "gpipe": ("gpipe", {"D": 4, "N": 4}, 1, Gloo),
    "interleaved": ("interleaved", {"D": 4, "N": 4}, 1, Gloo),
    "chimera_zb": ("chimera_zb", {"D": 4, "N": 5, "f": 2}, 1, Gloo),
    "zb_v": ("zb_v", {"D": 4, "N": 7}, 1, Gloo),
    "dualpipe": ("dualpipe", {"D": 4, "N": 8}, 1, Gloo),
    "chimera_doubling": ("chimera_doubling", {"D": 4, "N": 7}, 1, Gloo),
    "chimera_doubling, recomputing": ("chimera_doubling", {"D": 4, "N": 8, "again": 1}, 1, Gloo),
    "chimera_recompute": ("chimera_recompute", {"D": 4, "N": 8}, 1, Gloo),
    "two replicas of chimera": ("chimera", {"D": 2, "N": 4}, 2, Gloo),
    "chimera, eager all-reduces in a thread": ("chimera", {"D": 4, "N": 8}, 1, SlowLink),
    "chimera, staged": ("chimera", {"D": 4, "N": 4}, 1, STAGED),
    "dualpipe, staged": ("dualpipe", {"D": 4, "N": 8}, 1, STAGED),
}


def main() -> None:
    """Run two iterations of every case without updating the weights, and write the results of the second one."""
    join(timeout_s=60)
    results = {}
    model = deep_model(middle=6)
    for name, (schedule, parameters, width, make_transport) in CASES.items():
        program = compile_schedule(schedule, parameters, width).program
        transport = make_transport()
        found = rank_of(program, model, iterations=2)(transport)
        result = {"loss": found.loss, "wrong": list(differences_of_rank(program, model, found, iteration=1))}
        results[name] = [json.loads(text) for text in transport.all_gather(json.dumps(result))]
    if transport.rank == 0:
        Path(sys.argv[1]).write_text(json.dumps(results))
    leave()


if __name__ == "__main__":
    main()
