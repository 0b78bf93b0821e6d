"""What fairness reads besides nodes and pods: kept as it is now, also while a cluster has no policies yet."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import pytest

from extender.kube import reflector
from extender.kube.client import Client
from extender.kube.surroundings import Part, Surroundings
from tests.fakes.apiserver import FakeApiServer
from tests.kube.conftest import until


@contextlib.asynccontextmanager
async def following(client: Client) -> AsyncIterator[tuple[Surroundings, list[Part]]]:
    changes: list[Part] = []
    around = Surroundings(client, changes.append)
    task = asyncio.create_task(around.run())
    try:
        await asyncio.wait_for(around.wait_synced(), 5)
        yield around, changes
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def put_policy(server: FakeApiServer, name: str, **parts: object) -> str:
    meta = {"name": name, "generation": 4}
    return server.put("fairnesspolicies", name, {"metadata": meta, **parts})


async def test_everything_is_kept_as_it_is_now(server: FakeApiServer, client: Client) -> None:
    policy = put_policy(server, "fair", spec={"decayHalfLife": "24h"}, status={"time": "now"})
    team = server.put("namespaces", "team", {"metadata": {"name": "team", "labels": {"tier": "gold"}}})
    low = server.put("priorityclasses", "low", {"metadata": {"name": "low"}, "value": -5})
    spec = {"selector": {"matchExpressions": [{"key": "app", "operator": "In", "values": ["x"]}]}}
    budget = {
        "metadata": {"name": "b", "namespace": "team"},
        "spec": spec,
        "status": {"disruptionsAllowed": 2},
    }
    kept = server.put("poddisruptionbudgets", "team/b", budget)
    async with following(client) as (around, changes):
        assert set(changes) == set(Part)
        found = around.policies[policy]
        assert (found.spec, found.status, found.metadata.generation) == (
            {"decayHalfLife": "24h"},
            {"time": "now"},
            4,
        )
        assert around.namespaces[team].metadata.labels == {"tier": "gold"}
        assert around.priority_classes[low].value == -5
        selector = around.budgets[kept].spec.selector
        assert selector is not None
        assert selector.match_expressions is not None
        assert selector.match_expressions[0].values == ["x"]
        assert (around.budgets[kept].metadata.namespace, around.budgets[kept].status.disruptions_allowed) == (
            "team",
            2,
        )

        changes.clear()
        server.put("poddisruptionbudgets", "team/b", {**budget, "status": {"disruptionsAllowed": 0}})
        await until(lambda: around.budgets[kept].status.disruptions_allowed == 0)
        server.delete("namespaces", "team")
        await until(lambda: not around.namespaces)
        assert changes == [Part.BUDGETS, Part.NAMESPACES]


async def test_a_successor_of_the_same_name_replaces_it(server: FakeApiServer, client: Client) -> None:
    first = put_policy(server, "fair")
    async with following(client) as (around, _):
        server.delete("fairnesspolicies", "fair")
        second = put_policy(server, "fair", spec={"tenants": []})
        await until(lambda: list(around.policies) == [second])
        assert first not in around.policies


async def test_what_cannot_be_read_stays_as_it_last_could_be(server: FakeApiServer, client: Client) -> None:
    uid = put_policy(server, "fair", spec={"decayHalfLife": "24h"})
    async with following(client) as (around, _):
        put_policy(server, "fair", spec="none")
        await until(lambda: around.reflectors[Part.POLICIES].unreadable == 1)
        assert around.policies[uid].spec == {"decayHalfLife": "24h"}
        put_policy(server, "fair", spec={"decayHalfLife": "6h"})
        await until(lambda: around.policies[uid].spec == {"decayHalfLife": "6h"})


async def test_a_cluster_without_the_definition_has_no_policies_until_it_comes_and_after_it_goes(
    server: FakeApiServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reflector, "ABSENT_SECONDS", 0.05)
    server.absent = {"fairnesspolicies"}
    async with following(client) as (around, changes):
        assert around.synced
        assert around.stale_for(time.monotonic()) == 0.0
        assert not around.policies
        server.absent = set()
        uid = put_policy(server, "fair")
        await until(lambda: uid in around.policies)
        changes.clear()
        server.absent = {"fairnesspolicies"}
        server.end_watches()
        await until(lambda: not around.policies)
        assert changes == [Part.POLICIES]
        server.absent = set()
        await until(lambda: uid in around.policies)


async def test_it_is_asked_for_again_only_every_30_s(server: FakeApiServer, client: Client) -> None:
    server.absent = {"fairnesspolicies"}
    async with following(client):
        await asyncio.sleep(0.3)
        assert sum("fairnesspolicies" in path for _, path in server.requests) == 1


async def test_a_server_that_does_not_know_namespaces_is_in_trouble(
    server: FakeApiServer, client: Client
) -> None:
    server.absent = {"namespaces"}
    around = Surroundings(client, lambda part: None)
    task = asyncio.create_task(around.run())
    await asyncio.sleep(0.3)
    assert not around.synced
    assert around.stale_for(time.monotonic()) > 0.2
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
