"""Every option of the configuration changes what it says it changes."""

import asyncio
import json
import logging
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import aiohttp
import numpy as np
import pytest
import structlog
import yaml

from extender import log
from extender.cluster.events import Elapsed, PodSeen
from extender.cluster.reports import Beat
from extender.cluster.request import request_of
from extender.config import Config, from_mapping
from extender.decide.filter import filter_nodes
from extender.kube.client import connect
from extender.kube.writer import Writer
from extender.serve.app import verbs
from extender.serve.listening import listening
from extender.wire.objects import Node
from tests.builders import (
    GPU,
    binding_body,
    filter_body,
    node,
    pod,
    preemption_body,
    raw_pod,
    read_pod,
    record_of,
)
from tests.fakes.apiserver import FakeApiServer
from tests.reports import card, report
from tests.serve.doors import Doors
from tests.serve.reviews import RECORDED, Served, response, review

ONE = raw_pod("p", {GPU: "1"})


def configured(section: str, **keys: Any) -> Config:
    return from_mapping({section: keys})


def kept(doors: Doors) -> int:
    names = list(doors.state.snapshot().inventories)
    return len(json.loads(doors.place.filter(filter_body(ONE, names)))["NodeNames"])


def test_every_option_has_a_test_here() -> None:
    tested = {
        "filter.keep",
        "score.fragmentation",
        "score.mig",
        "score.topology",
        "score.shares",
        "claims.soft",
        "bind.timeout",
        "bind.in_flight",
        "preemption.protected_namespaces",
        "preemption.protected_priority",
        "server.max_body",
        "server.in_flight",
        "watch.stale_after",
        "wake.delay",
        "admission.schedulers",
        "admission.writers",
        "cards.watermark",
        "cards.foreign",
        "cards.stale_after",
        "cards.stale",
        "log.level",
        "log.format",
    }
    config = Config()
    assert tested == {
        f"{section}.{key}"
        for section in config.__struct_fields__
        if section != "agent"  # tests/agent/test_run.py
        for key in getattr(config, section).__struct_fields__
    }


def test_filter_keep_is_how_many_nodes_are_answered() -> None:
    nodes = [node(f"n{number}", {GPU: "1"}) for number in range(150)]
    assert kept(Doors(*nodes)) == 100
    assert kept(Doors(*nodes, config=configured("filter", keep=3))) == 3


H100 = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.count": "1"}
SLICE = "nvidia.com/mig-1g.10gb"
BRIDGE = "\tGPU0\tGPU1\nGPU0\t X \tNV4\nGPU1\tNV4\t X \n"


def best(asks: dict[str, str], config: Config, *nodes: Node) -> str:
    doors = Doors(*nodes, config=config)
    answer = doors.place.filter(filter_body(raw_pod("p", asks), [seen.metadata.name for seen in nodes]))
    return str(json.loads(answer)["NodeNames"][0])


@pytest.mark.parametrize(
    ("scale", "asks", "better", "other"),
    [
        pytest.param(
            "fragmentation",
            {GPU: "1"},
            node("small", {GPU: "1"}),
            node("large", {GPU: "8"}),
            id="a job of one card leaves eight together",
        ),
        pytest.param(
            "mig",
            {SLICE: "1"},
            node("full", {SLICE: "2"}),
            node("free", {SLICE: "7"}),
            id="the node with fewer instances left is filled",
        ),
        pytest.param(
            "topology",
            {GPU: "2"},
            node("bridged", {GPU: "2"}, annotations={"kvitej.io/links": BRIDGE}),
            node("unknown", {GPU: "2"}),
            id="two cards with a bridge",
        ),
    ],
)
def test_a_scale_of_zero_switches_its_part_of_the_score_off(
    scale: str, asks: dict[str, str], better: Node, other: Node
) -> None:
    """With the part alone its node is best; without any, all nodes are alike."""
    only = {"fragmentation": 0, "mig": 0, "topology": 0}
    winner = better.metadata.name
    assert best(asks, configured("score", **{**only, scale: 1000}), better, other) == winner
    doors = Doors(better, other, config=configured("score", **only))
    doors.place.filter(filter_body(raw_pod("p", asks), [better.metadata.name, other.metadata.name]))
    assert {float(score) for kept in doors.state._outlook.judgements() for score in kept.scores} == {0.0}


