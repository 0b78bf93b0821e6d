"""What MIG profiles a GPU model has, how much of a card each takes and where on the card it may start.

The scheduler configuration needs every resource name that a MIG instance can have, the book the share of a card
that an instance is charged at, and the placement kernels each model's `Geometry`. All of it comes from
`data/mig_geometry.json`, keyed by GPU model; a model that the table lacks is a `Geometry` made from an agent's
report, and without one its instances are counted by resource only.

A profile's name tells nothing by itself: 1g.10gb is an eighth of the memory of an A100 80GB but a quarter of an
A100 40GB, and on a GB300 the driver's version decides what its smallest profile is called. The key is the model and
the profile's id; names are labels that lead there, given the node's product label.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from importlib import resources

import msgspec

from extender.cluster.mig import Geometry, Profile, resource_of

# Words of the label `nvidia.com/gpu.product` that tell a model of the table; of the sets that a label holds,
# the longest wins. A GH200's 480GB is the memory of its CPU.
_MODEL_WORDS = {
    "a100 40gb": "A100-40GB",
    "a800 40gb": "A100-40GB",
    "a100 80gb": "A100-80GB",
    "a800 80gb": "A100-80GB",
    "h100 80gb": "H100-80GB",
    "h100 pcie": "H100-80GB",
    "h800": "H100-80GB",
    "h100 64gb": "H100-64GB",
    "h100 94gb": "H100-94GB",
    "h100 nvl": "H100-94GB",
    "h800 nvl": "H100-94GB",
    "gh200 480gb": "H100-96GB-GH200",
    "gh200 144g": "GH200-144GB",
    "h20": "H20-96GB",
    "h20 3e": "H20-141GB",
    "h200": "H200-141GB",
    "b200": "B200-180GB",
    "gb200": "GB200-186GB",
    "b300": "B300-269GB",
    "gb300": "GB300-278GB",
    "a30": "A30-24GB",
    "rtx pro 6000 blackwell": "RTX-PRO-6000-Blackwell-96GB",
    "rtx pro 5000 blackwell": "RTX-PRO-5000-Blackwell-48GB",
    "rtx pro 4500 blackwell": "RTX-PRO-4500-Blackwell-32GB",
}
_BY_WORDS = sorted(
    ((frozenset(words.split()), model) for words, model in _MODEL_WORDS.items()),
    key=lambda entry: -len(entry[0]),
)

# Other names in use for a profile of the table: (model, profile id) -> name. Older tools round 79.25 GB down;
# NVIDIA's own branches name a GB200 and, since R610, all of a GB300 by another size.
_OTHER_NAMES = {
    ("A100-80GB", 0): "7g.79gb",
    ("H100-80GB", 0): "7g.79gb",
    ("GB200-186GB", 0): "7g.189gb",
    ("GB300-278GB", 19): "1g.31gb",
    ("GB300-278GB", 20): "1g.31gb+me",
    ("GB300-278GB", 15): "1g.63gb",
    ("GB300-278GB", 14): "2g.63gb",
    ("GB300-278GB", 9): "3g.126gb",
    ("GB300-278GB", 5): "4g.126gb",
    ("GB300-278GB", 0): "7g.251gb",
}


def normal(name: str) -> str:
    """The resource name that any form of a profile's name means, as far as it is one.

    `1g.10gb+me`, `mig-1g.10gb.me` and `nvidia.com/mig-1g.10gb.me.shared` are one; `1g.24gb-me` is another profile,
    without media engines, and stays.
    """
    bare = name.removeprefix("nvidia.com/").removeprefix("mig-").removesuffix(".shared")
    return resource_of(bare)


def geometry_of(product: str | None) -> Geometry | None:
    """The table's geometry for what a label `nvidia.com/gpu.product` says; None when it tells no model of the table."""
    words = set((product or "").lower().split("-"))
    model = next((model for needed, model in _BY_WORDS if needed <= words), None)
    return geometries()[model] if model else None


def profile_of(geometry: Geometry, name: str) -> int | None:
    """The position in `profiles` of what any form of a name means on this model; None if it has no such profile."""
    return _by_resource(geometry).get(normal(name))


@lru_cache(256)
def _by_resource(geometry: Geometry) -> dict[str, int]:
    return {name: index for index, profile in enumerate(geometry.profiles) for name in profile.resources}


