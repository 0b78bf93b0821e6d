"""The MIG kernels against their twins, each rule by its arithmetic, and what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from _core import Slices, place_dynamic, replay_dynamic
from tests.core import mig_twins
from tests.core.builders import random_slices


def ints(*values: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.array(values, np.int32)


slices_of_any_model = st.builds(
    random_slices, seed=st.integers(0, 2**32), profiles=st.integers(1, 4), bits=st.integers(1, 5)
)


@settings(max_examples=300)
@given(slices_of_any_model, st.data())
def test_placing_is_what_its_twin_says(slices: Slices, data: st.DataObject) -> None:
    shape = data.draw(st.tuples(st.integers(1, 6), st.integers(1, 9)))
    occupancies = st.integers(-1, slices.occupancies - 1) | st.sampled_from(
        [-(2**31), 2**31 - 1, slices.occupancies]
    )
    flat = data.draw(st.lists(occupancies, min_size=shape[0] * shape[1], max_size=shape[0] * shape[1]))
    cards = np.array(flat, np.int32).reshape(shape)
    profiles = data.draw(st.lists(st.integers(0, slices.profiles - 1), min_size=1, max_size=5))
    rows = data.draw(st.lists(st.integers(0, shape[0] - 1), max_size=8))
    before = cards.copy()
    chosen, starts, scores = place_dynamic(slices, cards, ints(*rows), ints(*profiles))
    assert [str(array.dtype) for array in (chosen, starts, scores)] == ["int32", "int32", "int64"]
    assert (cards == before).all()
    for i, row in enumerate(rows):
        expected = mig_twins.place_dynamic(slices, cards[row].tolist(), profiles)
        assert (chosen[i].tolist(), starts[i].tolist(), int(scores[i])) == expected


@settings(max_examples=300)
@given(slices_of_any_model, st.data())
def test_a_replay_is_what_its_twin_says_also_when_it_is_cut(slices: Slices, data: st.DataObject) -> None:
    profiles = data.draw(st.lists(st.integers(0, slices.profiles - 1), max_size=30))
    events: list[int] = []
    for request in range(len(profiles)):
        events.append(request)
        events += data.draw(st.lists(st.sampled_from(range(-1 - request, 0)), max_size=2))
    events = [event for at, event in enumerate(events) if event not in events[:at]]
    start = data.draw(st.lists(st.integers(0, slices.occupancies - 1) | st.just(-1), max_size=5))
    cut = data.draw(st.integers(0, len(events)))
    cards, chosen = ints(*start), np.full(len(profiles), -1, np.int32)
    bits = np.zeros(len(profiles), np.int32)
    for part in (events[:cut], events[cut:]):
        replay_dynamic(slices, cards, ints(*profiles), ints(*part), chosen, bits)
    assert (cards.tolist(), chosen.tolist()) == mig_twins.replay_dynamic(slices, start, profiles, events)


GOOD = random_slices(1, 2, 2)


@pytest.mark.parametrize(
    ("starts", "after", "sentence"),
    [
        ([[0, -1, -1]], [[1, 0, 0]], "2^bits occupancies, not the shape (1, 3)"),
        (np.empty((0, 2)), np.empty((0, 2)), "not the shape (0, 2)"),
        (np.empty((1, 0)), np.empty((1, 0)), "not the shape (1, 0)"),
        ([[0, -1]], [[0, 0]], "after[0, 0] is 0, which is not the occupancy 0 with more bits"),
        ([[-1, 0]], [[0, 2]], "after[0, 1] is 2"),
        ([[0, -1]], [[3, 0]], "after[0, 0] is 3"),
        ([[0, -1]], [[-1, 0]], "after[0, 0] is -1"),
    ],
)
def test_tables_that_would_lose_an_instance_are_refused(starts: Any, after: Any, sentence: str) -> None:
    starts, after = np.array(starts, np.int8), np.array(after, np.int32)
    with pytest.raises(ValueError) as refused:
        Slices(starts, after, np.zeros(starts.shape, np.int32))
    assert sentence in str(refused.value)


def test_tables_cannot_be_changed_from_outside() -> None:
    starts, after, scores = (
        np.array([[0, -1]], np.int8),
        ints(1, 1).reshape(1, 2),
        ints(5, 5).reshape(1, 2),
    )
    slices = Slices(starts, after, scores)
    scores[:] = 9
    assert slices.scores.tolist() == [[5, -(2**31)]]
    for array in (slices.starts, slices.after, slices.scores):
        assert not array.flags.writeable
    assert slices.with_scores(ints(7, 8).reshape(1, 2)).scores.tolist() == [[7, -(2**31)]]
    with pytest.raises(ValueError, match="scores must be a C-contiguous int32 array"):
        slices.with_scores(ints(7, 8))
    with pytest.raises(ValueError, match="scores must be above -2147483648 where there is a start"):
        slices.with_scores(ints(-(2**31), 8).reshape(1, 2))


CARDS = np.zeros((2, 3), np.int32)


@pytest.mark.parametrize(
    ("cards", "rows", "profiles", "sentence"),
    [
        (CARDS, ints(2), ints(0), "rows[0] is 2, but there are only rows 0 to 1"),
        (CARDS, ints(0), ints(-1), "profiles[0] is -1"),
        (CARDS, ints(0), ints(2), "profiles[0] is 2"),
        (CARDS, ints(0), ints(), "profiles must name at least one"),
        (CARDS.astype(np.int64), ints(0), ints(0), "cards must be a C-contiguous int32 array"),
        (CARDS[:, ::2], ints(0), ints(0), "cards must be a C-contiguous int32 array"),
        (CARDS[:, :0].copy(), ints(0), ints(0), "at least one card column"),
    ],
)
def test_what_cannot_be_placed_is_refused(cards: Any, rows: Any, profiles: Any, sentence: str) -> None:
    with pytest.raises(ValueError) as refused:
        place_dynamic(GOOD, cards, rows, profiles)
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("events", "chosen", "sentence"),
    [
        (ints(2), ints(-1, -1), "events[0] is 2: there are requests 0 to 1"),
        (ints(0, -3), ints(-1, -1), "events[1] is -3"),
        (ints(-(2**31)), ints(-1, -1), "events[0] is -2147483648"),
        (ints(-1), ints(3, -1), "must have a card from 0 to 2, or -1"),
        (ints(0), ints(-1), "chosen must be"),
    ],
)
def test_what_cannot_be_replayed_is_refused(events: Any, chosen: Any, sentence: str) -> None:
    with pytest.raises(ValueError) as refused:
        replay_dynamic(GOOD, CARDS[0].copy(), ints(0, 1), events, chosen, np.zeros_like(chosen))
    assert sentence in str(refused.value)
