"""The user's data."""

import torch
from torch import Tensor


def batches(count: int, samples: int, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    """Return noisy prototypes of ten classes: images (samples, 64) and labels (samples,)."""
    generator = torch.Generator().manual_seed(seed)
    prototypes = torch.randn(10, 64, generator=generator)
    found = []
    for _ in range(count):
        labels = torch.randint(0, 10, (samples,), generator=generator)
        found.append((prototypes[labels] + 0.5 * torch.randn(samples, 64, generator=generator), labels))
    return found
