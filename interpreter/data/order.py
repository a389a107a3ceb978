"""The order in which samples are read: a permutation for each epoch, of which each place is computed without the others.

It is a Feistel network over the smallest even number of bits that holds every place, at least 8. A value that is not below the
count is put through the network again (cycle walking: Black and Rogaway 2002). So no memory grows with the number of samples,
and a run that goes on from iteration t computes nothing for the iterations before it.
"""

from __future__ import annotations

from functools import lru_cache

from chimerac.interpreter.runtime.model import seed_from

ROUNDS = 6
_MASK_64 = 2**64 - 1


def sample_at(seed: int, number: int, count: int) -> int:
    """Return which of `count` samples is read as sample `number`. Each pass over the samples has another order."""
    epoch, place = divmod(number, count)
    half = max(4, ((count - 1).bit_length() + 1) // 2)
    keys = _keys(seed, epoch)
    place = _network(place, half, keys)
    while place >= count:
        place = _network(place, half, keys)
    return place


@lru_cache(maxsize=64)
def _keys(seed: int, epoch: int) -> tuple[int, ...]:
    return tuple(seed_from(seed, epoch, k) for k in range(ROUNDS))


def _network(value: int, half: int, keys: tuple[int, ...]) -> int:
    """Return the image of a number of 2 x `half` bits."""
    mask = (1 << half) - 1
    left, right = value >> half, value & mask
    for key in keys:
        left, right = right, left ^ (_mixed(right ^ key) & mask)
    return (left << half) | right


def _mixed(x: int) -> int:
    """Return a hash of 64 bits: the finalizer of splitmix64 (Steele, Lea and Flood 2014)."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK_64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK_64
    return x ^ (x >> 31)
