"""Random tables and asks, small enough to collide: full cards, soft claims, unknown memory, odd rows."""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from _core import D1, FIRST_FIT, Allocator, Ask, Demand, Hardware, Sets, Slices, Table

GPU, SHARED, OTHER = 0, 1, 2
COLUMNS = {
    **dict.fromkeys(("state", "mode"), np.int8),
    **dict.fromkeys(("cards", "replicas", "opaque", "soft"), np.int32),
    "order": np.uint32,
    **dict.fromkeys(("cpu", "cpu_used"), np.int64),
    **dict.fromkeys(("part", "geometry", "misplaced", "topology", "lent"), np.int32),
    **dict.fromkeys(("allocatable", "used", "used_soft"), np.int64),
    **dict.fromkeys(("memory", "memory_used", "memory_soft"), np.int64),
    **dict.fromkeys(("shares", "shares_soft", "exclusive", "exclusive_soft"), np.int32),
    **dict.fromkeys(("slices", "slices_soft"), np.int32),
    **{"choice": np.int8, "measured": np.int8, "loose_memory": np.int64},
    **{"extra": np.int64, "given": np.int32, "given_memory": np.int64, "trouble": np.int8},
}
PER_ROW = (
    *("state", "mode", "cards", "replicas", "opaque", "order", "soft", "cpu", "cpu_used"),
    *("part", "geometry", "misplaced", "topology", "lent", "choice", "measured", "loose_memory"),
)
PER_RESOURCE = ("allocatable", "used", "used_soft")


def columns(rows: int, cards: int, resources: int) -> dict[str, Any]:
    """The columns of an empty table, to be filled and handed to Table."""
    shapes = {
        name: (rows,) if name in PER_ROW else (rows, resources if name in PER_RESOURCE else cards)
        for name in COLUMNS
    }
    return {name: np.zeros(shapes[name], dtype) for name, dtype in COLUMNS.items()}