@pytest.mark.parametrize(("borrowed", "better"), [(True, "whole"), (False, "pinned")])
def test_score_shares_sends_borrowed_work_where_it_can_be_given_back(borrowed: bool, better: str) -> None:
    off: dict[str, float] = {"fragmentation": 0, "mig": 0, "topology": 0}
    rows = np.arange(2, dtype=np.int32)
    for scale in (0, 1):
        doors = Doors(
            node("whole", {GPU: "4"}),
            node("pinned", {GPU: "4"}),
            config=configured("score", **off, shares=scale),
        )
        doors.state.apply(PodSeen(pod("sits", {GPU: "2"}, at="pinned", record=record_of(gpu=(0, 1)))))
        snapshot = doors.state.snapshot()
        found = filter_nodes(snapshot, "uid-p", request_of(read_pod(ONE)), rows, 2, borrowed)
        if scale:
            assert snapshot.index.name(int(found.kept[0])) == better
        else:
            assert found.scores.tolist() == [0.0, 0.0]


def test_claims_soft_is_how_long_a_node_stays_lower_for_others() -> None:
    doors = Doors(node("n0", {GPU: "1"}), config=configured("claims", soft="5s"))
    started = time.monotonic()
    kept(doors)
    claim = doors.state.snapshot().claims["uid-p"]
    assert 5.0 <= claim.until - started < 6.0
    doors.state.apply(Elapsed(claim.until - 0.1))
    assert doors.state.snapshot().claims
    doors.state.apply(Elapsed(claim.until))
    assert not doors.state.snapshot().claims


def test_claims_soft_of_zero_leaves_none() -> None:
    doors = Doors(node("n0", {GPU: "1"}), config=configured("claims", soft="0s"))
    assert kept(doors) == 1
    assert not doors.state.snapshot().claims


async def test_bind_in_flight_is_how_many_are_written_at_once() -> None:
    doors = Doors(node("n0", {GPU: "8"}), config=configured("bind", inFlight=2))
    pods = [raw_pod(f"p{number}", {GPU: "1"}) for number in range(5)]
    for raw in pods:
        doors.see(raw)
    doors.server.open.clear()
    running = [asyncio.create_task(doors.seat.bind(binding_body(raw, "n0"))) for raw in pods]
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(doors.server.writes) == 2
    doors.server.open.set()
    assert {json.loads(answer)["Error"] for answer in await asyncio.gather(*running)} == {""}
    assert len(doors.server.writes) == 5


@pytest.mark.parametrize(
    ("keys", "spared"),
    [
        ({}, "uid-system"),
        ({"protectedNamespaces": ["team"]}, "uid-team"),
        ({"protectedNamespaces": [], "protectedPriority": 5}, "uid-high"),
    ],
)
def test_preemption_options_say_who_is_spared(keys: dict[str, Any], spared: str) -> None:
    doors = Doors(node("n0", {GPU: "3"}), config=configured("preemption", **keys))
    sitting = [("system", "kube-system", 0), ("team", "team", 0), ("high", "other", 5)]
    for at, (name, namespace, priority) in enumerate(sitting):
        record = record_of(gpu=(at,))
        seen = pod(name, {GPU: "1"}, at="n0", namespace=namespace, priority=priority, record=record)
        doors.state.apply(PodSeen(seen))
    asking = raw_pod("p", {GPU: "2"}, priority=100)
    answer = json.loads(doors.place.preempt(preemption_body(asking, {"n0": []})))
    victims = {entry["UID"] for entry in answer["NodeNameToMetaVictims"]["n0"]["Pods"]}
    assert victims == {"uid-system", "uid-team", "uid-high"} - {spared}


@asynccontextmanager
async def posting(doors: Doors) -> AsyncIterator[Callable[[bytes], Any]]:
    async with (
        listening(verbs(doors.place, doors.seat, doors.config), "127.0.0.1", 0) as at,
        aiohttp.ClientSession() as session,
    ):

        async def post(body: bytes) -> tuple[int, str]:
            async with session.post(f"{at}/prioritize", data=body) as answer:
                return answer.status, await answer.text()

        yield post


