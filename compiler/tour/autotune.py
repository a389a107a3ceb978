"""The fourth part of the tour: the fastest way to train a model on a number of ranks."""

from __future__ import annotations

from chimerac.compiler.tour.guide import Guide, schedules

MODEL, PROFILE, RANKS = "bert48", "p100", 4
INTERRUPTED = 130  # the exit status of `plan` after Ctrl-C


def run(guide: Guide) -> int:
    """Run this part, and return the exit status."""
    guide.title("Autotune: choose by figures")
    guide.say("""How many replicas, how many ranks in each, which micro-batch size, which schedule, and do all stages recompute?
        A planner goes through all combinations. It drops those that need more memory than a rank has, and those that cannot
        be the fastest. It simulates the others with the times of a profile: how long the layers of a model and the messages
        take on given hardware. It takes the fastest.""")
    guide.say(f"""The model is {MODEL}, a transformer with 48 blocks, on {RANKS} ranks. The profile {PROFILE} is made from
        published figures of a GPU.""")
    batch = guide.choose("How many samples are in an iteration?", ["16", "32"])
    memory = guide.choose("How much memory does a rank have?", ["16GiB", "3GiB", "1GiB"])
    words = ["--model", MODEL, "--ranks", str(RANKS), "--batch", batch, "--memory", memory, "--profile", PROFILE]
    names = schedules()["planned"]
    status = guide.command("plan", *names, *words)
    if status == INTERRUPTED:
        return INTERRUPTED
    if status:
        guide.say("There is no plan. The message says why. If nothing fits, it says the least memory that would do.")
        return 0
    guide.say("""The first row is the best configuration. Each row below differs from it in one choice, and its last column says
        why it loses: by memory, or by what its ranks spend more time with. The bars are the best throughput for each D. The
        command at the end trains with the best configuration, where torch is installed. With -o the plan is also written to
        a file, and the training can be started with that file:""")
    guide.show(f"chimerac plan {' '.join([*names, *words])} -o plan.yaml")
    guide.show(f"torchrun --nproc-per-node {RANKS} interpreter/run.py plan.yaml")
    guide.wait()
    guide.say("""A plan chooses among orders that are written. Another command searches for an order that is better for these
        times, and proves how far from the best one it can be:""")
    searched = f"{names[-1]} -p D={RANKS} -p N={batch} --model {MODEL} --profile {PROFILE} -o best.sched"
    guide.show(f"chimerac search {searched}")
    return 0
