"""Table and Ask keep what they are given and refuse what the kernels could not read."""

import numpy as np
import pytest

from _core import Ask, Table
from tests.core.builders import COLUMNS, columns, random_table


def test_every_column_is_the_array_that_was_given() -> None:
    given = columns(3, 2, 4)
    table = Table(**given)
    assert table.rows == 3
    for name, array in given.items():
        assert getattr(table, name) is array


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_of_another_type_shape_or_layout_is_named(name: str) -> None:
    good = columns(3, 2, 4)[name]
    wide = np.zeros((*good.shape[:-1], 2 * good.shape[-1]), good.dtype)
    for bad in (good.astype(np.float64), good[None], wide[..., ::2], good.tolist(), None):
        with pytest.raises(ValueError, match=f"^{name} must be a C-contiguous {good.dtype} array"):
            Table(**columns(3, 2, 4) | {name: bad})
    # state, allocatable and memory set the shape: there the first array that disagrees with them is named.
    with pytest.raises(ValueError, match=r"must be a C-contiguous .* array of shape"):
        Table(**columns(3, 2, 4) | {name: good[:-1]})


def test_a_table_needs_a_card_and_a_resource_column() -> None:
    with pytest.raises(ValueError, match="memory must have at least one card column"):
        Table(**columns(3, 0, 4))
    with pytest.raises(ValueError, match="allocatable must have at least one resource column"):
        Table(**columns(3, 2, 0))
    assert Table(**columns(0, 1, 1)).rows == 0


def test_an_unknown_column_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no column 'colour'"):
        random_table(1, 1, 1).colour  # type: ignore[attr-defined]  # noqa: B018


def test_copy_row_can_be_changed_without_touching_the_table() -> None:
    table = random_table(seed=3, rows=5, cards=4)
    before = {name: getattr(table, name).copy() for name in COLUMNS}
    copy = table.copy_row(2)
    assert copy.rows == 1
    for name in COLUMNS:
        column = getattr(copy, name)
        np.testing.assert_array_equal(column, before[name][2:3])
        column[:] = 1
        np.testing.assert_array_equal(getattr(table, name), before[name])
    with pytest.raises(ValueError, match="row must be from 0 to 4, not 5"):
        table.copy_row(5)


def test_an_ask_is_a_copy_that_cannot_be_changed() -> None:
    resources, counts = np.array([2, 0], np.int32), np.array([3, 1], np.int64)
    pod = Ask(resources, counts, 1, 0, 5, 7, gpu_id=0)
    resources[:], counts[:] = 9, 9
    assert (pod.resources.tolist(), pod.counts.tolist()) == ([2, 0], [3, 1])
    assert (pod.whole, pod.shares, pod.memory, pod.gpu_id, pod.shared_id) == (1, 0, 5, 0, -1)
    with pytest.raises(ValueError, match="read-only"):
        pod.counts[0] = 2
    with pytest.raises(AttributeError):
        pod.whole = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"counts": np.array([1], np.int64)}, "counts must be a C-contiguous int64 array of shape"),
        ({"resources": np.array([1, 1], np.int32)}, "resources must be distinct ids from 0 on"),
        ({"resources": np.array([-1, 1], np.int32)}, "resources must be distinct ids from 0 on"),
        ({"counts": np.array([1, 0], np.int64)}, "counts must be at least 1 each"),
        ({"memory": -1}, "memory must be from 0"),
        ({"memory": 2**63}, "memory must be from 0"),
        ({"whole": 2}, "gpu_id 0 must be the resource that is asked for 2 times"),
        ({"whole": 0}, "gpu_id 0 must be the resource that is asked for 0 times"),
        ({"gpu_id": -1}, "gpu_id -1 must be the resource that is asked for 1 times"),
        ({"shares": 1}, "shared_id -1 must be the resource"),
        ({"gpu_id": 5}, "gpu_id 5 must be the resource"),
    ],
)
def test_an_ask_that_contradicts_itself_is_refused(arguments: dict[str, object], sentence: str) -> None:
    good: dict[str, object] = {
        "resources": np.array([0, 1], np.int32),
        "counts": np.array([1, 4], np.int64),
        "whole": 1,
        "shares": 0,
        "memory": 0,
        "gpu_id": 0,
    }
    Ask(**good)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=sentence):
        Ask(**good | arguments)  # type: ignore[arg-type]
