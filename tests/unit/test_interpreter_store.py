"""The store: slots for values, and receive buffers."""

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from chimerac.chimera_ir.model import Tensor as Spec
from chimerac.interpreter.runtime.messages import Layout
from chimerac.interpreter.runtime.store import Buffer, Key, Slot, Store
from tests.distributed.alone import Alone

SPECS = (Spec((2,), "float32", True), Spec((3,), "int64", False))
KEY = Key("grad", 0, 1, 2)


class PendingReceive:
    """A transfer that counts the calls of wait."""

    waits = 0

    def wait(self) -> None:
        self.waits += 1


class RecordingTransport(Alone):
    """A transport that records the calls of forget."""

    def __init__(self) -> None:
        super().__init__()
        self.forgotten: list[Tensor] = []

    def forget(self, buffer: Tensor) -> None:
        self.forgotten.append(buffer)


def post_receive(store: Store, keys: list[Key], transport: Alone) -> tuple[list[Slot], Buffer, PendingReceive]:
    """Post a receive of these values, as the executor does."""
    layout, posted = Layout(SPECS * len(keys)), PendingReceive()
    buffer, slots = Buffer(layout.empty(transport.device), transport), [store.slot(key) for key in keys]
    buffer.pending = posted
    tensors = layout.unpack(buffer.message)
    for n, slot in enumerate(slots):
        slot.expect(tensors[2 * n : 2 * n + 2], buffer)
    return slots, buffer, posted


def test_equal_keys_have_the_same_slot() -> None:
    store = Store()
    assert store.slot(KEY) is store.slot(Key("grad", 0, 1, 2)) is not store.slot(Key("act", 0, 1, 2))


def test_reading_a_value_that_is_being_received_waits_once_for_the_whole_message() -> None:
    store = Store()
    (first, second), _, posted = post_receive(store, [Key("act", 0, 1, 4), Key("act", 0, 1, 5)], Alone())
    assert store.left() == [first.key, second.key] and posted.waits == 0
    assert [t.shape for t in second.read()] == [(2,), (3,)]
    assert first.read()[0].data_ptr() != second.read()[0].data_ptr()
    assert posted.waits == 1
    first.release()
    second.release()
    assert store.left() == []


def test_a_buffer_is_freed_when_the_last_of_its_values_is_released() -> None:
    transport = RecordingTransport()
    (first, second), buffer, _ = post_receive(Store(), [Key("act", 0, 1, 4), Key("act", 0, 1, 5)], transport)
    memory = StorageWeakRef(buffer.message.untyped_storage())
    assert buffer.message.nbytes == 2 * (16 + 32)
    first.release()
    first.release()  # releasing it again has no effect
    assert not transport.forgotten
    second.release()
    assert len(transport.forgotten) == 1 and transport.forgotten.pop() is buffer.message
    del buffer
    assert memory.expired()


def test_a_free_releases_a_value_instead_of_the_last_task_that_reads_it() -> None:
    transport = RecordingTransport()
    (slot,), _, _ = post_receive(Store(), [KEY], transport)
    slot.freed_later = True
    slot.release()
    assert slot.read() and not transport.forgotten
    slot.free()
    assert slot.values is None and transport.forgotten


def test_a_pending_receive_is_waited_for_before_its_buffer_is_freed() -> None:
    (slot,), _, posted = post_receive(Store(), [KEY], Alone())
    slot.release()
    assert posted.waits == 1


def test_a_taken_value_is_removed() -> None:
    slot, values = Slot(KEY), (torch.zeros(1),)
    slot.set(values)
    assert slot.take() is values
    with pytest.raises(KeyError, match="grad of pipe 0, s1, m2 is not there"):
        slot.read()


def test_a_value_is_made_once() -> None:
    store = Store()
    (slot,), _, _ = post_receive(store, [KEY], Alone())
    with pytest.raises(KeyError, match="already there"):
        slot.set((torch.zeros(1),))
    with pytest.raises(KeyError, match="already there"):
        post_receive(store, [KEY], Alone())
