"""What MIG profiles exist and how much of a card each takes, from the geometry table that we ship.

The scheduler configuration needs every resource name that a MIG instance can have; the book needs the share
of a card that an instance is charged at. Both come from `data/mig_geometry.json`, keyed by GPU model. A
profile's name is not unique over models (1g.10gb is an eighth of the memory of an A100 80GB but a quarter of
an A100 40GB), so the model is told from the node's product label where that is possible.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from importlib import resources

import msgspec

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


class _Profile(msgspec.Struct, frozen=True):
    k8s_resource: str
    compute_slices: int
    memory_slices: int | None
    memory_gb: int


class _Model(msgspec.Struct, frozen=True):
    compute_slices: int
    memory_slices: int | None
    profiles: tuple[_Profile, ...]

    def shares(self) -> dict[str, Fraction]:
        """Share of the card per resource name: the larger of its compute and its memory share."""
        largest_gb = max(profile.memory_gb for profile in self.profiles)
        shares = {}
        for profile in self.profiles:
            if profile.memory_slices is None or self.memory_slices is None:
                memory = Fraction(profile.memory_gb, largest_gb)
            else:
                memory = Fraction(profile.memory_slices, self.memory_slices)
            shares[profile.k8s_resource] = max(Fraction(profile.compute_slices, self.compute_slices), memory)
        return shares


class _Table(msgspec.Struct, frozen=True):
    models: dict[str, _Model]


@lru_cache(1)
def mig_resources() -> tuple[str, ...]:
    """Every resource name of a MIG instance in the table, such as `nvidia.com/mig-1g.10gb.me`.

    Sorted by compute slices, then memory, then suffix; each name once.
    """
    names = {name for shares in _shares_by_model().values() for name in shares}
    return tuple(sorted(names, key=lambda name: ([int(n) for n in re.findall(r"\d+", name)], name)))


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
    by_model = _shares_by_model()
    share = by_model.get(_model(product) or "", {}).get(name)
    if share is not None:
        return share
    return max((shares[name] for shares in by_model.values() if name in shares), default=None)


@lru_cache(1)
def _shares_by_model() -> dict[str, dict[str, Fraction]]:
    text = resources.files("extender").joinpath("data/mig_geometry.json").read_bytes()
    return {name: model.shares() for name, model in msgspec.json.decode(text, type=_Table).models.items()}


def _model(product: str | None) -> str | None:
    """The table's name for the GPU model that a product label tells, if it tells one."""
    words = set((product or "").lower().split("-"))
    return next((model for needed, model in _BY_WORDS if needed <= words), None)
