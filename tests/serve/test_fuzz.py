"""10,000 malformed or hostile bodies per verb: an answer that the protocol allows, no traceback, nothing changed."""

import json
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

import aiohttp
import pytest

from extender.cluster.assignment import Cards
from extender.cluster.events import BindResult, Elapsed, Outcome, PodSeen, Reserved, Settled
from extender.config import from_mapping
from extender.serve.app import verbs
from extender.serve.book import Refusal
from extender.serve.listening import listening
from tests.builders import (
    GPU,
    MIG,
    SHARED,
    binding_body,
    claimed,
    container,
    filter_body,
    node,
    pod,
    preemption_body,
    raw_pod,
    read_pod,
    record_of,
)
from tests.serve.doors import Doors
from tests.serve.mutants import mutants

pytestmark = pytest.mark.usefixtures("log")

MANY = 10_000
DATA = Path(__file__).parents[1] / "data" / "wire"
NODES = ["n0", "n1", "n2", "closed", "who"]
TURNS = {
    "initContainers": [container("warm", {GPU: "2"}), container("side", {GPU: "1"}, sidecar=True)],
    "containers": [container("main", {GPU: "1", "cpu": "4", "memory": "8Gi"})],
    "overhead": {"cpu": "250m"},
}
PODS = [
    raw_pod("p", {GPU: "1"}),
    raw_pod("shares", {SHARED: "2"}, memory="100Mi", priority=10),
    raw_pod("mig", {MIG: "1", "cpu": "1"}),
    raw_pod("turns", spec=TURNS, refused=True),
    raw_pod("cpu", {"cpu": "1"}),
    raw_pod("unsure", {GPU: "1"}),
]
VICTIMS = {"n0": ["uid-sits", "uid-foreign"], "n1": [], "n2": ["uid-foreign"], "who": ["x"]}
BODIES = {
    "filter": [
        (DATA / "filter-args.json").read_bytes(),
        (DATA / "filter-args-nodes.json").read_bytes(),
        *(filter_body(raw, NODES) for raw in PODS),
    ],
    "preempt": [
        (DATA / "preemption-args-meta.json").read_bytes(),
        (DATA / "preemption-args-full.json").read_bytes(),
        *(preemption_body({**raw, "spec": {**raw["spec"], "priority": 100}}, VICTIMS) for raw in PODS),
    ],
    "bind": [(DATA / "binding-args.json").read_bytes(), *(binding_body(raw, "n0") for raw in PODS)],
}
BODIES["prioritize"] = BODIES["filter"]
SEEDS = {"filter": 1, "prioritize": 2, "preempt": 3, "bind": 4}


def bodies(verb: str, count: int) -> Iterator[bytes]:
    others = [body for other, found in BODIES.items() if other != verb for body in found]
    return islice(mutants(BODIES[verb], others, SEEDS[verb]), count)


def doors(**server: Any) -> Doors:
    """A book in which there is something to break; no write ever succeeds."""
    made = Doors(
        node("n0", {GPU: "8"}, memory=1000),
        node("n1", {GPU: "2", SHARED: "200", MIG: "7"}, memory=1000),
        node("n2", {GPU: "2"}),
        node("closed", {GPU: "some"}),
        config=from_mapping({"server": server}),
    )
    made.state.apply(PodSeen(pod("sits", {GPU: "4"}, at="n0", record=record_of(gpu=(0, 1, 2, 3)))))
    made.state.apply(PodSeen(pod("foreign", {GPU: "2"}, at="n2")))
    for raw in PODS:
        made.see(raw)
    made.state.apply(Reserved(read_pod(PODS[-1]), "n0", record_of(gpu=(4,))))
    made.state.apply(Settled("uid-unsure", Outcome.UNKNOWN))
    made.state.apply(claimed(pod("other", {GPU: "1"}), "n0", Cards((5,)), until=float("inf")))
    made.server.results = [BindResult(Outcome.REFUSED, "the test refuses")] * (2 * MANY)
    return made


Found = tuple[dict[str, Any], set[str], set[str]]


def found(made: Doors) -> Found:
    snapshot = made.state.snapshot()
    seats = {uid: (seat.node, seat.phase, seat.record) for uid, seat in snapshot.seats.items()}
    return seats, set(snapshot.waiting), set(snapshot.inventories)


def claims(made: Doors) -> dict[str, str]:
    return {uid: claim.node for uid, claim in made.state.snapshot().claims.items()}


def strict(text: bytes | str) -> Any:
    def refuse(constant: str) -> NoReturn:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def answered(door: Callable[[bytes], bytes], body: bytes) -> Any:
    """The answer, or None for a refusal that says why."""
    why = ""
    try:
        return strict(door(body))
    except Refusal as refusal:
        why = str(refusal)
    assert why
    return None


def texts(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) and text for text in value.values())


