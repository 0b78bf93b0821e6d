"""MIG resource names and the share of a card that each is charged at."""

from __future__ import annotations

from fractions import Fraction

import pytest

from extender.cluster.geometry import (
    geometries,
    geometry_of,
    mig_resources,
    most_units,
    normal,
    profile_of,
    unit_share,
)

PREFIX = "nvidia.com/mig-"


def test_every_form_of_a_profile_name_is_listed_once_and_small_before_large() -> None:
    names = mig_resources()
    assert len(names) == len(set(names)) == 96
    assert all(name.startswith(PREFIX) for name in names)
    forms = ["1g.24gb", "1g.24gb-me", "1g.24gb.gfx", "1g.24gb.me", "1g.24gb.me.all"]
    at = names.index(PREFIX + forms[0])
    assert [name.removeprefix(PREFIX) for name in names[at : at + 5]] == forms
    assert names.index(PREFIX + "1g.5gb") < names.index(PREFIX + "1g.10gb") < names.index(PREFIX + "7g.40gb")


@pytest.mark.parametrize(
    ("profile", "product", "share"),
    [
        ("1g.5gb", "NVIDIA-A100-SXM4-40GB", Fraction(1, 7)),
        ("1g.10gb", "NVIDIA-A100-SXM4-40GB", Fraction(1, 4)),
        ("1g.10gb", "NVIDIA-A100-PCIE-40GB", Fraction(1, 4)),
        ("1g.10gb", "NVIDIA-A100-SXM4-80GB", Fraction(1, 7)),
        ("1g.10gb", "NVIDIA-A100-80GB-PCIe", Fraction(1, 7)),
        ("1g.10gb", "NVIDIA-A100-80GB-PCIe-SHARED", Fraction(1, 7)),
        ("1g.10gb", "NVIDIA-H100-80GB-HBM3", Fraction(1, 7)),
        ("1g.10gb", "NVIDIA-H100-PCIe", Fraction(1, 7)),
        ("1g.24gb", "NVIDIA-H100-NVL", Fraction(1, 4)),
        ("1g.24gb", "NVIDIA-GH200-480GB", Fraction(1, 4)),
        ("1g.12gb", "NVIDIA-H20", Fraction(1, 7)),
        ("1g.35gb", "NVIDIA-H20-3e", Fraction(1, 4)),
        ("1g.35gb", "NVIDIA-H200", Fraction(1, 4)),
        ("1g.35gb", "NVIDIA-GB300", Fraction(1, 7)),
        ("1g.24gb", "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition", Fraction(1, 4)),
        ("1g.24gb", "NVIDIA-RTX-PRO-5000-Blackwell", Fraction(1, 2)),
        ("2g.12gb.me", "NVIDIA-A30", Fraction(1, 2)),
        ("3g.20gb", "NVIDIA-A100-SXM4-40GB", Fraction(1, 2)),
        ("4g.40gb", "NVIDIA-A100-SXM4-80GB", Fraction(4, 7)),
        ("7g.80gb", "NVIDIA-A100-SXM4-80GB", Fraction(1)),
    ],
)
def test_an_instance_is_charged_the_larger_of_compute_and_memory(
    profile: str, product: str, share: Fraction
) -> None:
    assert unit_share(PREFIX + profile, product) == share
    assert unit_share(f"{PREFIX}{profile}.shared", product) == share


@pytest.mark.parametrize(
    "product", [None, "", "Tesla-T4", "NVIDIA-A100", "NVIDIA-A100-SXM4-80GB-MIG-INVALID"]
)
def test_a_product_that_tells_no_model_with_the_profile_is_charged_at_the_largest_share(
    product: str | None,
) -> None:
    assert unit_share("nvidia.com/mig-1g.24gb", product) == Fraction(1, 2)


@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "nvidia.com/mig-9g.1gb", "mig-1g.5gb", ""])
def test_a_name_that_the_table_lacks_has_no_share(resource: str) -> None:
    assert unit_share(resource, "NVIDIA-A100-SXM4-40GB") is None


def test_every_share_is_part_of_one_card() -> None:
    for resource in mig_resources():
        share = unit_share(resource, None)
        assert share is not None
        assert 0 < share <= 1


