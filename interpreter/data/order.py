"""The order in which samples are read: a permutation for each epoch, of which each place is computed without the others.

The permutation is a Feistel network. It maps numbers of an even number of bits: as few bits as the places need, but at least 8.
If the result is not below the number of samples, it is put through the network again (cycle walking: Black and Rogaway 2002).
Nothing is stored for the places. So the memory does not grow with the number of samples, and a run that goes on from iteration
t computes nothing for the iterations before it.
"""

from __future__ import annotations

from functools import lru_cache

from chimerac.interpreter.runtime.model import seed_from

ROUNDS = 6  # of the network
_MASK_64 = 2**64 - 1


def sample_at(seed: int, number: int, count: int) -> int:
    """Return the index, below `count`, of the sample that a run reads as sample `number`. The order depends on the epoch."""
    epoch, place = divmod(number, count)
    half = max(4, ((count - 1).bit_length() + 1) // 2)  # bits of a half
    keys = _keys(seed, epoch)
    index = _network(place, half, keys)
    while index >= count:
        index = _network(index, half, keys)
    return index


@lru_cache(maxsize=64)
def _keys(seed: int, epoch: int) -> tuple[int, ...]:
    return tuple(seed_from(seed, epoch, k) for k in range(ROUNDS))


def _network(value: int, half: int, keys: tuple[int, ...]) -> int:
    """Return the number that the network makes of a number of 2 x `half` bits."""
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
