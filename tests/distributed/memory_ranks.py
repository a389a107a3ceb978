"""Runs random programs on two ranks over gloo, and writes the results as JSON.

The result of a program is the number of its instructions, and a text for each wrong prediction of memory.

Usage: PYTHONPATH=. torchrun --nproc-per-node 2 tests/distributed/memory_ranks.py OUT
"""

import json
import random
import sys
from itertools import count, islice
from pathlib import Path

from chimerac.interpreter.runtime.describe import describe
from chimerac.interpreter.transport.gloo import Gloo, join, leave
from tests.distributed.integers import IntegerSamples
from tests.helpers_layers import random_model
from tests.helpers_memory import differences
from tests.proof.drawn import Sizes, lower_tasks, random_tasks

PROGRAMS = 6


def main() -> None:
    """Run the random programs of the first PROGRAMS seeds whose program has two ranks."""
    join(timeout_s=60)
    results = []
    seeds = (seed for seed in count() if random_tasks(random.Random(seed), Sizes(tied=False)).world == 2)
    for seed in islice(seeds, PROGRAMS):
        r = random.Random(seed)
        p = lower_tasks(random_tasks(r, Sizes(tied=False)), r, width=1)
        model, transport = random_model(r, p.header.stages, tied=False), Gloo()
        wrong = differences(p, model, describe(model, 2), IntegerSamples())(transport)
        wrong_of_ranks = [text for gathered in transport.all_gather(json.dumps(wrong)) for text in json.loads(gathered)]
        results.append([len(p), wrong_of_ranks])
    if transport.rank == 0:
        Path(sys.argv[1]).write_text(json.dumps(results))
    leave()


if __name__ == "__main__":
    main()
