"""What the tables over sets of GPUs mean, in plain Python: sets as tuples, every set tried.

`plugin_sets` goes through go-gpuallocator's partitions one by one, as its Go code does, with what it requires.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import combinations

Matrix = Sequence[Sequence[int]]
Devices = tuple[int | None, ...]


class Twin:
    """Sets of one matrix; bandwidths and ranks are [G][G]."""

    def __init__(self, bandwidth: Matrix, rank: Matrix) -> None:
        self.bandwidth, self.rank = bandwidth, rank
        self.everything = tuple(range(len(bandwidth)))
        self.split = cache(self._split)

    def pairs(self, members: Sequence[int], of: Matrix) -> list[int]:
        return [of[i][j] for i, j in combinations(members, 2)]

    def slowest(self, members: Sequence[int]) -> int:
        return min(self.pairs(members, self.bandwidth), default=2**31 - 1)

    def total(self, members: Sequence[int]) -> int:
        return sum(self.pairs(members, self.bandwidth))

    def _split(self, members: tuple[int, ...], size: int) -> int:
        """The most that disjoint sets of `size` add up to, by the bandwidths of their slowest pairs."""
        if len(members) < size:
            return 0
        most = self.split(members[1:], size)
        for others in combinations(members[1:], size - 1):
            rest = tuple(gpu for gpu in members[1:] if gpu not in others)
            most = max(most, self.slowest((members[0], *others)) + self.split(rest, size))
        return most

    def worth(self, members: tuple[int, ...]) -> float:
        sizes = [size for size in (2, 4, 8, 16) if size <= len(self.everything)]
        return sum(
            self.split(members, size) / self.split(self.everything, size) / len(sizes) for size in sizes
        )

    def choose(self, free: tuple[int, ...], k: int) -> tuple[int, ...]:
        def order(members: tuple[int, ...]) -> tuple[float, ...]:
            rest = tuple(gpu for gpu in free if gpu not in members)
            key = (
                self.slowest(members),
                self.total(members),
                sum(self.pairs(members, self.rank)),
                self.worth(rest),
            )
            return *(-value for value in key), *members

        return min(combinations(free, k), key=order) if 0 < k <= len(free) else ()

    def score(self, free: tuple[int, ...], chosen: tuple[int, ...], best: int) -> float:
        quality = 1.0
        if len(chosen) > 1:
            top = self.choose(self.everything, len(chosen))
            quality = 0.95 * min(1.0, self.slowest(chosen) / max(best, self.slowest(top)))
            quality += 0.05 * min(1.0, self.total(chosen) / self.total(top))
        rest = tuple(gpu for gpu in free if gpu not in chosen)
        return quality - (self.worth(free) - self.worth(rest))


def plugin_sets(points: Matrix, available: Sequence[int], required: Sequence[int], size: int) -> Devices:
    """go-gpuallocator's best-effort policy; None stands for the nil that its padding can leave in a set."""

    def worth(members: Devices) -> int:
        there = [device for device in members if device is not None]
        return sum(points[i][j] for i, j in combinations(there, 2))

    if size <= 0 or size > len(available) or len(required) > size or not set(required) <= set(available):
        return ()
    best: list[Devices] | None = None
    most = 0
    for partition in _partitions(tuple(available), size):
        if not any(set(required) <= set(members) for members in partition):
            continue
        total = sum(map(worth, partition))
        if best is None or total > most:
            best, most = partition, total
    return max((members for members in best or [] if set(required) <= set(members)), key=worth, default=())


def _partitions(devices: tuple[int, ...], size: int) -> Iterator[list[Devices]]:
    if size == 1:
        for device in devices:
            yield [(device,)]
        return
    padding = -len(devices) % size

    def split(left: tuple[tuple[int, int | None], ...], done: list[Devices]) -> Iterator[list[Devices]]:
        if len(left) == size:
            yield [*done, tuple(device for _, device in left)]
            return
        for others in combinations(left[1:], size - 1):
            members = left[0][1], *(device for _, device in others)
            if members.count(None) in (0, padding):
                rest = tuple(entry for entry in left[1:] if entry not in others)
                yield from split(rest, [*done, members])

    yield from split(tuple(enumerate((*devices, *[None] * padding))), [])
