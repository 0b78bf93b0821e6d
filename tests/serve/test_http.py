"""The verbs over real HTTP, from the bytes of Go's encoder to answers that kube-scheduler can read."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from structlog.testing import capture_logs

from extender import __version__
from extender.cluster.events import PodSeen
from extender.config import from_mapping
from extender.decide.reasons import SENTENCES
from extender.serve.app import operations, verbs
from extender.serve.listening import listening
from tests.builders import (
    GPU,
    SHARED,
    binding_body,
    filter_body,
    node,
    pod,
    preemption_body,
    raw_pod,
    record_of,
)
from tests.serve.doors import Doors

DATA = Path(__file__).parents[1] / "data" / "wire"
VERBS = ("filter", "prioritize", "preempt", "bind")


class Served:
    """Doors behind a listener; answers come as (status, decoded JSON or text)."""

    def __init__(self, doors: Doors, at: str, session: aiohttp.ClientSession) -> None:
        self.doors, self.at, self.session = doors, at, session

    async def post(self, verb: str, body: bytes, **options: Any) -> tuple[int, Any]:
        async with self.session.post(f"{self.at}/{verb}", data=body, **options) as answer:
            text = await answer.text()
            return answer.status, json.loads(text) if answer.content_type == "application/json" else text


async def serving(doors: Doors) -> AsyncIterator[Served]:
    app = verbs(doors.place, doors.seat, doors.config)
    async with listening(app, "127.0.0.1", 0) as at, aiohttp.ClientSession() as session:
        yield Served(doors, at, session)
    doors.state.check()


def eight(name: str, **parts: Any) -> Any:
    return node(name, {GPU: "8"}, **parts)


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async for made in serving(Doors(eight("n0"), eight("n1"), node("n2", {GPU: "1"}))):
        yield made


@pytest.fixture
async def narrow() -> AsyncIterator[Served]:
    """Takes one request at a time, of at most 64 KiB."""
    config = from_mapping({"server": {"inFlight": 1, "maxBody": "64Ki"}})
    async for made in serving(Doors(eight("n0"), config=config)):
        yield made


ONE = raw_pod("p", {GPU: "1"})


# what Go sends


@pytest.fixture
async def go() -> AsyncIterator[Served]:
    """gpu-1 has what the pod of the recorded requests asks for: 8 GPUs and 3,000 shares of 16 GiB."""
    # 3,000 shares at 100 per card are 30 cards, and 8 whole ones: 38 of 64, if a card has 100 · 16 GiB.
    large = node("gpu-1", {GPU: "64", SHARED: "6400"}, memory=100 * 16 * 1024)
    async for made in serving(Doors(eight("gpu-0"), large)):
        yield made


async def test_filter_and_prioritize_of_go(go: Served) -> None:
    body = (DATA / "filter-args.json").read_bytes()
    assert await go.post("filter", body) == (
        200,
        {
            "Nodes": None,
            "NodeNames": ["gpu-1"],
            "FailedNodes": {},
            "FailedAndUnresolvableNodes": {},
            "Error": "",
        },
    )
    status, grades = await go.post("prioritize", body)
    assert status == 200
    assert grades == [{"Host": "gpu-1", "Score": 10}]
    assert go.doors.state.snapshot().claims.keys() == {"6f1d2f4e-0000-4000-8000-000000000001"}


async def test_filter_of_go_with_whole_nodes_names_the_setting(go: Served) -> None:
    status, answer = await go.post("filter", (DATA / "filter-args-nodes.json").read_bytes())
    assert status == 200
    assert "nodeCacheCapable: true" in answer["Error"]


async def test_bind_of_go(go: Served) -> None:
    body = json.loads((DATA / "filter-args.json").read_bytes())
    go.doors.see(body["Pod"])
    assert await go.post("bind", (DATA / "binding-args.json").read_bytes()) == (200, {"Error": ""})
    record = json.loads(go.doors.record("train-0") or "")
    assert record["containers"].keys() == {"warm", "main", "side"}
    assert (record["containers"]["warm"]["gpu"], len(record["containers"]["side"]["shared"])) == (
        [0, 1],
        3000,
    )


@pytest.mark.parametrize("recorded", ["preemption-args-meta.json", "preemption-args-full.json"])
async def test_preempt_of_go(go: Served, recorded: str) -> None:
    # u-1 and u-2 hold all of gpu-1: it is answered although it came without victims; gpu-0 can't ever help.
    for uid, count in (("u-1", 40), ("u-2", 24)):
        go.doors.state.apply(PodSeen(pod(uid, {GPU: str(count)}, uid=uid, at="gpu-1")))
    status, answer = await go.post("preempt", (DATA / recorded).read_bytes())
    # Smaller first: without u-2 (24 cards) 24 are free, with u-1 (40) gone 40 are: 8 + 30 = 38 need u-1 only.
    assert status == 200
    assert answer == {"NodeNameToMetaVictims": {"gpu-1": {"Pods": [{"UID": "u-1"}], "NumPDBViolations": 0}}}


async def test_answers_are_json_and_said_to_be(served: Served) -> None:
    async with served.session.post(f"{served.at}/filter", data=filter_body(ONE, ["n0"])) as answer:
        assert answer.headers["Content-Type"] == "application/json"


# answers


async def test_filter_keeps_best_first_and_claims_the_best(served: Served) -> None:
    status, answer = await served.post("filter", filter_body(ONE, ["n0", "n1", "n2"]))
    assert (status, answer["NodeNames"][0], sorted(answer["NodeNames"])) == (200, "n2", ["n0", "n1", "n2"])
    assert served.doors.state.snapshot().claims["uid-p"].node == "n2"
    assert served.doors.counted("filter", "kept") == 1


async def test_filter_that_keeps_none_says_why_for_each(served: Served) -> None:
    served.doors.state.apply(PodSeen(pod("foreign", {GPU: "8"}, at="n0")))
    asking = raw_pod("p", {GPU: "8"})
    status, answer = await served.post("filter", filter_body(asking, ["n0", "n2", "who", 'odd "n\\ame"']))
    assert (status, answer["NodeNames"], answer["Error"]) == (200, [], "")
    assert {name: SENTENCES_BY_TEXT[text] for name, text in answer["FailedNodes"].items()} == {
        "n0": "taken",
        "who": "unknown",
        'odd "n\\ame"': "unknown",
    }
    assert {n: SENTENCES_BY_TEXT[t] for n, t in answer["FailedAndUnresolvableNodes"].items()} == {
        "n2": "lacking"
    }
    assert served.doors.counted("filter", "refused") == 1
    assert not served.doors.state.snapshot().claims


SENTENCES_BY_TEXT = {SENTENCES[5]: "taken", SENTENCES[4]: "lacking", SENTENCES[2]: "unknown"}


async def test_names_that_the_book_does_not_know_are_left_out_while_one_is_kept(served: Served) -> None:
    _, answer = await served.post("filter", filter_body(ONE, ["who", "n0", "whoelse"]))
    assert (answer["NodeNames"], answer["FailedNodes"]) == (["n0"], {})
    status, grades = await served.post("prioritize", filter_body(ONE, ["who", "n0"]))
    assert (status, grades) == (200, [{"Host": "n0", "Score": 10}])


async def test_a_request_that_cannot_be_read_is_refused_everywhere_with_its_path(served: Served) -> None:
    asking = raw_pod("p", {GPU: "1"}, memory="5 GB")
    status, answer = await served.post("filter", filter_body(asking, ["n0", "who"]))
    assert (status, answer["NodeNames"], answer["FailedNodes"]) == (200, [], {})
    assert answer["FailedAndUnresolvableNodes"].keys() == {"n0", "who"}
    assert all("kvitej.io/gpu-memory" in text for text in answer["FailedAndUnresolvableNodes"].values())
    status, text = await served.post("prioritize", filter_body(asking, ["n0"]))
    assert status == 400
    assert "kvitej.io/gpu-memory" in text


async def test_a_pod_that_asks_for_no_device_may_go_anywhere(served: Served) -> None:
    asking = raw_pod("p", {"cpu": "1"})
    _, answer = await served.post("filter", filter_body(asking, ["who", "n0"]))
    assert answer["NodeNames"] == ["who", "n0"]
    assert not served.doors.state.snapshot().claims


async def test_a_pod_without_gpu_is_sent_where_it_strands_none() -> None:
    doors = Doors(node("gpus", {GPU: "8"}), node("plain"))
    asking = raw_pod("p", {"cpu": "40"})
    grades = json.loads(doors.place.prioritize(filter_body(asking, ["gpus", "plain"])))
    assert grades == [{"Host": "plain", "Score": 10}]
    assert not doors.state.snapshot().claims


async def test_preempt_over_http(served: Served) -> None:
    served.doors.state.apply(PodSeen(pod("victim", {GPU: "1"}, at="n2", record=record_of(gpu=(0,)))))
    raw = raw_pod("p", {GPU: "1"}, priority=10)
    status, answer = await served.post("preempt", preemption_body(raw, {"n2": ["uid-victim"], "who": ["x"]}))
    victims = {"n2": {"Pods": [{"UID": "uid-victim"}], "NumPDBViolations": 0}}
    assert (status, answer) == (200, {"NodeNameToMetaVictims": victims})


async def test_bind_twice_is_bound_once(served: Served) -> None:
    served.doors.see(raw_pod("p", {GPU: "1"}))
    body = binding_body(ONE, "n0")
    assert await served.post("bind", body) == (200, {"Error": ""})
    assert await served.post("bind", body) == (200, {"Error": ""})
    assert served.doors.server.writes == [("p", "n0")]


# what is not allowed


async def test_a_book_that_is_not_synced_is_an_error_for_the_scheduler(served: Served) -> None:
    served.doors.unfit = "kvitej's book is not synced yet"
    served.doors.see(raw_pod("p", {GPU: "1"}))
    bodies = {
        "filter": filter_body(ONE, ["n0"]),
        "bind": binding_body(ONE, "n0"),
        "prioritize": filter_body(ONE, ["n0"]),
        "preempt": preemption_body(ONE, {"n0": ["x"]}),
    }
    for verb, body in bodies.items():
        status, answer = await served.post(verb, body)
        if verb in ("filter", "bind"):
            assert (status, answer["Error"]) == (200, served.doors.unfit)
        else:
            assert (status, answer) == (400, served.doors.unfit + "\n")
        assert served.doors.counted(verb, "error") == 1


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'{"Pod":1}', b"\xff\xfe", b"x" * 1000])
async def test_bodies_that_are_no_requests_get_a_sentence(served: Served, body: bytes) -> None:
    with capture_logs() as lines:
        for verb in VERBS:
            status, answer = await served.post(verb, body)
            if verb in ("filter", "bind"):
                assert status == 200
                assert answer["Error"]
            else:
                assert status == 400
                assert answer.strip()
    assert not [line for line in lines if line["log_level"] == "error"]


async def test_a_pod_without_uid_cannot_be_told_from_others(served: Served) -> None:
    asking = raw_pod("p", {GPU: "1"})
    asking["metadata"]["uid"] = ""
    _, answer = await served.post("filter", filter_body(asking, ["n0"]))
    assert "uid is missing" in answer["Error"]


async def test_a_body_that_is_too_long_names_the_limit(narrow: Served) -> None:
    body = filter_body(ONE, [f"node-{number}" for number in range(10_000)])
    status, answer = await narrow.post("filter", body)
    assert status == 200
    assert "server.maxBody" in answer["Error"]
    status, text = await narrow.post("prioritize", body)
    assert status == 413
    assert "server.maxBody" in text


async def test_more_requests_than_allowed_are_turned_away_at_once(narrow: Served) -> None:
    narrow.doors.see(raw_pod("p", {GPU: "1"}))
    narrow.doors.server.open.clear()
    running = asyncio.create_task(narrow.post("bind", binding_body(ONE, "n0")))
    while not narrow.doors.server.writes:
        await asyncio.sleep(0.001)
    status, answer = await narrow.post("filter", filter_body(ONE, ["n0"]))
    assert status == 200
    assert "server.inFlight" in answer["Error"]
    status, text = await narrow.post("prioritize", filter_body(ONE, ["n0"]))
    assert status == 503
    assert "server.inFlight" in text
    narrow.doors.server.open.set()
    assert await running == (200, {"Error": ""})
    assert (await narrow.post("filter", filter_body(ONE, ["n0"])))[1]["Error"] == ""


async def test_other_methods_and_paths_are_not_answered(served: Served) -> None:
    for verb in VERBS:
        async with served.session.get(f"{served.at}/{verb}") as answer:
            assert answer.status == 405
    for path in ("healthz", "metrics", "", "filter/", "unreserve"):
        async with served.session.post(f"{served.at}/{path}", data=b"{}") as answer:
            assert answer.status == 404


async def test_a_client_that_hangs_up_in_the_middle_is_no_bug(served: Served) -> None:
    host, port = served.at.removeprefix("http://").split(":")
    with capture_logs() as lines:
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
        await writer.drain()
        await asyncio.sleep(0.05)
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        writer.close()
        await asyncio.sleep(0.05)
        assert (await served.post("filter", filter_body(ONE, ["n0"])))[0] == 200
    assert not [line for line in lines if line["log_level"] == "error"]


@pytest.mark.parametrize(
    ("header", "body"),
    [
        (b"Content-Encoding: gzip\r\nContent-Length: 11", b"no gzip, no"),
        (b"Transfer-Encoding: chunked", b"zzz\r\nnot a chunk\r\n"),
        (b"Content-Length: -5", b"{}"),
    ],
)
async def test_a_body_that_http_itself_cannot_read_is_refused_and_no_bug(
    served: Served, caplog: pytest.LogCaptureFixture, header: bytes, body: bytes
) -> None:
    host, port = served.at.removeprefix("http://").split(":")
    with capture_logs() as lines:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /prioritize HTTP/1.1\r\nHost: x\r\n" + header + b"\r\n\r\n" + body)
        answer = await reader.read()
        writer.close()
        assert (await served.post("filter", filter_body(ONE, ["n0"])))[0] == 200
    assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.0 400"))
    assert not [line for line in lines if line["log_level"] == "error"]
    if b"gzip" in header:  # aiohttp itself logs what is no HTTP at all
        assert "Traceback" not in caplog.text


# the end


async def test_a_stop_finishes_the_binding_that_is_under_way() -> None:
    doors = Doors(eight("n0"))
    doors.see(raw_pod("p", {GPU: "1"}))
    doors.server.open.clear()
    async with aiohttp.ClientSession() as session:
        async with listening(verbs(doors.place, doors.seat, doors.config), "127.0.0.1", 0) as at:
            running = asyncio.create_task(Served(doors, at, session).post("bind", binding_body(ONE, "n0")))
            while not doors.server.writes:
                await asyncio.sleep(0.001)
            asyncio.get_running_loop().call_later(0.1, doors.server.open.set)
        assert await running == (200, {"Error": ""})
        with pytest.raises(aiohttp.ClientConnectionError):
            await session.get(at)
    assert doors.record("p") == record_of(gpu=(0,))


# health and metrics


async def test_health_readiness_version_and_metrics_are_on_a_listener_of_their_own() -> None:
    doors = Doors(eight("n0"), node("closed", {GPU: "x"}), node("n1", {"nvidia.com/odd": "1", SHARED: "2"}))
    doors.see(raw_pod("waits", {GPU: "1"}))
    doors.state.apply(PodSeen(pod("foreign", {SHARED: "1"}, at="n1")))
    doors.place.filter(filter_body(raw_pod("p", {GPU: "1"}), ["n0"]))
    async with (
        listening(operations(doors.book, doors.metrics), "127.0.0.1", 0) as at,
        aiohttp.ClientSession() as session,
    ):

        async def get(path: str) -> tuple[int, str]:
            async with session.get(at + path) as answer:
                return answer.status, await answer.text()

        assert await get("/healthz") == (200, "ok\n")
        assert await get("/readyz") == (200, "ok\n")
        assert msgspec.json.decode((await get("/version"))[1]) == {"version": __version__}
        doors.unfit = "the book is stale"
        assert await get("/readyz") == (503, "the book is stale\n")
        assert (await get("/healthz"))[0] == 200
        async with session.post(at + "/filter", data=b"{}") as answer:
            assert answer.status == 404
        lines = (await get("/metrics"))[1].splitlines()
    for expected in (
        "kvitej_nodes 3.0",
        "kvitej_nodes_closed 1.0",
        'kvitej_seats{phase="bound"} 1.0',
        'kvitej_seats{phase="uncertain"} 0.0',
        "kvitej_waiting_pods 1.0",
        "kvitej_soft_claims 1.0",
        "kvitej_pods_bound_past_us 1.0",
        "kvitej_pods_at_worst_case 1.0",
        'kvitej_pod_at_worst_case{namespace="team",node="n1",pod="foreign"} 1.0',
        'kvitej_nodes_with_unlisted_resource{resource="nvidia.com/odd"} 1.0',
        'kvitej_decisions_total{outcome="kept",verb="filter"} 1.0',
        'kvitej_decisions_total{outcome="vetoed",verb="bind"} 0.0',
        'kvitej_verb_seconds_count{verb="filter"} 1.0',
        'kvitej_watch_lag_seconds{resource="pods"} 0.5',
        'kvitej_watch_gone_total{resource="pods"} 2.0',
    ):
        assert expected in lines
    ours = {line.split()[2] for line in lines if line.startswith("# TYPE kvitej_")}
    helped = {
        line.split()[2] for line in lines if line.startswith("# HELP kvitej_") and len(line.split()) > 3
    }
    assert ours == helped


async def test_explain_answers_by_name_and_by_manifest() -> None:
    doors = Doors(eight("n0"), eight("n1"))
    doors.see(raw_pod("waits", {GPU: "2"}))
    doors.state.apply(PodSeen(pod("sits", {GPU: "1"}, at="n1", record=record_of(gpu=(0,)))))
    async with (
        listening(operations(doors.book, doors.metrics), "127.0.0.1", 0) as at,
        aiohttp.ClientSession() as session,
    ):

        async def ask(query: str, manifest: bytes | None = None) -> tuple[int, str]:
            asking = session.get if manifest is None else session.post
            async with asking(f"{at}/explain{query}", data=manifest) as answer:
                return answer.status, await answer.text()

        status, text = await ask("?pod=team/waits")
        assert (status, text.splitlines()[0]) == (200, "pod team/waits")
        assert "n1: rank 1, score " in text
        assert "is bound on n1, which records " in (await ask("?pod=team/sits"))[1]
        assert "no GPU pod default/ghost" in (await ask("?pod=ghost"))[1]
        manifest = json.dumps(raw_pod("new", {GPU: "9"})).encode()
        assert "fits on 0 of 2 nodes" in (await ask("?", manifest))[1]
        assert await ask("?node=n9", manifest) == (400, "kvitej knows no node 'n9'\n")
        assert (await ask("?", b"[]"))[0] == 400
        assert (await ask("?", json.dumps(raw_pod("new", {GPU: "many"})).encode()))[0] == 400
