"""Are the sends and the receives of every channel the same values in the same order? (E430)

A channel is a directed pair of ranks, first in, first out. Messages carry no names, so only their order tells them apart.
"""

from __future__ import annotations

import numpy as np

from chimerac.chimera_ir.counts import count_text
from chimerac.chimera_ir.diagnostics import Diagnostic
from chimerac.chimera_ir.instructions import Op
from chimerac.chimera_ir.program import Ints
from chimerac.compiler.verify.index import MAX_FOUND, ProgramIndex


def _ends(index: ProgramIndex, op: Op) -> tuple[Ints, Ints]:
    """Return (channel, row) of all SENDs or all RECVs, sorted by channel and, within it, by place in the stream.

    channel: sender x `Program.world` + receiver.
    """
    rows = index.rows(op)
    own_rank, peer = index.rank[rows], index.program.table.peer[rows]
    channel = own_rank * index.program.world + peer if op == Op.SEND else peer * index.program.world + own_rank
    order = np.argsort(channel, kind="stable")
    return channel[order], rows[order]


def channels(index: ProgramIndex) -> tuple[Ints, Ints, Ints]:
    """Return (channel, SEND row, RECV row) of every message, sorted by channel and place in it.

    Every channel must have as many SENDs as RECVs (`check_matching`).
    """
    channel, send = _ends(index, Op.SEND)
    return channel, send, _ends(index, Op.RECV)[1]


def check_matching(index: ProgramIndex) -> list[Diagnostic]:
    """Return a finding for each channel whose two ends do not agree, about its first mismatch; at most MAX_FOUND findings."""
    p, t = index.program, index.program.table
    send, receive = _ends(index, Op.SEND), _ends(index, Op.RECV)
    (send_channels, send_rows), (receive_channels, receive_rows) = send, receive
    same = len(send_rows) == len(receive_rows) and (send_channels == receive_channels).all()
    if same and all((c[send_rows] == c[receive_rows]).all() for c in (t.value, t.stage, t.operand)):
        return []
    found = []
    for channel in _mismatched_channels(index, send, receive):
        sends, receives = (
            rows[slice(*np.searchsorted(channels, [channel, channel + 1]))].tolist() for channels, rows in (send, receive)
        )
        name = f"channel {channel // p.world} -> {channel % p.world}"
        both = zip(sends, receives, strict=False)
        mismatch = next((i for i, (a, b) in enumerate(both) if _value_of(index, a) != _value_of(index, b)), None)
        if mismatch is not None:
            a, b = sends[mismatch], receives[mismatch]
            message = f"{name}: message {mismatch} is sent as one value and received as another"
            found.append(Diagnostic("E430", message, notes=(p.place(a), p.place(b)), help=_help(index, a, b)))
        elif len(sends) != len(receives):
            extra = max(sends, receives, key=len)[min(len(sends), len(receives))]
            message = f"{name}: {count_text(len(sends), 'send')}, {count_text(len(receives), 'receive')}"
            found.append(
                Diagnostic(
                    "E430",
                    message,
                    notes=(f"without a counterpart: {p.place(extra)}",),
                    help="add its counterpart, or remove it",
                )
            )
    return found


def _mismatched_channels(index: ProgramIndex, send: tuple[Ints, Ints], receive: tuple[Ints, Ints]) -> list[int]:
    """Return the channels whose numbers of sends and receives differ, or with a message that differs at its two ends.

    At most MAX_FOUND channels are returned, the lowest ones.

    Args:
        send, receive: (channel, row), as `_ends` returns them.
    """
    (send_channels, send_rows), (receive_channels, receive_rows) = send, receive
    channels = np.unique(np.concatenate([send_channels, receive_channels]))
    unequal = channels[_count(send_channels, channels) != _count(receive_channels, channels)]
    # In channels with equal numbers the two ends of a message have the same index.
    is_equal = ~np.isin(send_channels, unequal)
    a, b = send_rows[is_equal], receive_rows[~np.isin(receive_channels, unequal)]
    t = index.program.table
    different = np.logical_or.reduce([c[a] != c[b] for c in (t.value, t.stage, t.operand)])
    found: list[int] = np.unique(np.concatenate([unequal, send_channels[is_equal][different]]))[:MAX_FOUND].tolist()
    return found


def _count(entries: Ints, channels: Ints) -> Ints:
    """Return how often each of these channels is in `entries`, which is sorted."""
    return np.searchsorted(entries, channels, side="right") - np.searchsorted(entries, channels)


def _help(index: ProgramIndex, send: int, receive: int) -> str:
    """Return the help for a message whose ends differ.

    Args:
        send, receive: their rows.

    If both ends name the same kind and stage and have a micro-batch in common, only their groups of micro-batches differ.
    Otherwise the help is for receives in another order than the sends.
    """
    *sent_value, sent_list = _value_of(index, send)
    *received_value, received_list = _value_of(index, receive)
    sent, received = index.program.micro_batch_lists[sent_list], index.program.micro_batch_lists[received_list]
    if sent_value == received_value and set(sent) & set(received):
        return f"receive m{','.join(map(str, sent))} as one message, as it is sent"
    return "order the receives as the sends"


def _value_of(index: ProgramIndex, row: int) -> tuple[int, int, int]:
    """Return what identifies the value of a transfer within its channel: its kind, its stage, and its list of micro-batches.

    The list is given by its index in `Program.micro_batch_lists`.
    """
    t = index.program.table
    return int(t.value[row]), int(t.stage[row]), int(t.operand[row])
