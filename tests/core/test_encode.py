"""Answers against the json module: the same bytes, and nothing half-built on bad input."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from _core import NameIndex, failures_json, names_json, priorities_json
from tests.core import twins
from tests.core.test_names import index_of, twin_of

NAMES = [f"node-{'x' * (row % 40)}{row}" for row in range(60)]
INDEX, TWIN = index_of(NAMES), twin_of(NAMES)
REASONS = [b'""', b'"no GPU"', json.dumps('quote " and \\ and é').encode(), b'"memory taken"']

rows_with = st.lists(st.integers(0, len(NAMES) - 1), unique=True, max_size=len(NAMES))


@given(rows_with, st.data())
def test_answers_are_what_the_json_module_writes(rows: list[int], data: st.DataObject) -> None:
    at = np.array(rows, np.int32)

    def drawn(most: int) -> list[int]:
        return data.draw(st.lists(st.integers(0, most), min_size=len(rows), max_size=len(rows)))

    codes, wanted, grades = drawn(3), data.draw(st.integers(0, 15)), drawn(10)
    assert names_json(INDEX, at) == twins.names_json(TWIN, rows)
    assert failures_json(INDEX, at, np.array(codes, np.int8), REASONS, wanted) == twins.failures_json(
        TWIN, rows, codes, REASONS, wanted
    )
    assert priorities_json(INDEX, at, np.array(grades, np.int8)) == twins.priorities_json(TWIN, rows, grades)


def test_an_answer_can_be_read_back_by_the_index() -> None:
    rows = np.arange(len(NAMES), dtype=np.int32)[::-1].copy()
    assert INDEX.lookup(names_json(INDEX, rows))[0].tolist() == rows.tolist()


def test_a_row_without_a_name_is_refused() -> None:
    index = NameIndex()
    index.insert("a", 3)
    index.insert("b", 5)
    index.remove("b")
    for row, sentence in [
        (4, r"rows\[1\] is 4, a row that has no node name"),
        (5, "no node name"),
        (10**6, "rows"),
    ]:
        at = np.array([3, row], np.int32)
        with pytest.raises(ValueError, match=sentence):
            names_json(index, at)
        with pytest.raises(ValueError, match=sentence):
            failures_json(index, at, np.zeros(2, np.int8), [b'""'], 1)
        with pytest.raises(ValueError, match=sentence):
            priorities_json(index, at, np.zeros(2, np.int8))


def test_codes_grades_and_fragments_are_checked() -> None:
    at = np.array([0], np.int32)
    for code in (-1, 4, 100):
        with pytest.raises(ValueError, match=rf"codes\[0\] is {code}, but fragments has only 0 to 3"):
            failures_json(INDEX, at, np.array([code], np.int8), REASONS, 1)
    with pytest.raises(ValueError, match="codes must be"):
        failures_json(INDEX, at, np.zeros(2, np.int8), REASONS, 1)
    with pytest.raises(ValueError, match=r"fragments\[1\] must be a JSON string with its quotes"):
        failures_json(INDEX, at, np.zeros(1, np.int8), [b'""', b"reason"], 1)
    with pytest.raises(ValueError, match="at most 64 reasons, not 65"):
        failures_json(INDEX, at, np.zeros(1, np.int8), [b'""'] * 65, 1)
    with pytest.raises(TypeError):
        failures_json(INDEX, at, np.zeros(1, np.int8), ["text"], 1)  # type: ignore[list-item]
    for mark in (-1, 11):
        with pytest.raises(ValueError, match=rf"grades\[0\] must be from 0 to 10, not {mark}"):
            priorities_json(INDEX, at, np.array([mark], np.int8))
    with pytest.raises(ValueError, match="grades must be"):
        priorities_json(INDEX, at, np.zeros(2, np.int8))
