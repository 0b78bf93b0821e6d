"""The planner's instructions and their outcomes: what is certain is said, what is not stays unknown."""

import time
from typing import Any

import pytest

from extender.kube.client import Client
from extender.kube.releaser import Releaser, Result, Written
from extender.wire.marks import EVICTED, GATE
from tests.fakes.apiserver import FakeApiServer

GATED = {"schedulingGates": [{"name": "other.io/gate"}, {"name": GATE}]}
ANNOTATIONS = {"kvitej.io/released": "now"}
DEEDS = ["nominate", "lift", "evict"]
PARTS = {"nominate": "status", "lift": "p", "evict": "eviction"}
"""Of the path, where the deed is done."""


@pytest.fixture
def releaser(client: Client) -> Releaser:
    return Releaser(client, timeout=0.9)


async def do(releaser: Releaser, deed: str, uid: str, name: str = "p") -> Written:
    match deed:
        case "nominate":
            return await releaser.nominate("default", name, uid, "n1")
        case "lift":
            return await releaser.lift("default", name, uid, ANNOTATIONS)
    return await releaser.evict("default", name, uid, "why")


def is_done(pod: dict[str, Any], deed: str) -> bool:
    match deed:
        case "nominate":
            return bool(pod["status"].get("nominatedNodeName") == "n1")
        case "lift":
            gates = [gate["name"] for gate in pod["spec"].get("schedulingGates", [])]
            return gates == ["other.io/gate"]
    return "deletionTimestamp" in pod["metadata"]


@pytest.mark.parametrize("deed", DEEDS)
async def test_each_deed_does_what_it_says(server: FakeApiServer, releaser: Releaser, deed: str) -> None:
    uid = server.put_pod("p", spec=GATED, metadata={"annotations": {"mine": "kept"}})
    assert await do(releaser, deed, uid) == Written(Result.DONE)
    pod = server.pod("p")
    assert is_done(pod, deed)
    added = {"nominate": {}, "lift": ANNOTATIONS, "evict": {EVICTED: "why"}}[deed]
    assert pod["metadata"]["annotations"] == {"mine": "kept", **added}
    # On the good path one write each, and one more to tell a victim why.
    assert len(server.requests) == (2 if deed == "evict" else 1)


async def test_a_nomination_is_taken_back(server: FakeApiServer, releaser: Releaser) -> None:
    uid = server.put_pod("p", status={"phase": "Pending", "nominatedNodeName": "n1"})
    assert (await releaser.nominate("default", "p", uid, None)).result is Result.DONE
    assert server.pod("p")["status"] == {"phase": "Pending"}


@pytest.mark.parametrize("fault", ["drop", "hang", 500, 504])
@pytest.mark.parametrize("deed", DEEDS)
async def test_a_lost_answer_to_what_was_done_is_settled(
    server: FakeApiServer, releaser: Releaser, deed: str, fault: int | str
) -> None:
    uid = server.put_pod("p", spec=GATED)
    server.after_write[PARTS[deed]] = fault
    begun = time.monotonic()
    result, detail = await do(releaser, deed, uid)
    assert result is Result.DONE
    assert detail
    assert time.monotonic() - begun < 1.5


@pytest.mark.parametrize("fault", ["drop", "hang", 500, 503])
@pytest.mark.parametrize("deed", DEEDS)
async def test_a_lost_answer_to_what_is_not_to_be_seen_stays_unknown(
    server: FakeApiServer, releaser: Releaser, deed: str, fault: int | str
) -> None:
    uid = server.put_pod("p", spec=GATED)
    server.before_write[PARTS[deed]] = fault
    assert (await do(releaser, deed, uid)).result is Result.UNKNOWN
    assert not is_done(server.pod("p"), deed)


@pytest.mark.parametrize("deed", DEEDS)
async def test_a_lost_answer_that_cannot_be_asked_about_stays_unknown(
    server: FakeApiServer, releaser: Releaser, deed: str
) -> None:
    uid = server.put_pod("p", spec={**GATED, "priority": "unreadable"})
    server.after_write[PARTS[deed]] = "drop"
    result, detail = await do(releaser, deed, uid)
    assert result is Result.UNKNOWN
    assert "cannot be read" in detail


