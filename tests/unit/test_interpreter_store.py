"""The store: slots for values, and receive buffers."""

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from chimerac.chimera_ir.model import Tensor as BoundaryTensor
from chimerac.interpreter.runtime.messages import Layout
from chimerac.interpreter.runtime.store import Key, Message, Slot, Store
from tests.distributed.alone import Alone

BOUNDARY = (BoundaryTensor((2,), "float32", gradient=True), BoundaryTensor((3,), "int64", gradient=False))
KEY = Key("grad", pipe=0, stage=1, micro_batch=2)


class PendingReceive:
    """A receive that counts the calls of `wait`."""

    waits = 0

    def wait(self) -> None:
        self.waits += 1


class RecordingTransport(Alone):
    """A transport that records the receives that are posted, and the buffers that `forget` is called with."""

    def __init__(self) -> None:
        super().__init__()
        self.posted: list[PendingReceive] = []
        self.forgotten: list[Tensor] = []

    def recv(self, peer: int, buffer: Tensor) -> PendingReceive:
        self.posted.append(PendingReceive())
        return self.posted[-1]

    def forget(self, buffer: Tensor) -> None:
        self.forgotten.append(buffer)


def receive(keys: list[Key], boundary: tuple[BoundaryTensor, ...] = BOUNDARY) -> tuple[list[Slot], Message, RecordingTransport]:
    """Post a receive of one message with these values, as the executor does.

    Args:
        boundary: the tensors of each value.
    """
    transport, store = RecordingTransport(), Store()
    slots = [store.slot(key) for key in keys]
    message = Message(transport, peer=1, slots=slots, layout=Layout(boundary * len(keys), torch.device("cpu")))
    message.receive()
    return slots, message, transport


def test_equal_keys_have_the_same_slot() -> None:
    store = Store()
    assert store.slot(KEY) is store.slot(Key("grad", 0, 1, 2)) is not store.slot(Key("act", 0, 1, 2))


def test_reading_a_value_that_is_being_received_waits_once_for_the_whole_message() -> None:
    (first, second), _, transport = receive([Key("act", 0, 1, 4), Key("act", 0, 1, 5)])
    (posted,) = transport.posted
    assert first.values is not None and second.values is not None and posted.waits == 0
    assert [t.shape for t in second.read()] == [(2,), (3,)]
    assert first.read()[0].data_ptr() != second.read()[0].data_ptr()
    assert posted.waits == 1
    first.release()
    second.release()
    assert first.values is None and second.values is None


def test_a_buffer_is_freed_when_the_last_of_its_values_is_released() -> None:
    (first, second), message, transport = receive([Key("act", 0, 1, 4), Key("act", 0, 1, 5)])
    buffer = message.buffer
    assert buffer is not None and buffer.nbytes == 2 * (16 + 32)  # tensors of 8 and 24 bytes, padded to multiples of 16
    memory = StorageWeakRef(buffer.untyped_storage())
    first.release()
    first.release()  # releasing it again has no effect
    assert not transport.forgotten
    second.release()
    assert len(transport.forgotten) == 1 and transport.forgotten.pop() is buffer
    del buffer
    assert memory.expired()


def test_a_message_is_received_again_in_every_iteration() -> None:
    (slot,), message, transport = receive([KEY])
    for count in (1, 2):
        slot.release()
        assert len(transport.forgotten) == count and message.buffer is None
        message.receive()
        assert len(slot.read()) == 2 and len(transport.posted) == count + 1


def test_a_free_releases_a_value_instead_of_the_last_task_that_reads_it() -> None:
    (slot,), _, transport = receive([KEY])
    slot.waits_for_free = True
    slot.release()
    assert slot.read() and not transport.forgotten
    taken = slot.pop()
    assert slot.values is not None
    assert taken[0].data_ptr() != slot.values[0].data_ptr(), "pop returns a copy, because a FREE empties the slot"
    slot.free()
    assert slot.values is None and transport.forgotten


def test_releasing_a_value_that_is_being_received_waits_for_it() -> None:
    (slot,), _, transport = receive([KEY])
    slot.release()
    assert transport.posted[0].waits == 1


def test_the_reader_of_a_single_tensor_takes_the_buffer_itself() -> None:
    (slot,), message, transport = receive([KEY], BOUNDARY[:1])
    buffer = message.buffer
    assert slot.pop() == (buffer,) and slot.values is None and message.buffer is None
    assert transport.posted[0].waits == 1
    assert not transport.forgotten, "the reader owns the buffer, so the transport may not overwrite it"


def test_the_reader_of_several_tensors_gets_copies_of_them() -> None:
    (slot,), message, transport = receive([KEY])
    buffer, taken = message.buffer, slot.pop()
    assert buffer is not None and slot.values is None and len(transport.forgotten) == 1
    assert all(t.untyped_storage().data_ptr() != buffer.untyped_storage().data_ptr() for t in taken)


def test_a_popped_value_is_no_longer_in_its_slot() -> None:
    slot, values = Slot(KEY), (torch.zeros(1),)
    slot.set(values)
    assert slot.pop() is values
    with pytest.raises(KeyError, match="grad of pipe 0, s1, m2 is not there"):
        slot.read()


@pytest.mark.parametrize("boundary", [BOUNDARY, BOUNDARY[:1]])
def test_a_value_that_is_being_received_cannot_be_set_or_received_again(boundary: tuple[BoundaryTensor, ...]) -> None:
    (slot,), message, _ = receive([KEY], boundary)
    with pytest.raises(KeyError, match="already there"):
        slot.set((torch.zeros(1),))
    with pytest.raises(KeyError, match="already there"):
        message.receive()