@pytest.mark.parametrize(
    ("product", "name", "key"),
    [
        ("NVIDIA-A100-SXM4-40GB", "1g.10gb", 15),
        ("NVIDIA-A100-SXM4-80GB", "1g.10gb", 19),
        ("NVIDIA-H100-80GB-HBM3", "1g.10gb+me", 20),
        ("NVIDIA-H100-80GB-HBM3", "mig-1g.10gb.me", 20),
        ("NVIDIA-H100-80GB-HBM3", "nvidia.com/mig-1g.10gb.me.shared", 20),
        ("NVIDIA-H100-80GB-HBM3", "7g.79gb", 0),
        ("NVIDIA-GB200", "7g.189gb", 0),
        ("NVIDIA-GB300", "1g.31gb", 19),
        ("NVIDIA-GB300", "1g.31gb+me", 20),
        ("NVIDIA-GB300", "1g.35gb", 19),
        ("NVIDIA-H200", "1g.35gb", 15),
        ("NVIDIA-A30", "1g.6gb+me", 21),
        ("NVIDIA-A30-MIG-2g.12gb.me", "2g.12gb.me", 6),
        ("NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition", "1g.24gb", 14),
        ("NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition", "1g.24gb+gfx", 47),
        ("NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition", "1g.24gb.gfx", 47),
        ("NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition", "1g.24gb+me.all", 65),
        ("NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition", "1g.24gb.me.all", 65),
        ("NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition", "1g.24gb-me", 67),
        ("NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition", "mig-2g.48gb-me", 66),
        ("NVIDIA-H100-NVL", "1g.24gb", 15),
        ("NVIDIA-H100-80GB-HBM3", "1g.5gb", None),
        ("NVIDIA-H100-80GB-HBM3", "1c.3g.40gb", None),
        ("NVIDIA-H100-80GB-HBM3", "", None),
    ],
)
def test_any_form_of_a_name_leads_to_the_profile_of_that_model(
    product: str, name: str, key: int | None
) -> None:
    geometry = geometry_of(product)
    assert geometry is not None
    found = profile_of(geometry, name)
    assert (None if found is None else geometry.profiles[found].id) == key


def test_a_profile_without_media_engines_is_not_the_one_with_them() -> None:
    assert normal("1g.24gb+me") == normal("1g.24gb.me") == "nvidia.com/mig-1g.24gb.me"
    assert normal("1g.24gb-me") == "nvidia.com/mig-1g.24gb-me"


@pytest.mark.parametrize("product", [None, "", "Tesla-T4", "NVIDIA-A100", "NVIDIA-FUTURE-GPU-1TB"])
def test_a_product_that_tells_no_model_has_no_geometry(product: str | None) -> None:
    assert geometry_of(product) is None


def test_every_model_of_the_table_is_told_by_a_product() -> None:
    assert {geometry.model for geometry in map(geometry_of, PRODUCTS) if geometry} == geometries().keys()


PRODUCTS = [
    "NVIDIA-A100-SXM4-40GB",
    "NVIDIA-A800-SXM4-80GB",
    "NVIDIA-H100-80GB-HBM3",
    "NVIDIA-H100-SXM5-64GB",
    "NVIDIA-H100-NVL",
    "NVIDIA-GH200-480GB",
    "NVIDIA-GH200-144G-HBM3e",
    "NVIDIA-H20",
    "NVIDIA-H20-3e",
    "NVIDIA-H200",
    "NVIDIA-B200",
    "NVIDIA-GB200",
    "NVIDIA-B300-SXM6-AC",
    "NVIDIA-GB300",
    "NVIDIA-A30",
    "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition",
    "NVIDIA-RTX-PRO-5000-Blackwell",
    "NVIDIA-RTX-PRO-4500-Blackwell",
]


def test_a_card_is_charged_at_a_little_more_than_one_where_memory_and_compute_are_cut_unevenly() -> None:
    h100, one, three = geometries()["H100-80GB"], "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"
    assert most_units(h100, (one,)) == most_units(h100, (three,)) == 1
    assert most_units(h100, (one, three)) == Fraction(1, 2) + 4 * Fraction(1, 7)
    assert most_units(h100, ("nvidia.com/gpu",)) == 0
    for geometry in geometries().values():
        offered = tuple(name for profile in geometry.profiles for name in profile.resources)
        assert 1 <= most_units(geometry, offered) < Fraction(5, 4) or not geometry.units