async def test_server_max_body_is_the_longest_body_that_is_read() -> None:
    body = filter_body(ONE, [f"node-{number}" for number in range(10_000)])
    for limit, expected in (("64Ki", 413), ("1Mi", 200)):
        doors = Doors(node("n0", {GPU: "1"}), config=configured("server", maxBody=limit))
        async with posting(doors) as post:
            assert (await post(body))[0] == expected


async def test_server_in_flight_is_how_many_requests_are_in_work() -> None:
    for limit, expected in ((1, 503), (2, 200)):
        doors = Doors(node("n0", {GPU: "1"}), config=configured("server", inFlight=limit))
        doors.see(raw_pod("p", {GPU: "1"}))
        doors.server.open.clear()
        app = verbs(doors.place, doors.seat, doors.config)
        async with listening(app, "127.0.0.1", 0) as at, aiohttp.ClientSession() as session:
            running = asyncio.create_task(session.post(f"{at}/bind", data=binding_body(ONE, "n0")))
            while not doors.server.writes:
                await asyncio.sleep(0.001)
            async with session.post(f"{at}/prioritize", data=filter_body(ONE, ["n0"])) as answer:
                assert answer.status == expected
            doors.server.open.set()
            (await running).close()


def test_admission_schedulers_are_the_profiles_whose_pods_wait_in_line() -> None:
    for schedulers, waiting in ((["fair-quota", "batch"], 1), (["fair-quota"], 0)):
        served = Served(config=configured("admission", schedulers=schedulers))
        raw = raw_pod("p", {GPU: "1"}, namespace="training", spec={"schedulerName": "batch"})
        served.door.validate(review(RECORDED["validate"], object=raw))
        assert served.waiting == waiting


def test_admission_writers_may_write_what_only_kvitej_writes() -> None:
    served = Served(config=configured("admission", writers=["ops"]))
    for username, restored in (("ops", False), ("system:serviceaccount:kvitej:kvitej", True)):
        body = review(RECORDED["update"], userInfo={"username": username})
        assert ("patch" in response(served.door.mutate(body))) == restored


# options that only a real API server, or a fake one, brings to bear


@pytest.mark.parametrize(
    ("keys", "foreign", "silent", "taken"),
    [
        pytest.param({}, 0, 0, True, id="defaults"),
        pytest.param({"watermark": 50}, 0, 0, False, id="half of a card is not enough"),
        pytest.param({}, 2, 0, False, id="others use more than 1 GiB"),
        pytest.param({"foreign": "2Gi"}, 2, 0, True, id="others may use 2 GiB"),
        pytest.param({}, 0, 80, True, id="not stale yet"),
        pytest.param({"staleAfter": "60s"}, 0, 80, True, id="stale, and as good as before"),
        pytest.param({"staleAfter": "60s", "stale": "closed"}, 0, 80, False, id="stale, and closed"),
    ],
)
def test_cards_options_say_what_may_be_filled_and_for_how_long(
    keys: dict[str, Any], foreign: int, silent: float, taken: bool
) -> None:
    doors = Doors(node("n0", {GPU: "1"}), config=configured("cards", **keys))
    doors.state.apply(report(card(0, foreign=foreign), held={}))
    doors.state.apply(Beat("n0", 0.0))
    doors.state.apply(Elapsed(silent))
    answer = json.loads(doors.place.filter(filter_body(raw_pod("p", {GPU: "1"}, memory="60Gi"), ["n0"])))
    assert bool(answer["NodeNames"]) is taken


async def test_bind_timeout_is_how_long_a_write_may_take(tmp_path: Path) -> None:
    took = {}
    async with FakeApiServer() as server:
        server.put_node("n0")
        async with await connect(server.write_kubeconfig(tmp_path / "kubeconfig")) as client:
            for timeout in (0.1, 0.6):
                uid = server.put_pod("p")
                server.before_binding = "hang"
                started = time.monotonic()
                result = await Writer(client, timeout).bind(
                    namespace="default", name="p", uid=uid, node="n0", annotations={}
                )
                took[timeout] = time.monotonic() - started
                assert result.outcome.value == "unknown"
    assert took[0.1] < 0.4 < took[0.6] + 0.05
    assert took[0.6] < 1.5


