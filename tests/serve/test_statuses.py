"""Statuses as they reach the API server, and as the next process finds them there."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from extender.fairness.record import Fairness
from extender.kube.client import connect
from extender.kube.releaser import Releaser
from extender.serve.book import Book
from extender.serve.statuses import StatusWriter
from extender.wire.surroundings import FairnessPolicy
from tests.decide.planning import WALL, Job, World
from tests.fairness.builders import policy
from tests.fakes.apiserver import FakeApiServer


class Writing:
    def __init__(self, server: FakeApiServer, releaser: Releaser) -> None:
        self.server = server
        self.world = World([policy(name="p"), policy(name="past")], nodes=["n0"])
        self.world.put(*(Job(f"a-{n}", "inference") for n in range(3)))
        self.world.run()
        self.world.now = 86_400.0
        self.begun = True
        self.faults: dict[str, str] = {}
        for name in ("p", "odd"):
            server.put(
                "fairnesspolicies", name, {"metadata": {"name": name, "uid": f"uid-{name}"}, "spec": {}}
            )
        self.writer = StatusWriter(
            Book(self.world.state),
            lambda: self.world.planner if self.begun else None,
            Fairness(),
            releaser,
            lambda: [self.stored(name) for name in ("p", "odd") if name in server.stores["fairnesspolicies"]],
            lambda: self.faults,
            wall=lambda: WALL + self.world.now,
            clock=lambda: self.world.now,
        )

    def stored(self, name: str) -> FairnessPolicy:
        return msgspec.json.decode(self.server.stores["fairnesspolicies"][name].body, type=FairnessPolicy)

    def conditions(self, name: str) -> dict[str, Any]:
        return {each["type"]: each["status"] for each in self.stored(name).status["conditions"]}


@pytest.fixture
async def writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Writing]:
    monkeypatch.setenv("SSL_CERT_FILE", os.devnull)
    file = tmp_path / "kubeconfig"
    async with FakeApiServer() as server, await connect(server.write_kubeconfig(file)) as client:
        yield Writing(server, Releaser(client, 1.0))


async def test_what_is_remembered_is_written_with_its_time(writing: Writing) -> None:
    await writing.writer.write()
    status = writing.stored("p").status
    assert status["decayedAt"] == "2026-12-01T12:00:00.000000Z"
    used = {each["name"]: each["decayedUse"] for each in status["tenants"]}
    assert used == {"training": 0, "inference": pytest.approx(1.5), "research": 0}
    assert not writing.stored("odd").status


async def test_nothing_is_written_before_the_planner_has_begun(writing: Writing) -> None:
    writing.begun = False
    await writing.writer.write()
    assert not writing.stored("p").status


async def test_a_policy_that_cannot_be_read_is_told_why_and_keeps_what_is_remembered(
    writing: Writing,
) -> None:
    await writing.writer.write()
    writing.faults = {"p": "spec.tenants is empty", "odd": "spec.default is odd", "past": "never mind"}
    await writing.writer.write()
    assert writing.conditions("p") == writing.conditions("odd") == {"Accepted": "False"}
    assert len(writing.stored("p").status["tenants"]) == 3
    assert writing.stored("odd").status["conditions"][0]["message"] == "spec.default is odd"
    writing.faults = {}
    await writing.writer.write()
    assert writing.conditions("p") == {"Accepted": "True", "Conflict": "True", "MinimaCut": "False"}


async def test_a_status_that_is_refused_is_logged_and_tried_again(writing: Writing) -> None:
    writing.server.refuse = 500
    with capture_logs() as logs:
        await writing.writer.write()
    (told,) = logs
    assert (told["policy"], told["log_level"]) == ("p", "warning")
    writing.server.refuse = None
    await writing.writer.write()
    assert writing.stored("p").status