def check_filter(answer: Any) -> bool:
    """Whether nodes were kept."""
    assert list(answer) == ["Nodes", "NodeNames", "FailedNodes", "FailedAndUnresolvableNodes", "Error"]
    assert answer["Nodes"] is None
    if answer["Error"]:
        assert isinstance(answer["Error"], str)
        assert (answer["NodeNames"], answer["FailedNodes"], answer["FailedAndUnresolvableNodes"]) == (
            None,
        ) * 3
        return False
    assert isinstance(answer["NodeNames"], list)
    assert all(isinstance(name, str) for name in answer["NodeNames"])
    assert texts(answer["FailedNodes"])
    assert texts(answer["FailedAndUnresolvableNodes"])
    assert not answer["NodeNames"] or not (answer["FailedNodes"] or answer["FailedAndUnresolvableNodes"])
    return bool(answer["NodeNames"])


def check_prioritize(answer: Any) -> None:
    assert isinstance(answer, list)
    for grade in answer:
        assert list(grade) == ["Host", "Score"]
        assert grade["Host"] in NODES
        assert type(grade["Score"]) is int
        assert 0 <= grade["Score"] <= 10


def check_preempt(answer: Any) -> None:
    assert list(answer) == ["NodeNameToMetaVictims"]
    for name, victims in answer["NodeNameToMetaVictims"].items():
        assert name in NODES
        assert victims.keys() == {"Pods", "NumPDBViolations"}
        assert victims["Pods"], "a node without victims fails the whole call"
        assert all(list(victim) == ["UID"] and isinstance(victim["UID"], str) for victim in victims["Pods"])
        assert type(victims["NumPDBViolations"]) is int


def check_bind(answer: Any) -> None:
    assert list(answer) == ["Error"]
    assert isinstance(answer["Error"], str)
    assert answer["Error"], "nothing can be bound here"


def test_filter() -> None:
    made = doors()
    before = found(made)
    kept_any = 0
    for number, body in enumerate(bodies("filter", MANY)):
        claimed = claims(made)
        answer = strict(made.place.filter(body))
        kept = check_filter(answer)
        kept_any += kept
        new = claims(made).items() - claimed.items()
        assert kept or not new, "a claim for a pod that was not answered"
        assert not answer["Error"] or claims(made) == claimed
        if number % 200 == 0:
            assert found(made) == before
            made.state.check()
            made.state.apply(Elapsed(1e300))
    assert found(made) == before
    made.state.check()
    assert kept_any > MANY / 20, "most mutants should not be so far off that nothing is tested"


def test_prioritize() -> None:
    made = doors()
    before = found(made)
    graded = 0
    for number, body in enumerate(bodies("prioritize", MANY)):
        claimed = claims(made)
        answer = answered(made.place.prioritize, body)
        if answer is None:
            assert claims(made) == claimed
            continue
        check_prioritize(answer)
        graded += 1
        if number % 200 == 0:
            assert found(made) == before
            made.state.check()
            made.state.apply(Elapsed(1e300))
    assert found(made) == before
    made.state.check()
    assert graded > MANY / 20


def test_preempt() -> None:
    made = doors()
    before, claimed = found(made), claims(made)
    helped = 0
    for number, body in enumerate(bodies("preempt", MANY)):
        answer = answered(made.place.preempt, body)
        if answer is not None:
            check_preempt(answer)
            helped += bool(answer["NodeNameToMetaVictims"])
        if number % 200 == 0:
            made.state.check()
    assert (found(made), claims(made)) == (before, claimed)
    made.state.check()
    assert helped > MANY / 20


async def test_bind() -> None:
    made = doors()
    before, claimed = found(made), claims(made)
    for number, body in enumerate(bodies("bind", MANY)):
        check_bind(strict(await made.seat.bind(body)))
        if number % 200 == 0:
            assert found(made) == before
            made.state.check()
    assert (found(made), claims(made)) == (before, claimed)
    made.state.check()
    assert len(made.server.writes) > MANY / 20


CHECKS: Mapping[str, Any] = {
    "filter": check_filter,
    "prioritize": check_prioritize,
    "preempt": check_preempt,
    "bind": check_bind,
}


async def test_all_of_them_over_http() -> None:
    made = doors(maxBody="64Ki")
    before = found(made)
    app = verbs(made.place, made.seat, made.config)
    async with listening(app, "127.0.0.1", 0) as at, aiohttp.ClientSession() as session:
        for verb, check in CHECKS.items():
            statuses = set()
            for body in bodies(verb, 300):
                async with session.post(f"{at}/{verb}", data=body) as answer:
                    statuses.add(answer.status)
                    text = await answer.text()
                    if answer.status == 200:
                        check(strict(text))
                    else:
                        assert answer.status in (400, 413)
                        assert len(text) > 20
            assert statuses == ({200} if verb in ("filter", "bind") else statuses | {200, 400})
    assert found(made) == before
    made.state.check()
