"""The store and the messages: values in, the same values out."""

import pytest
import torch

from chimera_ir.model import Tensor as Spec
from interpreter.messages import digest, message_bytes, pack, unpack, with_gradient
from interpreter.store import Key, Store

SPECS = (Spec((2, 3), "float32", True), Spec((5,), "bool", False), Spec((), "int64", False), Spec((3,), "float64", True))
VALUES = (
    torch.arange(6.0).view(2, 3),
    torch.tensor([True, False, True, True, False]),
    torch.tensor(2**40),
    torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64),
)


class Posted:
    """A transfer that counts how often it is waited for."""

    def __init__(self) -> None:
        self.waits = 0

    def wait(self) -> None:
        self.waits += 1


def test_a_message_brings_every_tensor_as_it_was() -> None:
    message = pack(VALUES, SPECS)
    assert message.numel() == message_bytes(SPECS) == 32 + 16 + 16 + 32
    for found, wanted in zip(unpack(message, SPECS), VALUES, strict=True):
        assert found.dtype == wanted.dtype and found.equal(wanted)


def test_a_single_tensor_is_sent_from_where_it_lies() -> None:
    x = torch.arange(8.0)
    assert pack([x], (Spec((8,), "float32", True),)).data_ptr() == x.data_ptr()
    # A transposed one has to be copied, and still arrives.
    square = torch.arange(16.0).view(4, 4).T
    (found,) = unpack(pack([square], (Spec((4, 4), "float32", True),)), (Spec((4, 4), "float32", True),))
    assert found.equal(square)


def test_a_value_unlike_its_description_is_not_sent() -> None:
    with pytest.raises(ValueError, match=r"made float32\[8\], its description says float32\[9\]"):
        pack([torch.zeros(8)], (Spec((9,), "float32", True),))


def test_only_tensors_with_a_gradient_travel_back() -> None:
    assert with_gradient(SPECS) == (SPECS[0], SPECS[3])


def test_a_table_has_another_digest_when_anything_in_it_changes() -> None:
    tables = [[SPECS], [SPECS, SPECS], [SPECS[:3]], [with_gradient(SPECS)], [(Spec((3, 2), "float32", True),)]]
    assert len({digest(t) for t in tables}) == len(tables)
    assert digest([SPECS]) == digest([SPECS])


def test_reading_a_value_on_its_way_waits_once_for_the_whole_message() -> None:
    store, posted = Store(), Posted()
    first, second = Key("act", 0, 1, 4), Key("act", 0, 1, 5)
    store.expect([first, second], posted, pack([*VALUES, *VALUES], SPECS * 2), SPECS)
    assert store.left() == [first, second] and posted.waits == 0
    assert store.read(second)[3].equal(VALUES[3])
    assert store.take(first)[0].equal(VALUES[0])
    assert posted.waits == 1
    store.drop(second)
    assert store.left() == []


def test_a_value_taken_is_gone() -> None:
    store, key = Store(), Key("grad", 0, 1, 2)
    store.put(key, VALUES)
    assert store.take(key) is VALUES
    with pytest.raises(KeyError, match="grad of pipe 0, s1, m2 is not there"):
        store.read(key)
    store.drop(key)  # giving up what is gone is nothing


def test_a_value_is_made_once() -> None:
    store, key = Store(), Key("grad", 0, 1, 2)
    store.put(key, VALUES)
    with pytest.raises(KeyError, match="already there"):
        store.put(key, VALUES)
    with pytest.raises(KeyError, match="already there"):
        store.expect([key], Posted(), torch.zeros(0), ())
