"""The waiting line against a plain sorted list."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from extender.fairness.line import Line

Pod = tuple[str, str, int, bool, float]
"""Tenant, shape, priority, preemptible, created."""

UNITS = {"small": 1, "big": 8}


def line_of(pods: dict[str, Pod]) -> Line[str]:
    line: Line[str] = Line()
    for uid, pod in pods.items():
        add(line, uid, pod)
    return line


def add(line: Line[str], uid: str, pod: Pod) -> None:
    tenant, shape, priority, preemptible, created = pod
    line.add(
        uid,
        tenant=tenant,
        shape=shape,
        priority=priority,
        preemptible=preemptible,
        units=UNITS[shape],
        created=created,
    )


POD = st.tuples(
    st.sampled_from("ab"),
    st.sampled_from(sorted(UNITS)),
    st.integers(0, 2),
    st.booleans(),
    st.integers(0, 5).map(float),
)
PODS = st.dictionaries(st.integers(0, 99).map(str), POD, max_size=20)


def order(pods: dict[str, Pod], tenant: str) -> list[str]:
    mine = [uid for uid, pod in pods.items() if pod[0] == tenant]
    return sorted(mine, key=lambda uid: (-pods[uid][2], pods[uid][4], uid))


@given(PODS, st.sets(st.integers(0, 99).map(str)), st.data())
def test_the_line_is_the_sorted_list_of_who_waits(
    pods: dict[str, Pod], leaving: set[str], data: st.DataObject
) -> None:
    line = line_of({uid: pods[uid] for uid in data.draw(st.permutations(sorted(pods)))})
    for uid in leaving:
        assert (line.remove(uid) is not None) == (uid in pods)
        pods.pop(uid, None)
    assert len(line) == len(pods)
    assert sorted(line.tenants()) == sorted({pod[0] for pod in pods.values()})
    for tenant in "ab":
        expected = order(pods, tenant)
        assert [stand.uid for _, stand in line.ordered(tenant)] == expected
        assert [line.place_of(uid) for uid in expected] == list(range(1, len(expected) + 1))
        assert line.units(tenant) == sum(UNITS[pods[uid][1]] for uid in expected)
        assert line.count(tenant) == len(expected)
        heads = [group.head for group in line.groups(tenant)]
        assert [min(heads).uid] == expected[:1] if heads else not expected


@given(PODS, st.dictionaries(st.sampled_from("ab"), st.integers(0, 9), min_size=2))
def test_who_is_ahead_is_who_gets_a_turn_first(pods: dict[str, Pod], used: dict[str, int]) -> None:
    def turn(tenant: str, units: int) -> tuple[float, object]:
        return units / {"a": 3, "b": 1}[tenant], "ab".index(tenant)

    line = line_of(pods)
    queues = {tenant: order(pods, tenant) for tenant in "ab"}
    has = dict(used)
    served: list[str] = []
    while any(queues.values()):
        tenant = min((each for each in queues if queues[each]), key=lambda each: turn(each, has[each]))
        uid = queues[tenant].pop(0)
        ahead = line.ahead_of(uid, used, turn)
        before = [pods[other][0] for other in served]
        assert ahead == {each: before.count(each) for each in "ab" if each in before}
        served.append(uid)
        has[tenant] += UNITS[pods[uid][1]]


def test_a_pod_stands_in_line_once_and_its_group_can_be_reckoned_anew() -> None:
    line = line_of({"x": ("a", "small", 0, True, 1.0), "y": ("a", "small", 0, True, 2.0)})
    add(line, "x", ("b", "big", 5, False, 0.0))
    assert len(line) == 2
    assert line.units("a") == 2
    group = line.group_of("x")
    assert group is not None
    line.reckon(group, 3)
    assert line.units("a") == 6
    line.remove("x")
    line.remove("y")
    assert not line.units("a")
    assert line.group_of("x") is None
    with pytest.raises(KeyError):
        line.place_of("x")
