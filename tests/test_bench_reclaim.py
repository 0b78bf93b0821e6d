"""`bench reclaim`: it would notice victims that are not the cheapest, and its states cover what can happen."""

from __future__ import annotations

import dataclasses
from collections import Counter

from bench.cases import reclaim as case
from bench.report import missed
from extender.decide.reclaim import NoReclaim, Reclaim


def test_the_bench_reports_every_goal() -> None:
    found = case.run(lambda line: None, states=60, nodes=40, calls=2)
    assert missed(found) == []
    assert [each.goal for each in found if each.goal] == ["≤ 0", "≥ 20", *["≤ 100"] * 4]


def test_a_victim_too_many_or_too_dear_would_be_noticed() -> None:
    noticed = 0
    for seed in range(60):
        state = case.draw(seed)
        expected, found = case.least(state), case.ours(state)
        if not isinstance(found, Reclaim):
            continue
        assert case.agrees(state, expected, found)
        assert not case.agrees(state, expected, NoReclaim("none"))
        assert not case.agrees(state, expected, dataclasses.replace(found, victims=found.victims[1:]))
        pods = state.machines[int(found.node.removeprefix("n"))].pods
        assert expected is not None
        assert not case.agrees(state, (*expected[:2], expected[2] - 1, *expected[3:]), found)
        noticed += len(pods) > len(found.victims)
    assert noticed > 10


def test_the_states_cover_what_can_happen() -> None:
    seen: Counter[str] = Counter()
    for seed in range(200):
        state = case.draw(seed)
        found = case.ours(state)
        if isinstance(found, NoReclaim):
            seen[found.reason.split()[0]] += 1
        else:
            kind = state.machines[int(found.node.removeprefix("n"))].kind
            seen[kind] += 1
            seen["several"] += len(found.victims) > 1
            seen["share"] += state.wanted.share is not None
    assert (
        min(seen[what] for what in ("whole", "shared", "mig", "several", "share", "No", "Tenant", "Node")) > 3
    )
