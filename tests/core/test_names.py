"""NameIndex against two dicts: what it holds, and what it reads out of any bytes."""

import json
import random

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from _core import NameIndex
from tests.core.twins import Names

SOME = [
    "a",
    "b",
    "node-1",
    "node-2",
    "gpu-node-00001.pool",
    "gpu-node-00002.pool",
    "exactly8",
    "exactly-nine",
    "",
]


def index_of(names: list[str]) -> NameIndex:
    index = NameIndex()
    for row, name in enumerate(names):
        index.insert(name, row)
    return index


def answer(index: NameIndex | Names, raw: bytes) -> tuple[list[int], list[str]] | None:
    """What `lookup` says, None for a refusal."""
    try:
        rows, unknown = index.lookup(raw)
    except ValueError:
        return None
    return list(map(int, rows)), unknown


def twin_of(names: list[str]) -> Names:
    twin = Names()
    for row, name in enumerate(names):
        twin.insert(name, row)
    return twin


names = st.sampled_from(SOME) | st.text('abc-"\\é\x7f\n', max_size=9)
# Mostly JSON, mostly of known names, with spaces and escapes as other writers put them, and then some damage.
arrays = st.builds(
    lambda value, separators, escape: json.dumps(value, separators=separators, ensure_ascii=escape).encode(),
    st.lists(names, max_size=8)
    | st.lists(names | st.none() | st.integers() | st.lists(names, max_size=2), max_size=4),
    st.sampled_from([(",", ":"), (", ", ": "), ("\n\t,\r ", ":")]),
    st.booleans(),
)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    raw = bytearray(draw(arrays))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(raw)))
        match draw(st.sampled_from(["cut", "put", "drop"])):
            case "cut":
                del raw[at:]
            case "put":
                raw[at:at] = draw(
                    st.sampled_from([b'"', b"\\", b",", b"[", b"]", b" ", b"\xff", b"\0", b"x", b"\xc3"])
                )
            case _:
                del raw[at : at + 1]
    return bytes(raw)


@settings(max_examples=500)
@given(arrays | damaged() | st.binary(max_size=12))
def test_lookup_reads_any_bytes_as_json_would(raw: bytes) -> None:
    index = index_of(SOME)
    expected = answer(twin_of(SOME), raw)
    assert answer(index, raw) == expected
    assert answer(index, raw) == expected, "the second time, with guesses learnt from the first"


@settings(max_examples=150)
@given(st.lists(st.tuples(st.booleans(), names, st.integers(0, 300)), max_size=60))
def test_an_index_holds_what_two_dicts_hold(steps: list[tuple[bool, str, int]]) -> None:
    index, twin = NameIndex(), Names()
    for insert, name, row in steps:
        outcomes = []
        for held in (index, twin):
            try:
                held.insert(name, row) if insert else held.remove(name)
                outcomes.append(True)
            except ValueError:
                outcomes.append(False)
        assert outcomes[0] == outcomes[1], (insert, name, row)
    assert len(index) == len(twin.rows)
    for _, name, row in steps:
        assert index.get(name) == twin.rows.get(name, -1)
        if row in twin.names:
            assert index.name(row) == twin.names[row]
        else:
            with pytest.raises(ValueError, match="has no node name"):
                index.name(row)
    raw = json.dumps(list(twin.rows)).encode()
    assert answer(index, raw) == (list(twin.rows.values()), [])


def test_nodes_that_come_and_go_leave_the_index_right_and_small() -> None:
    chance = random.Random(5)
    index, held = NameIndex(), dict[str, int]()
    free = list(range(500))
    for step in range(30_000):
        if free and (not held or chance.random() < 0.5):
            name, row = f"node-{step:09d}", free.pop()
            index.insert(name, row)
            held[name] = row
        else:
            name = chance.choice(list(held)) if step % 50 == 0 else next(iter(held))
            index.remove(name)
            free.append(held.pop(name))
    assert len(index) == len(held)
    order = list(held)
    chance.shuffle(order)
    rows, unknown = index.lookup(json.dumps(order).encode())
    assert rows.tolist() == [held[name] for name in order]
    assert unknown == []
    assert index.get("node-000000000") == -1


def test_every_order_gives_the_rows_in_that_order() -> None:
    chance = random.Random(2)
    every = [f"gpu-node-{row:05d}.pool-a.eu" for row in range(3000)]
    index = index_of(every)
    for _ in range(20):
        order = chance.sample(range(3000), chance.choice([1, 100, 3000]))
        rows, unknown = index.lookup(json.dumps([every[row] for row in order]).encode())
        assert rows.dtype == np.int32
        assert rows.flags.c_contiguous
        assert rows.tolist() == order
        assert unknown == []


def test_a_name_twice_is_one_row_and_an_unknown_one_is_told_once() -> None:
    index = index_of(["a", "b"])
    assert answer(index, b'["b","a","b","a"]') == ([1, 0], [])
    assert answer(index, b'["b","x","b","y","x"]') == ([1], ["x", "y"])


def test_an_unknown_name_can_always_be_written_again() -> None:
    rows, unknown = index_of(["a"]).lookup(b'["a","\\ud800x"]')
    assert (rows.tolist(), unknown) == ([0], ["\ufffdx"])
    msgspec.json.encode(unknown)


def test_an_escaped_name_is_still_known() -> None:
    assert answer(index_of(["a", "b-c"]), b'["\\u0061","b\\u002dc"]') == ([0, 1], [])


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview, msgspec.Raw])
def test_anything_that_holds_bytes_is_read(wrap: type) -> None:
    assert index_of(["a"]).lookup(wrap(b' ["a"]\n'))[0].tolist() == [0]
    assert index_of(["a"]).lookup(wrap(b'["a","x"]'))[1] == ["x"]


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        (b"", "not readable as JSON"),
        (b"[" * 100_000, "not readable as JSON"),
        (b'["a",', "not readable as JSON"),
        (b'["a"]]', "not readable as JSON"),
        (b'["\xff"]', "not readable as JSON"),
        ('["a"]'.encode("utf-16"), "not readable as JSON"),
        (b"[" + b"1" * 5000 + b"]", "not readable as JSON"),
        (b"null", "must be a JSON array of strings, not null"),
        (b'{"a":1}', "must be a JSON array of strings, not an object"),
        (b'"a"', "must be a JSON array of strings, not a string"),
        (b"7", "must be a JSON array of strings, not a number"),
        (b'["a",true]', "Node name 1 must be a string, not a boolean"),
        (b'["a",["a"]]', "Node name 1 must be a string, not an array"),
    ],
)
def test_what_is_not_an_array_of_strings_is_refused_with_a_sentence(raw: bytes, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        index_of(["a"]).lookup(raw)


def test_insert_and_remove_say_what_is_wrong() -> None:
    index = index_of(["a", "b"])
    for name in ['say "hi"', "back\\slash", "café", "tab\t", "nul\0", "del\x7f", "\ud800"]:
        with pytest.raises(ValueError, match="cannot be kept"):
            index.insert(name, 5)
    with pytest.raises(ValueError, match="'a' already has row 0"):
        index.insert("a", 5)
    with pytest.raises(ValueError, match="Row 1 already belongs to node 'b'"):
        index.insert("c", 1)
    for row in (-1, 2**31 - 1, 2**70):
        with pytest.raises(ValueError, match=f"must be from 0 to 2147483646, not {row}"):
            index.insert("c", row)
    with pytest.raises(ValueError, match="no node 'c' to remove"):
        index.remove("c")
    with pytest.raises(TypeError):
        index.lookup("[]")  # type: ignore[arg-type]
    assert len(index) == 2
