"""Messages: packing and unpacking gives the same values, wrong ones are not sent, and digests show unequal tables."""

import pytest
import torch

from chimerac.chimera_ir.model import Tensor as BoundaryTensor
from chimerac.interpreter.runtime.messages import Boundary, Layout, table_digest, with_gradient
from chimerac.interpreter.runtime.model import Values

CPU = torch.device("cpu")
BOUNDARY = (
    BoundaryTensor((2, 3), "float32", gradient=True),
    BoundaryTensor((5,), "bool", gradient=False),
    BoundaryTensor((), "int64", gradient=False),
    BoundaryTensor((3,), "float64", gradient=True),
)
VALUES = (
    torch.arange(6.0).view(2, 3),
    torch.tensor([True, False, True, True, False]),
    torch.tensor(2**40),
    torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64),
)
PADDED = (BoundaryTensor((3,), "float32", gradient=True),) * 2  # 12 bytes each: the second tensor begins at byte 16
SQUARE = (BoundaryTensor((4, 4), "float32", gradient=True),)


@pytest.mark.parametrize(
    ("boundary", "values", "size"),
    # The bytes of each tensor are rounded up to a multiple of 16.
    [(BOUNDARY, VALUES, 32 + 16 + 16 + 32), (PADDED, (torch.arange(3.0), -torch.arange(3.0)), 16 + 16)],
)
def test_a_message_preserves_every_tensor(boundary: Boundary, values: Values, size: int) -> None:
    layout = Layout(boundary, CPU)
    message, arrived = layout.pack(values), layout.empty()
    assert message.shape == arrived.shape and message.numel() == layout.bytes == size
    found = layout.unpack(arrived)  # before the message arrives: these tensors are views of the buffer
    arrived.copy_(message)
    for tensor, expected in zip(found, values, strict=True):
        assert tensor.dtype == expected.dtype and tensor.equal(expected)


def test_a_single_tensor_is_sent_and_read_without_a_copy() -> None:
    layout, x = Layout(SQUARE, CPU), torch.arange(16.0).view(4, 4)
    assert layout.pack((x,)) is x
    arrived = layout.empty()
    assert layout.unpack(arrived)[0] is arrived and arrived.shape == x.shape and arrived.dtype == x.dtype
    # A transposed tensor is copied.
    assert layout.pack((x.T,)).is_contiguous() and layout.pack((x.T,)).equal(x.T)


@pytest.mark.parametrize("shape", [(), (0, 3), (5,)])
def test_the_buffer_of_a_single_tensor_has_its_shape(shape: tuple[int, ...]) -> None:
    layout, x = Layout((BoundaryTensor(shape, "float64", gradient=True),), CPU), torch.rand(shape, dtype=torch.float64)
    buffer = layout.empty()
    assert (buffer.shape, buffer.dtype, buffer.is_contiguous()) == (x.shape, x.dtype, True)
    assert layout.unpack(buffer.copy_(x))[0].equal(x) and layout.pack((x,)) is x


def test_tensors_of_one_shape_without_padding_are_one_stack() -> None:
    layout, values = Layout(SQUARE * 3, CPU), [torch.randn(4, 4) for _ in range(2)] + [torch.randn(4, 4).T]
    message, arrived = layout.pack(tuple(values)), layout.empty()
    assert message.shape == arrived.shape == (3, 4, 4) and message.dtype == torch.float32
    assert message.nbytes == layout.bytes == 3 * 64
    found = layout.unpack(arrived)
    arrived.copy_(message)
    assert all(tensor.equal(expected) for tensor, expected in zip(found, values, strict=True))
    found[1].mul_(2)  # a stage may change its input in place
    assert arrived[1].equal(2 * values[1]) and arrived[0].equal(values[0])
    with pytest.raises(ValueError, match=r"the stage made float32\[4, 5\]"):
        layout.pack((values[0], torch.zeros(4, 5), values[2]))


def test_a_value_without_tensors_is_an_empty_message() -> None:
    for device in (CPU, torch.device("meta")):  # meta stands for a GPU: NCCL needs every message to be there
        layout = Layout((), device)
        assert layout.pack(()).numel() == layout.empty().numel() == 0 and layout.unpack(layout.empty()) == ()
        assert layout.pack(()).device == layout.empty().device == device


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (torch.zeros(4, 5), r"float32\[4, 5\]"),
        (torch.zeros(4, 4, dtype=torch.float64), r"float64\[4, 4\]"),
    ],
)
def test_a_value_that_differs_from_its_description_is_not_sent(value: torch.Tensor, words: str) -> None:
    with pytest.raises(ValueError, match=rf"the stage made {words}, its description says float32\[4, 4\]"):
        Layout(SQUARE, CPU).pack((value,))


def test_only_tensors_with_a_gradient_are_sent_back() -> None:
    assert with_gradient(BOUNDARY) == (BOUNDARY[0], BOUNDARY[3])


def test_boundary_tables_that_differ_in_one_thing_have_different_digests() -> None:
    first, *others = BOUNDARY
    changed = (
        BoundaryTensor((3, 2), "float32", gradient=True),
        BoundaryTensor((2, 3), "float64", gradient=True),
        BoundaryTensor((2, 3), "float32", gradient=False),
    )
    tables = [
        [BOUNDARY],
        [BOUNDARY, BOUNDARY],
        [BOUNDARY[:3]],
        [(*others, first)],
        *([(declared, *others)] for declared in changed),
    ]
    assert len({table_digest(t) for t in tables}) == len(tables)
    assert table_digest([BOUNDARY]) == table_digest([BOUNDARY])