def random_slices(seed: int, profiles: int, bits: int) -> Slices:
    """Tables of profiles with one to three places each, which may overlap; scores are often equal."""
    random = np.random.default_rng(seed)
    shape = (profiles, 1 << bits)
    before = np.arange(1 << bits, dtype=np.int32)
    starts, after = np.full(shape, -1, np.int8), np.tile(before, (profiles, 1))
    for profile in range(profiles):
        for start, place in enumerate(random.integers(1, 1 << bits, random.integers(1, 4)).tolist()):
            first = (starts[profile] < 0) & (before & place == 0)
            starts[profile, first] = start
            after[profile, first] |= place
    scores = random.integers(-3, 3, shape) * random.choice([1, 1_000_000_000 // 2])
    return Slices(starts, after, scores.astype(np.int32))


def random_sets(seed: int, gpus: int) -> Sets:
    """Links of which some are as fast as others, and not all are NVLinks."""
    random = np.random.default_rng(seed)
    upper = np.triu(random.choice(np.array([10, 30, 200], np.int32), (gpus, gpus)), 1)
    links = upper + upper.T
    nvlink = random.random(1 << gpus) < 0.6
    return Sets(links, np.zeros_like(links), Allocator(links), nvlink)


def random_hardware(seed: int, resources: int) -> Hardware:
    """Two models and three topologies; what a resource is on them is drawn."""
    random = np.random.default_rng(seed)
    return Hardware(
        slices=[random_slices(seed, 2, 3), random_slices(seed + 1, 1, 4)],
        profiles=random.integers([[-1], [-1]], [[2], [1]], (2, resources)).astype(np.int32),
        units=np.array([3, 2], np.int32),
        links=[random_sets(seed, 2), random_sets(seed, 4), random_sets(seed + 1, 8)],
        offers=random.choice(np.array([0, 100, 400], np.int32), (3, 17)),
        parts=np.array([0, 0, *random.choice([0, 143, 500, 1000], resources - 2)], np.int32),
    )


def ask(
    whole: int = 0,
    shares: int = 0,
    memory: int = 0,
    cpu: int = 0,
    others: dict[int, int] | None = None,
    bandwidth: int = 0,
    nvlink: bool = False,
    borrowed: bool | None = None,
) -> Ask:
    counts = {GPU: whole, SHARED: shares, **(others or {})}
    counts = {kind: count for kind, count in counts.items() if count}
    return Ask(
        np.array(list(counts), np.int32),
        np.array(list(counts.values()), np.int64),
        whole,
        shares,
        memory,
        cpu,
        gpu_id=GPU if whole else -1,
        shared_id=SHARED if shares else -1,
        bandwidth=bandwidth,
        nvlink=nvlink,
        borrowed=borrowed,
    )


def random_table(seed: int, rows: int, cards: int) -> Table:
    """A table in which every state, mode and code comes up; counts and cards need not agree."""
    random = np.random.default_rng(seed)

    def pick(values: list[int], *shape: int) -> np.ndarray[Any, Any]:
        return random.choice(np.array(values), (rows, *shape))

    drawn = {
        "state": pick([0] * 12 + [1, 2, 3]),
        "mode": pick([0, 0, 0, 1, 2]),
        "cards": random.integers(0, cards + 1, rows),
        "replicas": pick([0, 2, 3, 10]),
        "opaque": pick([0, 0, 0, 0, 1, 2]),
        "order": random.integers(0, 4, rows) << random.integers(0, 31, rows),
        "soft": pick([0, 1, 2]),
        "cpu": pick([0, 10, 32, 96]),
        "cpu_used": pick([0, 0, 4, 31, 96]),
        "allocatable": pick([0, 2, 4, 8, 30], 3),
        "used": pick([0, 0, 1, 2, 5], 3),
        "used_soft": pick([0, 0, 0, 1, 4], 3),
        "memory": pick([5, 40, 80, 80, 81], cards) * pick([0, 1, 1, 1, 1]).reshape(-1, 1),
        "memory_used": pick([0, 0, 7, 20, 40, 80], cards),
        "memory_soft": pick([0, 0, 0, 10, 60], cards),
        "shares": pick([0, 0, 1, 1, 2, 5], cards),
        "shares_soft": pick([0, 0, 0, 1], cards),
        "exclusive": pick([0, 0, 0, 1], cards),
        "exclusive_soft": pick([0, 0, 0, 1], cards),
        "part": pick([0, 143, 1000]),
        "geometry": pick([-1, -1, 0, 1, 2]),
        "misplaced": pick([0, 0, 0, 0, 1]),
        "topology": pick([-1, 0, 1, 2, 3]),
        "lent": pick([0, 0, 1, 2, 8]),
        "slices": pick([-1, 0, 0, 1, 2, 4, 6, 7], cards),
        "slices_soft": pick([0, 0, 0, 1, 4], cards),
        "choice": pick([0, 0, 1]),
        "measured": pick([0, 0, 1]),
        "loose_memory": pick([0, 0, 0, 5, 30]),
        "extra": pick([0] * 8 + [1, 15, 50], cards) * pick([0, 1]).reshape(-1, 1),
        "given": pick([0, 0, 0, 1, 2, 10], cards),
        "given_memory": pick([0, 0, 0, 8, 40], cards),
        "trouble": pick([0] * 20 + list(range(1, 8)), cards) * pick([0, 1]).reshape(-1, 1),
    }
    drawn["memory"][random.random((rows, cards)) < 0.1] = 0
    drawn["allocatable"][random.random(rows) < 0.5, :2] = 100
    arrays = {name: drawn[name].astype(dtype) for name, dtype in COLUMNS.items()}
    return Table(**arrays, hardware=random_hardware(seed % 64, 3))


tables = st.builds(
    random_table, seed=st.integers(0, 2**32), rows=st.integers(1, 40), cards=st.sampled_from([1, 2, 4, 8, 9])
)
asks = st.builds(
    ask,
    whole=st.sampled_from([0, 0, 1, 1, 2, 4]),
    shares=st.sampled_from([0, 0, 1, 1, 2, 7]),
    memory=st.sampled_from([0, 0, 1, 10, 40, 80, 82]),
    cpu=st.sampled_from([0, 3, 8, 40]),
    others=st.sampled_from([{}, {}, {OTHER: 1}, {OTHER: 3}]),
    bandwidth=st.sampled_from([0, 0, 0, 20, 300]),
    nvlink=st.sampled_from([False, False, True]),
    borrowed=st.sampled_from([None, False, True]),
)


def demand(
    *classes: tuple[int, int, float, float, float], kind: int = D1, cores: float = 0.01, **scales: float
) -> Demand:
    """Classes as (thousandths of a core, cards, part of a card, frequency, weight)."""
    cpu, gpus, share, often, weight = zip(*classes, strict=True) if classes else ((),) * 5
    return Demand(
        kind,
        cores,
        np.array(cpu, np.int64),
        np.array(gpus, np.int32),
        np.array(share, np.float64),
        np.array(often, np.float64),
        np.array(weight, np.float64),
        **scales,
    )


PARTS = st.sampled_from([0.05, 0.1, 0.19, 1 / 3, 0.5, 0.81, 1.0])
CLASSES = st.tuples(
    st.sampled_from([0, 1, 4, 10, 40]),
    st.sampled_from([0, 1, 1, 1, 2, 4]),
    PARTS,
    st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    st.sampled_from([0.0, 0.01, 0.3]),
)
demands = st.builds(
    lambda classes, kind, cores, mig, topology: demand(
        *classes, kind=kind, cores=cores, mig=mig, topology=topology, shares=0.0
    ),
    st.lists(CLASSES, max_size=6),
    st.integers(D1, FIRST_FIT),
    st.sampled_from([0.001, 0.004, 0.02]),
    st.sampled_from([0.0, 1.0]),
    st.sampled_from([0.0, 0.5]),
)
"""Without fair shares, which depend on the card that is chosen where several are worth the same."""
