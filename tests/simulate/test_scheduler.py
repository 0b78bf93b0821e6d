"""The stand-in for kube-scheduler: what it sends is what the real one sends, and it reads answers as that one does."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from extender.cluster.events import Event
from extender.schedulerconfig import WEIGHT
from extender.simulate.clock import Clock
from extender.simulate.cluster import EmbeddedCluster
from extender.simulate.scheduler import Bound, PlayError, Scheduler, Unschedulable, Vetoed


class Extender:
    """An extender that answers as told, and keeps what it was asked."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = answers
        self.asked: list[tuple[str, Any]] = []
        self.content_types: set[str] = set()

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append((request.path, json.loads(await request.read())))
        self.content_types.add(request.headers["Content-Type"])
        answer = self.answers[request.path]
        if isinstance(answer, int):
            return web.Response(status=answer)
        return web.Response(text=answer if isinstance(answer, str) else json.dumps(answer))


def cluster(*nodes: str) -> EmbeddedCluster:
    events: list[Event] = []
    made = EmbeddedCluster(events.append, Clock())
    for name in nodes:
        made.add_node(name, {}, {"cpu": 8, "memory": "8Gi", "nvidia.com/gpu": 2 if name != "cpu" else 0})
    return made


@asynccontextmanager
async def scheduler(extender: Extender, nodes: EmbeddedCluster) -> AsyncIterator[Scheduler]:
    app = web.Application()
    app.router.add_post("/{verb}", extender.answer)
    async with TestServer(app) as server, aiohttp.ClientSession(server.make_url("/")) as session:
        yield Scheduler(session, nodes)


async def nothing(node: str) -> None: ...


async def test_the_three_verbs_are_asked_in_turn_in_the_shape_of_the_protocol() -> None:
    nodes = cluster("a", "b", "c", "cpu")
    pod = nodes.create("team", "train", {"cpu": "1", "nvidia.com/gpu": 1}, {"x": "y"}, "fair-quota")
    before: list[str] = []

    async def before_bind(node: str) -> None:
        before.append(node)

    extender = Extender(
        {
            "/filter": {"Nodes": None, "NodeNames": ["c", "b"], "FailedNodes": {}, "Error": ""},
            "/prioritize": [
                {"Host": "b", "Score": 7},
                {"Host": "c", "Score": 10},
                {"Host": "z", "Score": 10},
            ],
            "/bind": {"Error": ""},
        }
    )
    async with scheduler(extender, nodes) as stand_in:
        assert await stand_in.schedule(pod, before_bind) == Bound(
            "c", 3, {"b": 7 * WEIGHT * 10, "c": 10 * WEIGHT * 10}
        )
    assert before == ["c"]
    assert extender.content_types == {"application/json"}
    uid = pod["metadata"]["uid"]
    amounts = {"cpu": "1", "nvidia.com/gpu": "1"}
    sent = {
        "metadata": {
            "name": "train",
            "namespace": "team",
            "uid": uid,
            "creationTimestamp": pod["metadata"]["creationTimestamp"],
            "annotations": {"x": "y"},
        },
        "spec": {
            "schedulerName": "fair-quota",
            "containers": [{"name": "main", "resources": {"requests": amounts, "limits": amounts}}],
        },
        "status": {"phase": "Pending"},
    }
    assert extender.asked == [
        ("/filter", {"Pod": sent, "Nodes": None, "NodeNames": ["a", "b", "c"]}),
        ("/prioritize", {"Pod": sent, "Nodes": None, "NodeNames": ["c", "b"]}),
        ("/bind", {"PodName": "train", "PodNamespace": "team", "PodUID": uid, "Node": "c"}),
    ]


async def nominated(nodes: EmbeddedCluster, node: str) -> dict[str, Any]:
    """A new pod that kvitej has nominated for the node."""
    pod = nodes.create("team", "train", {"nvidia.com/gpu": 2}, {}, "fair-quota")
    assert (await nodes.nominate("team", "train", pod["metadata"]["uid"], node)).done
    return pod


async def test_a_nominated_node_is_tried_alone_and_no_other_is_asked_about() -> None:
    nodes = cluster("a", "b")
    pod = await nominated(nodes, "b")
    extender = Extender({"/filter": {"NodeNames": ["b"]}, "/bind": {}})
    async with scheduler(extender, nodes) as stand_in:
        assert await stand_in.schedule(pod, nothing) == Bound("b", 1, {}, nominated=True)
    assert [(verb, body.get("NodeNames")) for verb, body in extender.asked] == [
        ("/filter", ["b"]),
        ("/bind", None),
    ]