class Process:
    """`kvitej serve` on a fake API server, as a process of its own."""

    def __init__(self, folder: Path, kubeconfig: Path, **sections: Any) -> None:
        self._settings = folder / f"config-{id(sections)}.yaml"
        self._settings.write_text(yaml.safe_dump({"log": {"format": "json"}, **sections}))
        self._kubeconfig = kubeconfig

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "extender", "serve", "--kubeconfig", str(self._kubeconfig)),
            *("--config", str(self._settings), "--port", "0", "--http", "127.0.0.1:0"),
            stderr=asyncio.subprocess.PIPE,
        )
        assert self._process.stderr is not None
        async for line in self._process.stderr:
            said = json.loads(line)
            if said["event"] == "kvitej serves":
                self.http: str = said["http"]
                break
        self._drain = asyncio.create_task(self._process.stderr.read())
        await within(10, lambda: self.ready(), True)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._process.terminate()
        assert await self._process.wait() == 0
        await self._drain

    async def ready(self) -> bool:
        async with aiohttp.ClientSession() as session, session.get(f"{self.http}/readyz") as answer:
            return answer.status == 200


async def within(seconds: float, look: Callable[[], Awaitable[object]], expected: object) -> None:
    async with asyncio.timeout(seconds):
        while await look() != expected:
            await asyncio.sleep(0.02)


async def test_watch_stale_after_and_wake_delay(tmp_path: Path) -> None:
    refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    async with FakeApiServer() as hasty_server, FakeApiServer() as calm_server:
        for server, name in ((hasty_server, "hasty"), (calm_server, "calm")):
            server.put_node("n0", status={"allocatable": {GPU: "3"}})
            spec = raw_pod("sits", {GPU: "3"}, at="n0")["spec"]
            server.put_pod("sits", spec=spec)
            for number in range(3):
                server.put_pod(f"waits-{number}", status={"phase": "Pending", "conditions": [refused]})
            server.write_kubeconfig(tmp_path / name)
        async with (
            Process(
                tmp_path, tmp_path / "hasty", watch={"staleAfter": "200ms"}, wake={"delay": "50ms"}
            ) as hasty,
            Process(tmp_path, tmp_path / "calm", watch={"staleAfter": "1m"}, wake={"delay": "1m"}) as calm,
        ):

            async def woken(server: FakeApiServer = hasty_server) -> set[str]:
                return {path.rpartition("/")[2] for method, path in server.requests if method == "PATCH"}

            for server in (hasty_server, calm_server):
                server.delete("pods", "default/sits")
            # All three fit on the one node, so all are woken although nothing else changes.
            await within(5, woken, {"waits-0", "waits-1", "waits-2"})
            assert await woken(calm_server) == set()
            for server in (hasty_server, calm_server):
                await server.stop()
            await within(5, hasty.ready, False)
            assert await calm.ready()
            for server in (hasty_server, calm_server):
                await server.start()
            await within(10, hasty.ready, True)


@pytest.mark.parametrize(("level", "heard"), [("debug", 3), ("info", 2), ("warning", 1), ("error", 0)])
def test_log_level_is_the_least_that_is_logged(
    level: Any, heard: int, capsys: pytest.CaptureFixture[str]
) -> None:
    doors = Doors(node("n0", {GPU: "1"}))
    with logging_restored():
        log.setup(level, "text")
        doors.place.prioritize(filter_body(ONE, ["n0"]))
        doors.place.filter(filter_body(ONE, ["n0"]))
        doors.book.apply(PodSeen(pod("foreign", {GPU: "1"}, at="n0")))
    assert len(capsys.readouterr().err.splitlines()) == heard


def test_log_format_json_is_an_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    doors = Doors(node("n0", {GPU: "1"}))
    for form in ("json", "text"):
        with logging_restored():
            log.setup("info", form)
            doors.place.filter(filter_body(ONE, ["n0"]))
        line = capsys.readouterr().err
        if form == "json":
            assert json.loads(line)["pod"] == "team/p"
        else:
            assert "pod=team/p" in line
            assert not line.startswith("{")


class logging_restored:  # noqa: N801
    """Leaves logging as it was, for the tests that come after."""

    def __enter__(self) -> None:
        root = logging.getLogger()
        self._was = root.handlers, root.level, logging.getLogger("aiohttp.access").disabled

    def __exit__(self, *_: object) -> None:
        root = logging.getLogger()
        root.handlers, level, logging.getLogger("aiohttp.access").disabled = self._was
        root.setLevel(level)
        structlog.reset_defaults()
