"""Shares and the line over HTTP: plain on loopback, by token where reviews arrive, and as `kvitej shares` tells."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
import yaml
from click.testing import CliRunner
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from extender import sharetable
from extender.__main__ import main
from extender.config import Config
from extender.fairness.depth import Queue
from extender.fairness.record import Fairness
from extender.kube.access import Access
from extender.kube.client import Client, connect
from extender.serve.app import operations, reviews
from extender.serve.book import Book
from extender.serve.listening import listening
from extender.serve.metrics import Metrics
from extender.serve.sharing import SharesDoor
from extender.serve.tokens import ByToken
from extender.wire.shares import Lines, Shares
from tests.decide.planning import Job, World
from tests.fairness.builders import THREE_TENANTS, policy
from tests.fakes.apiserver import FakeApiServer
from tests.serve import reviews as webhook

README = Path(__file__).parents[2] / "README.md"


class Serving:
    """A full cluster of three tenants, and the listener that answers about it."""

    def __init__(self) -> None:
        self.world = World([policy(THREE_TENANTS)], nodes=["n0", "n1"])
        self.fairness = Fairness()
        for tenant, many in (("training", 14), ("inference", 14), ("research", 5)):
            self.world.put(*(Job(f"{tenant}-{n:02}", tenant, born=n) for n in range(many)))
        self.world.run()
        self.world.now = 90.0
        self.unfit: str | None = None
        self.planning = True
        self.book = Book(self.world.state, lambda: self.unfit)
        self.door = SharesDoor(
            self.book,
            lambda: self.world.planner if self.planning else None,
            self.fairness,
            lambda: self.world.now,
        )
        self.metrics = Metrics(self.book.snapshot, lambda: ())
        self.metrics.follow(self.door)
        self.at = ""

    @property
    def http(self) -> str:
        return self.at.removeprefix("http://")


@pytest.fixture
async def serving() -> AsyncIterator[Serving]:
    serving = Serving()
    async with listening(
        operations(serving.book, serving.metrics, serving.door), "127.0.0.1", 0
    ) as serving.at:
        yield serving


async def get(at: str, path: str, token: str | None = None) -> tuple[int, str]:
    headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
    async with aiohttp.ClientSession() as session, session.get(at + path, headers=headers) as answer:
        return answer.status, await answer.text()


async def test_shares_of_all_tenants_and_of_one(serving: Serving) -> None:
    status, text = await get(serving.at, "/shares")
    found = msgspec.json.decode(text, type=Shares)
    assert status == 200
    assert [row.name for row in found.pools[0].tenants] == ["training", "inference", "research"]
    assert sum(row.in_use for row in found.pools[0].tenants) == 16
    status, text = await get(serving.at, "/shares/research")
    one = msgspec.json.decode(text, type=Shares)
    assert one.pools[0].tenants == [found.pools[0].tenants[2]]
    status, text = await get(serving.at, "/shares/reserach")
    assert (status, text) == (404, "No FairnessPolicy has a tenant 'reserach': /shares lists all.\n")


async def test_the_line_as_long_as_asked_for(serving: Serving) -> None:
    status, text = await get(serving.at, "/line?most=3")
    (line,) = msgspec.json.decode(text, type=Lines).pools
    assert (status, len(line.pods), line.more) == (200, 3, 14)
    assert [each.place for each in line.pods] == [1, 2, 3]
    for wrong in ("1001", "-1", "x", "", "²"):
        assert (await get(serving.at, f"/line?most={wrong}"))[0] == 400


async def test_nothing_is_told_while_the_book_is_unfit_or_nothing_is_planned(serving: Serving) -> None:
    serving.unfit = "the book is stale"
    assert await get(serving.at, "/shares") == (503, "the book is stale\n")
    serving.unfit, serving.planning = None, False
    for path in ("/shares", "/line", "/shares/research"):
        assert await get(serving.at, path) == (503, "kvitej does not plan yet: try again in a moment\n")
    assert (await get(serving.at, "/metrics"))[0] == 200


async def test_explain_says_place_who_is_ahead_and_what_it_waits_for(serving: Serving) -> None:
    waiters = serving.world.planner.waiters.values()
    last = max(each.ref.name for each in waiters if each.tenant == "training")
    status, text = await get(serving.at, f"/explain?pod=training/{last}")
    lines = text.splitlines()
    assert (status, lines[0]) == (200, f"pod training/{last}")
    assert lines[1].startswith("It is number ")
    assert lines[1].endswith(" of tenant training in line.")
    assert any("ahead of it" in line for line in lines)
    assert any(
        line.startswith(("It waits for room: ", "With 1 more it would have too much: ")) for line in lines
    )


# over TLS, by token


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeApiServer]:
    monkeypatch.setenv("SSL_CERT_FILE", os.devnull)
    async with FakeApiServer() as server:
        server.users = {name: {"username": name} for name in ("admin", "scientist", "nobody")}
        server.rights = {
            ("admin", "get", "fairnesspolicies.kvitej.io", ""),
            ("scientist", "list", "pods", "research"),
        }
        yield server


@pytest.fixture
async def client(server: FakeApiServer, tmp_path: Path) -> AsyncIterator[Client]:
    async with await connect(server.write_kubeconfig(tmp_path / "kubeconfig")) as client:
        yield client


@pytest.fixture
async def guarded(client: Client) -> AsyncIterator[str]:
    serving = Serving()
    app = reviews(webhook.Served().door, Config(), (serving.door, ByToken(Access(client, 1.0))))
    async with listening(app, "127.0.0.1", 0) as at:
        yield at


@pytest.mark.parametrize(
    ("path", "token", "status"),
    [
        ("/shares", "admin", 200),
        ("/line", "admin", 200),
        ("/shares/training", "admin", 200),
        ("/shares/research", "scientist", 200),
        ("/shares/research?namespace=research", "scientist", 200),
        ("/shares/training", "scientist", 403),
        ("/shares/training?namespace=research", "scientist", 403),
        ("/shares/nothing", "scientist", 403),
        ("/shares", "scientist", 403),
        ("/line", "scientist", 403),
        ("/shares/research", "nobody", 403),
        ("/shares", "stolen", 401),
        ("/shares", "", 401),
        ("/shares", None, 401),
    ],
)
async def test_a_token_opens_what_it_may_see_with_kubectl(
    guarded: str, path: str, token: str | None, status: int
) -> None:
    found, text = await get(guarded, path, token)
    assert found == status
    if status == 403:
        assert text.startswith(
            f"{token} may not see this: it takes the right to get fairnesspolicies.kvitej.io"
        )


@pytest.mark.parametrize("part", ["tokenreviews", "subjectaccessreviews"])
async def test_nothing_is_told_when_the_api_server_is_silent(
    guarded: str, server: FakeApiServer, part: str
) -> None:
    server.before_write = {part: 500}
    status, text = await get(guarded, "/shares", "admin")
    assert status == 503
    assert text.startswith("The API server did not tell who you are")
    assert (await get(guarded, "/shares", "admin"))[0] == 200


async def test_reviews_are_still_answered_there(guarded: str) -> None:
    body = webhook.RECORDED["create"]
    async with aiohttp.ClientSession() as session, session.post(f"{guarded}/mutate", data=body) as answer:
        assert webhook.response(await answer.read())["allowed"]


# kvitej shares


async def run(*arguments: str) -> tuple[int, str]:
    result = await asyncio.to_thread(CliRunner().invoke, main, ["shares", *arguments])
    return result.exit_code, result.output


async def test_the_table_has_a_row_for_each_tenant(serving: Serving) -> None:
    code, text = await run("--http", serving.http)
    title, *rest = text.splitlines()
    lines = [line.split() for line in rest]
    assert code == 0
    assert title.strip() == "myfair-cluster: 16 of 16 GPUs in use, 17 pods wait"
    assert [line[0] for line in lines[:4]] == ["tenant", "training", "inference", "research"]
    assert lines[1][1:4] == ["3.2", "9.6", "40"]


async def test_json_and_yaml_are_what_the_listener_answers(serving: Serving) -> None:
    _, text = await get(serving.at, "/shares/research")
    code, printed = await run("research", "-o", "json", "--http", serving.http)
    assert (code, json.loads(printed)) == (0, json.loads(text))
    code, printed = await run("research", "-o", "yaml", "--http", serving.http)
    assert (code, yaml.safe_load(printed)) == (0, json.loads(text))


async def test_a_tenant_that_is_none_and_a_port_without_kvitej_end_with_a_sentence(serving: Serving) -> None:
    code, text = await run("nobody", "--http", serving.http)
    assert (code, text) == (2, "kvitej: No FairnessPolicy has a tenant 'nobody': /shares lists all.\n")
    code, text = await run("--http", "127.0.0.1:1")
    assert code == 2
    assert text.startswith("kvitej: No `kvitej serve` answers at 127.0.0.1:1")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59.9, "59 s"), (200, "3 m 20 s"), (7500, "2 h 5 m"), (97_200, "1 d 3 h")],
)
def test_waits_are_shown_in_their_two_largest_units(seconds: float, text: str) -> None:
    assert sharetable.wait(seconds) == text


@pytest.mark.parametrize(
    ("gpus", "text"), [(0, "0"), (204.8, "204.8"), (16, "16"), (1 / 3, "0.3"), (1e6, "1000000")]
)
def test_amounts_are_shown_to_a_tenth(gpus: float, text: str) -> None:
    assert sharetable.amount(gpus) == text


# /metrics


def sample(serving: Serving, name: str, **labels: str) -> float | None:
    return serving.metrics.registry.get_sample_value(name, {"pool": "myfair-cluster", **labels})


async def test_prometheus_reads_the_table_and_the_counts(serving: Serving) -> None:
    fairness = serving.fairness
    training = Queue("myfair-cluster", "training")
    for wait in (0.05, 3, 700):
        fairness.bound(training, wait, 60)
    fairness.evicted(training, 2)
    fairness.released(training)
    fairness.held()
    fairness.missed(3)
    fairness.reclaims("myfair-cluster", 80)
    fairness.observe(serving.door.tables(), 85)
    table = serving.door.tables()[0].tenants[0]
    assert sample(serving, "kvitej_tenant_gpus_in_use", tenant="training") == table.in_use
    assert sample(serving, "kvitej_tenant_gpus_decayed", tenant="training") == table.decayed_use
    assert sample(serving, "kvitej_tenant_gpus_entitled", tenant="training") == table.entitlement
    assert sample(serving, "kvitej_queue_depth", tenant="training") == table.waiting
    assert sample(serving, "kvitej_longest_wait_seconds", tenant="training") == 90
    assert sample(serving, "kvitej_evictions_total", tenant="training") == 2
    assert sample(serving, "kvitej_releases_total", tenant="training") == 1
    assert sample(serving, "kvitej_admission_delay_seconds_count", tenant="training") == 3
    assert sample(serving, "kvitej_admission_delay_seconds_bucket", tenant="training", le="5.0") == 2
    assert sample(serving, "kvitej_admission_delay_seconds_sum", tenant="training") == pytest.approx(703.05)
    assert sample(serving, "kvitej_wait_target_met_ratio", tenant="training") == pytest.approx(2 / 3)
    assert sample(serving, "kvitej_recovery_seconds_count") == 1 - bool(
        sample(serving, "kvitej_recovering_seconds")
    )
    held = serving.metrics.registry.get_sample_value("kvitej_nominations_total", {"outcome": "held"})
    missed = serving.metrics.registry.get_sample_value("kvitej_nominations_total", {"outcome": "missed"})
    assert (held, missed) == (1, 3)


FAIR = (
    "tenant",
    "queue",
    "longest",
    "share",
    "release",
    "eviction",
    "admission",
    "wait",
    "recover",
    "nomination",
    "ledger",
)


async def test_every_metric_of_fairness_is_in_the_readme_and_names_no_pod(serving: Serving) -> None:
    serving.fairness.observe(serving.door.tables(), 91)
    readme = README.read_text(encoding="utf-8")
    seen = 0
    for family in text_string_to_metric_families(generate_latest(serving.metrics.registry).decode()):
        if (
            not family.name.startswith(tuple(f"kvitej_{part}" for part in FAIR))
            or "waiting_pods" in family.name
        ):
            continue
        seen += 1
        assert f"`{family.name}" in readme, family.name
        assert family.documentation.endswith(".")
        for each in family.samples:
            assert each.labels.keys() <= {"pool", "tenant", "le", "within", "outcome"}
    assert seen >= 15


def test_the_exporter_has_as_many_series_as_tenants_whatever_waits() -> None:
    serving = Serving()
    before = len(list(_series(serving)))
    serving.world.put(*(Job(f"more-{n}", "research") for n in range(30)))
    assert len(list(_series(serving))) == before


def _series(serving: Serving) -> Any:
    for family in serving.metrics.registry.collect():
        if family.name.startswith("kvitej_"):
            yield from family.samples