@lru_cache(1)
def mig_resources() -> tuple[str, ...]:
    """Every resource name of a MIG instance in the table, such as `nvidia.com/mig-1g.10gb.me`.

    Sorted by compute slices, then memory, then suffix; each name once.
    """
    names = {name for shares in _shares_by_model().values() for name in shares}
    return tuple(sorted(names, key=by_size))


def by_size(name: str) -> tuple[list[int], str]:
    """Sorts resource names of MIG instances by compute slices, then memory, then suffix."""
    return [int(number) for number in re.findall(r"\d+", name)], name


@lru_cache(4096)
def unit_share(resource: str, product: str | None) -> Fraction | None:
    """Share of its card, in (0, 1], that one MIG instance of a resource is charged at.

    Parameters
    ----------
    resource
        Name as advertised, such as `nvidia.com/mig-3g.20gb`. A `.shared` name gives the share of the whole
        instance, which the caller divides by its replicas.
    product
        The node's label `nvidia.com/gpu.product`. When it tells no model that has this profile, the answer is
        the largest share over all models that do.

    Returns
    -------
    Fraction or None
        None for a name that is not in the table.
    """
    name = resource.removesuffix(".shared")
    geometry = geometry_of(product)
    share = _shares_by_model()[geometry.model].get(name) if geometry else None
    if share is not None:
        return share
    return max((shares[name] for shares in _shares_by_model().values() if name in shares), default=None)


@lru_cache(1)
def _shares_by_model() -> dict[str, dict[str, Fraction]]:
    return {model: _shares(geometry) for model, geometry in geometries().items()}


def _shares(geometry: Geometry) -> dict[str, Fraction]:
    """Share of the card per resource name: the larger of its compute and its memory share."""
    largest_gb = max(profile.memory_gb for profile in geometry.profiles)
    shares = {}
    for profile in geometry.profiles:
        whole = (profile.size, geometry.units) if geometry.units else (profile.memory_gb, largest_gb)
        share = max(Fraction(profile.compute, geometry.compute), Fraction(*whole))
        shares.update(dict.fromkeys(profile.resources, share))
    return shares


@lru_cache(256)
def most_units(geometry: Geometry, offered: tuple[str, ...]) -> Fraction:
    """The most that instances of one card, of the resources that are offered, can be charged at together, in GPUs.

    It can be a little more than 1: a 3g is charged at half of an H100 for its memory, and four of its seven compute
    slices are left.
    """
    shares = _shares(geometry)
    pieces = {
        (bits, shares[profile.resources[0]])
        for index, profile in enumerate(geometry.profiles)
        if not set(offered).isdisjoint(profile.resources)
        for bits in geometry.placements(index).values()
    }

    @lru_cache(None)
    def best(taken: int) -> Fraction:
        more = (share + best(taken | bits) for bits, share in pieces if not taken & bits)
        return max(more, default=Fraction(0))

    return best(0)


class _TableProfile(msgspec.Struct, frozen=True):
    name: str
    nvidia_smi_profile_id: int | None
    compute_slices: int
    memory_gb: int
    placements: tuple[int, ...] | None
    size: int | None
    max_count: int
    attributes: tuple[str, ...]


class _TableModel(msgspec.Struct, frozen=True):
    compute_slices: int
    memory_slices: int | None
    profiles: tuple[_TableProfile, ...]


class _Table(msgspec.Struct, frozen=True):
    models: dict[str, _TableModel]


@lru_cache(1)
def geometries() -> Mapping[str, Geometry]:
    """The table that we ship, by the table's names for the models."""
    text = resources.files("extender").joinpath("data/mig_geometry.json").read_bytes()
    return {
        name: Geometry(
            name,
            model.compute_slices,
            model.memory_slices or 0,
            tuple(_from_table(name, profile) for profile in model.profiles),
        )
        for name, model in msgspec.json.decode(text, type=_Table).models.items()
    }


def _from_table(model: str, profile: _TableProfile) -> Profile:
    other = _OTHER_NAMES.get((model, profile.nvidia_smi_profile_id or 0)) if profile.placements else None
    return Profile(
        id=profile.nvidia_smi_profile_id,
        names=(profile.name, other) if other else (profile.name,),
        compute=profile.compute_slices,
        size=profile.size or 0,
        starts=profile.placements or (),
        most=profile.max_count,
        memory_gb=profile.memory_gb,
        media=bool({"media", "media-all"} & set(profile.attributes)),
    )