@pytest.mark.parametrize("status", [400, 403, 409, 422, 429])
@pytest.mark.parametrize("deed", DEEDS)
async def test_what_the_server_rejects_is_refused_with_its_message(
    server: FakeApiServer, releaser: Releaser, deed: str, status: int
) -> None:
    uid = server.put_pod("p", spec=GATED)
    server.before_write[PARTS[deed]] = status
    refused = await do(releaser, deed, uid)
    assert refused == Written(Result.REFUSED, f"The API server answered {status}: injected.")
    assert not is_done(server.pod("p"), deed)


@pytest.mark.parametrize("deed", DEEDS)
async def test_another_pod_of_the_same_name_is_left_alone(
    server: FakeApiServer, releaser: Releaser, deed: str
) -> None:
    uid = server.put_pod("p", spec=GATED)
    server.delete("pods", "default/p")
    successor = server.put_pod("p", spec=GATED)
    before = server.pod("p")
    result, detail = await do(releaser, deed, uid)
    assert result is Result.GONE
    assert successor in detail
    assert server.pod("p") == before


@pytest.mark.parametrize("deed", DEEDS)
async def test_a_pod_that_is_gone_is_said_to_be(releaser: Releaser, deed: str) -> None:
    result, detail = await do(releaser, deed, "u")
    assert result is Result.GONE
    assert "Pod default/p is gone." in detail


@pytest.mark.parametrize("deed", DEEDS)
async def test_what_never_left_is_refused(server: FakeApiServer, releaser: Releaser, deed: str) -> None:
    uid = server.put_pod("p", spec=GATED)
    await server.stop()
    result, detail = await do(releaser, deed, uid)
    assert result is Result.REFUSED
    assert "not reached" in detail
    await server.start()


async def test_a_refused_eviction_leaves_no_word_of_it_on_the_pod(
    server: FakeApiServer, releaser: Releaser
) -> None:
    uid = server.put_pod("p", metadata={"annotations": {"mine": "kept"}})
    server.exhausted = True
    result, detail = await do(releaser, "evict", uid)
    assert result is Result.REFUSED
    assert "disruption budget" in detail
    assert server.pod("p")["metadata"]["annotations"] == {"mine": "kept"}


@pytest.mark.parametrize("fault", [403, 500, "drop"])
async def test_a_victim_that_cannot_be_told_why_is_not_evicted(
    server: FakeApiServer, releaser: Releaser, fault: int | str
) -> None:
    uid = server.put_pod("p")
    server.before_write["p"] = fault
    result, detail = await do(releaser, "evict", uid)
    assert result is Result.REFUSED
    assert "annotation was not written" in detail
    assert not is_done(server.pod("p"), "evict")


async def test_the_status_of_a_policy_is_merged_and_its_loss_is_unknown(
    server: FakeApiServer, releaser: Releaser
) -> None:
    content = {
        "metadata": {"name": "fair"},
        "spec": {"tenants": []},
        "status": {"kept": 1, "tenants": [1, 2]},
    }
    server.put("fairnesspolicies", "fair", content)
    assert await releaser.write_status("fair", {"tenants": [3]}) == Written(Result.DONE)
    stored = server.read("fairnesspolicies", "fair")
    assert (stored["spec"], stored["status"]) == ({"tenants": []}, {"kept": 1, "tenants": [3]})
    gone = await releaser.write_status("other", {})
    assert gone == Written(Result.GONE, "FairnessPolicy other is gone.")
    for fault, result in (("drop", Result.UNKNOWN), (503, Result.UNKNOWN), (422, Result.REFUSED)):
        server.before_write["status"] = fault
        assert (await releaser.write_status("fair", {})).result is result


async def test_a_status_that_never_left_is_refused(server: FakeApiServer, releaser: Releaser) -> None:
    await server.stop()
    assert (await releaser.write_status("fair", {})).result is Result.REFUSED
    await server.start()
