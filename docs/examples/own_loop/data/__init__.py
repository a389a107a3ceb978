"""The user's data."""

import torch
from torch import Tensor


def batches(count: int, samples: int, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    """Return `count` batches of images (samples, 64) and labels (samples,).

    An image is the prototype of its class with noise. There are ten classes.
    """
    generator = torch.Generator().manual_seed(seed)
    prototypes = torch.randn(10, 64, generator=generator)
    result = []
    for _ in range(count):
        labels = torch.randint(0, 10, (samples,), generator=generator)
        result.append((prototypes[labels] + 0.5 * torch.randn(samples, 64, generator=generator), labels))
    return result
