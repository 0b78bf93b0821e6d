"""Quantities against apimachinery's own results, and against exact fractions."""

import json
import math
import re
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from extender.wire.quantity import LIMIT, QuantityError, device_count, milli, whole

DATA = Path(__file__).parents[1] / "data" / "wire"
UPSTREAM: list[tuple[str, int | None, int | None]] = [
    (text, units, thousandths)
    for text, units, thousandths in json.loads((DATA / "quantities.json").read_text())
]

FACTORS = {
    "": Fraction(1),
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "P": Fraction(10**15),
    "E": Fraction(10**18),
    "Ki": Fraction(1024),
    "Mi": Fraction(1024**2),
    "Gi": Fraction(1024**3),
    "Ti": Fraction(1024**4),
    "Pi": Fraction(1024**5),
    "Ei": Fraction(1024**6),
}


def away_from_zero(value: Fraction) -> int:
    size = min(math.ceil(abs(value)), 2**63 - 1)
    return size if value >= 0 else -size


@st.composite
def quantities(draw: st.DrawFn) -> tuple[str, Fraction]:
    """A well-formed text and its exact value, built from its parts rather than parsed."""
    before = draw(st.text("0123456789", max_size=30))
    after = draw(st.text("0123456789", min_size=0 if before else 1, max_size=30))
    dot = "." if after or draw(st.booleans()) else ""
    sign = draw(st.sampled_from(["", "+", "-"]))
    value = Fraction(int("0" + before + after), 10 ** len(after))
    if draw(st.booleans()):
        suffix, factor = draw(st.sampled_from(sorted(FACTORS.items())))
    else:
        exponent = draw(st.integers(-60, 60))
        suffix = draw(st.sampled_from("eE")) + draw(st.sampled_from([f"{exponent}", f"{exponent:+03d}"]))
        factor = Fraction(10) ** exponent
    return f"{sign}{before}{dot}{after}{suffix}", value * factor * (-1 if sign == "-" else 1)


@given(quantities())
def test_every_well_formed_text_has_its_exact_value_rounded_away_from_zero(
    quantity: tuple[str, Fraction],
) -> None:
    text, value = quantity
    assert whole(text) == away_from_zero(value)
    assert milli(text) == away_from_zero(value * 1000)


@given(quantities())
def test_a_device_count_is_a_whole_number_from_0_up_or_an_error(quantity: tuple[str, Fraction]) -> None:
    text, value = quantity
    if value >= 0 and value.denominator == 1:
        assert device_count(text) == min(value, LIMIT)
    else:
        with pytest.raises(QuantityError):
            device_count(text)


@pytest.mark.parametrize(("text", "units", "thousandths"), UPSTREAM)
def test_apimachinery_reads_the_same(text: str, units: int | None, thousandths: int | None) -> None:
    if units is None:
        with pytest.raises(QuantityError):
            whole(text)
        with pytest.raises(QuantityError):
            milli(text)
    else:
        assert (whole(text), milli(text)) == (units, thousandths)


@pytest.mark.parametrize(
    ("amount", "units", "thousandths"),
    [
        ("1E", 10**18, LIMIT),
        ("1E3", 1000, 10**6),
        ("9223372036854775807", LIMIT, LIMIT),
        ("9223372036854775808", LIMIT, LIMIT),
        ("-1Ei", -(2**60), -LIMIT),
        ("1e999999999", LIMIT, LIMIT),
        ("1e-999999999", 1, 1),
        ("-1e-999999999", -1, -1),
        ("0e999999999", 0, 0),
        ("1e000000000003", 1000, 10**6),
        ("9" * 200 + "e-199", 10, 10_000),
        (3000, 3000, 3_000_000),
        (-5, -5, -5000),
        (0.1, 1, 100),
        (1e22, LIMIT, LIMIT),
        (1e-7, 1, 1),
        (-0.0, 0, 0),
    ],
)
def test_large_small_and_number_amounts(amount: str | float, units: int, thousandths: int) -> None:
    assert (whole(amount), milli(amount)) == (units, thousandths)


MALFORMED = [
    "",
    "+",
    "-",
    ".",
    "-.",
    "Ki",
    "m",
    "e3",
    ".e3",
    "+Gi",
    "1e4294967296",
    "1" * 257,
    "\ud800",
    "1\0",
]


@pytest.mark.parametrize(
    "amount",
    [*MALFORMED, True, False, None, [1], {}, b"1", float("nan"), float("inf"), 10**300, 10**5000],
    ids=lambda amount: type(amount).__name__,
)
def test_what_is_no_quantity_is_an_error_with_the_value_and_the_way_out(amount: str) -> None:
    for read in (milli, whole, device_count):
        with pytest.raises(QuantityError, match="allowed are") as caught:
            read(amount)
        assert len(str(caught.value)) < 300


def test_true_is_an_error_even_when_1_was_read_before() -> None:
    assert whole(1) == whole(1.0) == whole("1") == 1
    with pytest.raises(QuantityError, match="bool"):
        whole(True)


@pytest.mark.parametrize("text", ["-1", "0.5", "500m", "1n", "1e-300", "-1e-300", "1.0000000001k"])
def test_no_part_of_a_device_and_no_negative_count_is_ever_asked_for(text: str) -> None:
    with pytest.raises(QuantityError, match=re.escape(repr(text))):
        device_count(text)


@given(st.one_of(st.text(max_size=20), st.text("0123456789.+-eEinumkKMGTP", max_size=12)))
@example("1e3Ki")
@example("٣")
def test_any_text_is_read_in_full_or_refused(text: str) -> None:
    grammar = r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,9}|[numkMGTPE]|[KMGTPE]i)?"
    well_formed = re.fullmatch(grammar, text) is not None
    for read in (milli, whole):
        try:
            read(text)
        except QuantityError:
            assert not well_formed
        else:
            assert well_formed
