"""What the words of the language mean, for an editor. docs/language.md defines them."""

from __future__ import annotations

from collections.abc import Mapping

from chimerac.compiler.explain.entries import entries

KEYWORDS: Mapping[str, str] = {
    "and": "`A and B`: both conditions hold",
    "at": "`F(s, m) at EXPR`: the tick of a task; `sync at end`: all-reduces come after a rank's last task",
    "by": "`group F by EXPR`: each forward is over EXPR micro-batches, the last one over those that remain",
    "cost": "`cost F = 1, B = 2`: the assumed durations of tasks, and of a transfer (`hop`)",
    "eager": "`sync eager`: a rank launches each all-reduce as soon as it has its last gradient of the stage",
    "earlier": "another word for `smaller`",
    "else": "`if A then X else Y` in an expression; `if A { ... } else { ... }` in a listing",
    "end": "`sync at end`: all-reduces come after a rank's last task",
    "fill": "`fill W(r, k) at EXPR`: the tick of weight gradient k of rank r; k counts from 0, in the order of input gradients",
    "for": "`order listing for rank r`: the tasks of each rank, one after another",
    "greedy": "`order greedy { ... }`: a list scheduler finds the order, by preferences, keys and limits",
    "group": "`group F by EXPR`: each forward is over EXPR micro-batches, the last one over those that remain",
    "idle": "`sync eager where idle`: a rank launches an all-reduce in its first gap after the gradient, else at the end",
    "if": "`if A then X else Y` in an expression; `if A { ... } else { ... }` in a listing",
    "in": "`i in LOW .. HIGH`: every whole number from LOW to HIGH, both included",
    "larger": "`then larger EXPR`: among ready tasks of one kind the one with the greatest value comes first",
    "later": "another word for `larger`",
    "let": "`let NAME = EXPR`: a name for a value",
    "limit": "bounds what a rank holds: `limit activations <= EXPR`; in a greedy order a count of tasks: `limit F - B <= EXPR`",
    "listing": "`order listing for rank r { ... }`: the tasks of each rank, one after another",
    "micro_batches": "`micro_batches EXPR`: the number of micro-batches that go through this pipe",
    "not": "`not A`: the condition does not hold",
    "on": "`stage s on rank EXPR`: the rank of a stage; `tied NAME on stages 0, D`: the stages that share parameters",
    "or": "`A or B`: at least one of the conditions holds",
    "order": "what each rank executes, in one of three forms: `ticks`, `greedy`, `listing`",
    "param": "`param NAME = EXPR`: a parameter and its default; `-p NAME=VALUE` sets it",
    "per": "`limit ... per stage` or `per pipe`: the count is over each stage or pipe of a rank, not over the whole rank",
    "pipe": "a directed copy of the model: the rank of each stage, and the number of micro-batches",
    "prefer": "`prefer B, F`: the kind of task that an idle rank starts first",
    "rank": "what executes one stream of instructions; `stage s on rank EXPR` puts a stage on it",
    "ranks": "`ranks EXPR`: the number of ranks of one replica",
    "recompute": "the stage keeps only its input, and its forward is run again before its backward or in it",
    "repeat": "`repeat N { ... }` or `repeat i in LOW .. HIGH { ... }`: a part of a listing, several times",
    "require": "`require CONDITION`: the schedule is refused if the condition does not hold",
    "schedule": "`schedule NAME`: the beginning of a text",
    "size": "`size 1/2`: the size of a micro-batch of this schedule, relative to the one that the user configures",
    "smaller": "`then smaller EXPR`: among ready tasks of one kind the one with the least value comes first",
    "stage": "consecutive layers of the model; `stage s on rank EXPR` says where they are",
    "stages": "`stages EXPR`: the number of stages that the model is cut into",
    "sync": "when the all-reduces of gradients are launched: `at end`, `eager`, `eager where idle`",
    "then": "`then smaller m`: the order of ready tasks of one kind; `if A then X else Y`: a choice in an expression",
    "ticks": "`order ticks { ... }`: a formula gives each task a tick, a logical time that orders the tasks of a rank",
    "tied": "`tied NAME on stages EXPR, ...`: a set of parameters that these stages share",
    "when": "`when CONDITION`: a rule, or recomputation, only where the condition holds",
    "where": "`sync eager where idle`: a rank launches an all-reduce in its first gap after the gradient, else at the end",
    "window": "`window EXPR`: the number of sends of a channel that may be incomplete, default 2",
}
TASK_KINDS: Mapping[str, str] = {
    "F": "forward of a stage for a micro-batch; waits for the forward of the stage before",
    "B": "full backward, input gradient and weight gradient; waits for its `F`, and the `B` or `I` of the stage after",
    "I": "the input gradient alone; waits for its `F`, and the `B` or `I` of the stage after",
    "W": "the weight gradient alone; waits for its `I`",
    "R": "the forward of a stage, run again; waits for its `F`; in ticks and listings its `B` or `I` waits for it",
}
OTHERS: Mapping[str, str] = {
    "hop": "the cost of a transfer between two ranks",
    "min": "`min(a, b, ...)`: the least of its arguments",
    "max": "`max(a, b, ...)`: the greatest of its arguments",
}
LIMITS: Mapping[str, str] = {
    "activations": "micro-batches that are alive on a rank at once; one that is alive on two of its stages counts twice",
    "receive_buffers": "received values that a rank holds, and values for which it has posted a receive",
    "weight_copies": "copies of stages, with their weights, that a rank holds",
}
CONVENTIONS: Mapping[str, str] = {"s": "stage", "m": "micro-batch in its pipe", "p": "number of the pipe", "r": "rank"}


def meaning(word: str) -> str:
    """Return as Markdown what a word of the language means, or one of the conventional names s, m, p, r; '' for others."""
    for title, known in (("keyword", KEYWORDS), ("task", TASK_KINDS), ("", OTHERS), ("limit", LIMITS)):
        if word in known:
            return f"**{word}** {f'({title}) ' if title else ''}{known[word]}"
    return f"**{word}** {CONVENTIONS[word]}, by convention" if word in CONVENTIONS else ""


def explanation(code: str) -> str:
    """Return as Markdown what an error code means; '' for a code that does not exist."""
    e = entries().get(code)
    return f"**{e.code}** {e.title}\n\n{e.why}" if e else ""
