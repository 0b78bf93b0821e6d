"""Bindings and their outcomes: what is certain is said, what is not stays unknown."""

import time
from typing import Any

import pytest

from extender.cluster.events import BindResult, Outcome
from extender.kube.client import ApiError, Client
from extender.kube.writer import RETRY_ANNOTATION, Writer
from tests.fakes.apiserver import FakeApiServer

DEVICES = {"kvitej.io/devices": '{"main":{"gpu":[0]}}'}


@pytest.fixture
def writer(client: Client) -> Writer:
    return Writer(client, timeout=0.9)


async def bind(writer: Writer, uid: str, *, name: str = "p", node: str = "n1") -> BindResult:
    return await writer.bind(namespace="default", name=name, uid=uid, node=node, annotations=DEVICES)


async def test_a_binding_seats_the_pod_and_writes_our_record_beside_other_annotations(
    server: FakeApiServer, writer: Writer
) -> None:
    uid = server.put_pod("p", metadata={"annotations": {"mine": "kept"}})
    assert await bind(writer, uid) == BindResult(Outcome.BOUND, "")
    pod = server.pod("p")
    assert pod["spec"]["nodeName"] == "n1"
    assert pod["metadata"]["annotations"] == {"mine": "kept", **DEVICES}


@pytest.mark.parametrize("fault", ["drop", "hang", 500, 504])
async def test_a_lost_answer_to_a_binding_that_was_done_is_settled_as_bound(
    server: FakeApiServer, writer: Writer, fault: int | str
) -> None:
    uid = server.put_pod("p")
    server.after_binding = fault
    begun = time.monotonic()
    result = await bind(writer, uid)
    assert result.outcome is Outcome.BOUND
    assert "n1" in result.detail
    assert time.monotonic() - begun < 1.5


@pytest.mark.parametrize("fault", ["drop", "hang", 500, 503])
async def test_a_lost_answer_to_a_binding_that_is_not_to_be_seen_stays_unknown(
    server: FakeApiServer, writer: Writer, fault: int | str
) -> None:
    uid = server.put_pod("p")
    server.before_binding = fault
    assert (await bind(writer, uid)).outcome is Outcome.UNKNOWN


async def test_a_lost_answer_that_cannot_be_asked_about_stays_unknown(
    server: FakeApiServer, writer: Writer
) -> None:
    uid = server.put_pod("p")
    server.pause()
    assert (await bind(writer, uid)).outcome is Outcome.UNKNOWN
    server.resume()


async def test_a_pod_that_is_bound_to_the_same_node_already_counts_as_bound(
    server: FakeApiServer, writer: Writer
) -> None:
    uid = server.put_pod("p", spec={"nodeName": "n1"})
    assert (await bind(writer, uid)).outcome is Outcome.BOUND


CONFLICTS: dict[str, dict[str, Any]] = {
    "already bound to n2": {"spec": {"nodeName": "n2"}},
    "schedulingGates": {"spec": {"schedulingGates": [{"name": "other.io/gate"}]}},
    "being deleted": {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}},
}


@pytest.mark.parametrize("reason", CONFLICTS)
async def test_a_conflict_is_refused_with_its_reason(
    server: FakeApiServer, writer: Writer, reason: str
) -> None:
    uid = server.put_pod("p", **CONFLICTS[reason])
    outcome, detail = await bind(writer, uid)
    assert outcome is Outcome.REFUSED
    assert reason in detail


async def test_another_pod_of_the_same_name_is_never_bound(server: FakeApiServer, writer: Writer) -> None:
    uid = server.put_pod("p")
    server.delete("pods", "default/p")
    successor = server.put_pod("p")
    outcome, detail = await bind(writer, uid)
    assert outcome is Outcome.REFUSED
    assert successor in detail
    assert "nodeName" not in server.pod("p")["spec"]


async def test_a_conflict_that_cannot_be_looked_into_stays_unknown(
    server: FakeApiServer, writer: Writer
) -> None:
    uid = server.put_pod("p", metadata={"labels": 5}, spec={"nodeName": "n1"})
    assert (await bind(writer, uid)).outcome is Outcome.UNKNOWN


async def test_a_pod_that_is_gone_is_refused(writer: Writer) -> None:
    assert await bind(writer, "u") == BindResult(Outcome.REFUSED, "Pod default/p is gone.")


@pytest.mark.parametrize("status", [400, 403, 422, 429])
async def test_what_the_server_rejects_is_refused_with_its_message(
    server: FakeApiServer, writer: Writer, status: int
) -> None:
    uid = server.put_pod("p")
    server.before_binding = status
    assert await bind(writer, uid) == BindResult(
        Outcome.REFUSED, f"The API server answered {status}: injected."
    )


async def test_a_binding_that_never_left_is_refused(server: FakeApiServer, writer: Writer) -> None:
    uid = server.put_pod("p")
    await server.stop()
    outcome, detail = await bind(writer, uid)
    assert outcome is Outcome.REFUSED
    assert "not reached" in detail
    await server.start()


async def test_names_cannot_leave_their_place_in_the_path(server: FakeApiServer, writer: Writer) -> None:
    assert (await bind(writer, "u", name="p/../../nodes/n?x")).outcome is Outcome.REFUSED
    assert server.requests[-1][1] == "/api/v1/namespaces/default/pods/p%2F..%2F..%2Fnodes%2Fn%3Fx/binding"


async def test_reading_tells_the_pod_its_absence_and_trouble_apart(
    server: FakeApiServer, writer: Writer
) -> None:
    uid = server.put_pod("p", spec={"nodeName": "n1"})
    pod = await writer.read("default", "p")
    assert pod is not None
    assert pod.spec is not None
    assert (pod.metadata.uid, pod.spec.node_name) == (uid, "n1")
    assert await writer.read("default", "other") is None
    server.refuse = 500
    with pytest.raises(ApiError, match="500"):
        await writer.read("default", "p")


async def test_a_nudge_changes_the_pod_each_time_and_nothing_but_our_annotation(
    server: FakeApiServer, writer: Writer
) -> None:
    uid = server.put_pod("p", metadata={"annotations": {"mine": "kept"}})
    values = []
    for _ in range(2):
        assert await writer.nudge("default", "p", uid)
        annotations = server.pod("p")["metadata"]["annotations"]
        assert annotations["mine"] == "kept"
        values.append(annotations[RETRY_ANNOTATION])
    assert values[0] != values[1]
    assert server.pod("p")["spec"]["containers"]


async def test_a_nudge_for_a_pod_that_is_gone_or_another_says_so(
    server: FakeApiServer, writer: Writer
) -> None:
    server.put_pod("p")
    assert not await writer.nudge("default", "p", "another uid")
    assert not await writer.nudge("default", "gone", "u")
    assert "annotations" not in server.pod("p")["metadata"]
