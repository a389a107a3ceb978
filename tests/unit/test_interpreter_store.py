"""The store: places of values, and the pool of receive buffers."""

import pytest
import torch
from torch import Tensor

from chimera_ir.model import Tensor as Spec
from interpreter.store import Buffer, Key, Pool, Slot, Store
from tests.distributed.alone import Alone

SPECS = (Spec((2,), "float32", True), Spec((3,), "int64", False))
KEY = Key("grad", 0, 1, 2)


class Posted:
    """A transfer that counts how often it is waited for."""

    waits = 0

    def wait(self) -> None:
        self.waits += 1


class Noting(Alone):
    """A transport that notes what is forgotten."""

    def __init__(self) -> None:
        super().__init__()
        self.forgotten: list[Tensor] = []

    def forget(self, buffer: Tensor) -> None:
        self.forgotten.append(buffer)


def received(store: Store, keys: list[Key]) -> tuple[list[Slot], Buffer, Posted, Pool]:
    """Post a receive of these values, as the executor does."""
    pool = store.pool(SPECS, len(keys))
    buffer, slots, posted = pool.take(), [store.slot(key) for key in keys], Posted()
    buffer.pending = posted
    for slot, values in zip(slots, buffer.tensors, strict=True):
        slot.expect(values, buffer, pool)
    return slots, buffer, posted, pool


def test_a_place_is_one_and_the_same_for_a_key() -> None:
    store = Store(Alone())
    assert store.slot(KEY) is store.slot(Key("grad", 0, 1, 2)) is not store.slot(Key("act", 0, 1, 2))


def test_reading_a_value_on_its_way_waits_once_for_the_whole_message() -> None:
    store = Store(Alone())
    (first, second), _, posted, _ = received(store, [Key("act", 0, 1, 4), Key("act", 0, 1, 5)])
    assert store.left() == [first.key, second.key] and posted.waits == 0
    assert [t.shape for t in second.read()] == [(2,), (3,)]
    assert first.read()[0].data_ptr() != second.read()[0].data_ptr()
    assert posted.waits == 1
    first.give_up()
    second.give_up()
    assert store.left() == []


def test_a_buffer_goes_back_when_the_last_of_its_values_is_given_up() -> None:
    transport = Noting()
    store = Store(transport)
    (first, second), buffer, _, pool = received(store, [Key("act", 0, 1, 4), Key("act", 0, 1, 5)])
    first.give_up()
    first.give_up()  # giving up what is gone is nothing
    assert pool.take() is not buffer and not transport.forgotten
    second.give_up()
    assert transport.forgotten == [buffer.message] and pool.take() is buffer
    assert store.buffer_bytes == 2 * pool.layout.bytes == 2 * 2 * (16 + 32)


def test_a_buffer_that_is_still_to_be_filled_is_waited_for_before_it_goes_back() -> None:
    (slot,), _, posted, _ = received(Store(Alone()), [KEY])
    slot.give_up()
    assert posted.waits == 1


def test_a_value_taken_is_gone() -> None:
    slot, values = Slot(KEY), (torch.zeros(1),)
    slot.put(values)
    assert slot.take() is values
    with pytest.raises(KeyError, match="grad of pipe 0, s1, m2 is not there"):
        slot.read()


def test_a_value_is_made_once() -> None:
    store = Store(Alone())
    (slot,), _, _, _ = received(store, [KEY])
    with pytest.raises(KeyError, match="already there"):
        slot.put((torch.zeros(1),))
    with pytest.raises(KeyError, match="already there"):
        received(store, [KEY])