@pytest.mark.parametrize("taken", [True, False])
async def test_where_the_nominated_node_does_not_hold_all_are_searched_and_the_nomination_ends(
    taken: bool,
) -> None:
    nodes = cluster("a", "b")
    pod = await nominated(nodes, "b")
    if taken:
        other = nodes.create("team", "taker", {"nvidia.com/gpu": 2}, {}, "other")
        await nodes.bind(
            namespace="team", name="taker", uid=other["metadata"]["uid"], node="b", annotations={}
        )
    extender = Extender({"/filter": {"NodeNames": [], "FailedNodes": {"a": "not its turn"}}})
    async with scheduler(extender, nodes) as stand_in:
        assert isinstance(await stand_in.schedule(pod, nothing), Unschedulable)
    asked = [body["NodeNames"] for _, body in extender.asked]
    assert asked == ([["a"]] if taken else [["b"], ["a", "b"]])
    assert "nominatedNodeName" not in pod["status"]
    assert pod["status"]["conditions"] == [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    ]


async def test_a_single_node_is_not_graded_and_a_veto_is_told() -> None:
    nodes = cluster("a", "b")
    pod = nodes.create("team", "train", {"nvidia.com/gpu": 2}, {}, "fair-quota")
    extender = Extender({"/filter": {"NodeNames": ["b"]}, "/bind": {"Error": "taken"}})
    async with scheduler(extender, nodes) as stand_in:
        assert await stand_in.schedule(pod, nothing) == Vetoed("b", "taken")
    assert [verb for verb, _ in extender.asked] == ["/filter", "/bind"]


async def test_equal_scores_go_by_name() -> None:
    nodes = cluster("b", "a")
    pod = nodes.create("team", "train", {"nvidia.com/gpu": 1}, {}, "fair-quota")
    grades = [{"Host": "b", "Score": 10}, {"Host": "a", "Score": 10}]
    extender = Extender({"/filter": {"NodeNames": ["b", "a"]}, "/prioritize": grades, "/bind": {}})
    async with scheduler(extender, nodes) as stand_in:
        decided = await stand_in.schedule(pod, nothing)
    assert isinstance(decided, Bound)
    assert decided.node == "a"


async def test_nodes_without_room_are_never_sent_and_reasons_are_counted() -> None:
    nodes = cluster("a", "b", "c")
    taker = nodes.create("team", "taker", {"nvidia.com/gpu": 2}, {}, "other")
    await nodes.bind(namespace="team", name="taker", uid=taker["metadata"]["uid"], node="a", annotations={})
    pod = nodes.create("team", "train", {"nvidia.com/gpu": 1}, {}, "fair-quota")
    large = nodes.create("team", "large", {"cpu": 9, "nvidia.com/gpu": 3}, {}, "fair-quota")
    reasons = {"FailedNodes": {"b": "taken"}, "FailedAndUnresolvableNodes": {"c": "too small"}}
    extender = Extender({"/filter": {"NodeNames": [], **reasons}})
    async with scheduler(extender, nodes) as stand_in:
        assert await stand_in.schedule(pod, nothing) == Unschedulable(
            3, {"Insufficient nvidia.com/gpu": 1}, {"taken": 1, "too small": 1}
        )
        assert await stand_in.schedule(large, nothing) == Unschedulable(
            3, {"Insufficient cpu": 3, "Insufficient nvidia.com/gpu": 3}, {}
        )
    assert [body["NodeNames"] for _, body in extender.asked] == [["b", "c"]]


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (500, "/filter answered with status 500."),
        ("nonsense", "/filter did not answer as it should: JSON is malformed"),
        ({"NodeNames": 5}, "/filter did not answer as it should: Expected `array | null`, got `int`"),
        ({"Error": "the book is stale"}, "/filter failed: the book is stale"),
    ],
)
async def test_an_extender_that_fails_ends_the_play_with_a_sentence(answer: object, sentence: str) -> None:
    nodes = cluster("a")
    pod = nodes.create("team", "train", {"nvidia.com/gpu": 1}, {}, "fair-quota")
    async with scheduler(Extender({"/filter": answer}), nodes) as stand_in:
        with pytest.raises(PlayError) as error:
            await stand_in.schedule(pod, nothing)
    assert str(error.value).startswith(sentence)
