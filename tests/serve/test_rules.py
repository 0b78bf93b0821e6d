"""Rules and MIG profiles through the webhook's door, with what the book and the planner know of the pool."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import structlog
import yaml

from extender.config import Config
from extender.serve.embedded import Embedded, embedded
from extender.simulate.admission import RefusedError
from extender.simulate.clusterfile import find
from tests.builders import GPU, Json, raw_pod
from tests.fairness.builders import policy
from tests.serve.reviews import RECORDED, Served, response, review

CUT = "nvidia.com/mig-1g.12gb"


@contextlib.asynccontextmanager
async def cluster(tmp_path: Path, *rules: Json, **fields: Any) -> AsyncIterator[Embedded]:
    """Two nodes of 8 GPUs in the pool, one outside of it, and the tenant `team`."""
    gpus = {"cpu": 96, "memory": "1Ti", GPU: 8}
    sliced = {"cpu": 96, "memory": "1Ti", "nvidia.com/mig-1g.10gb": 4, "nvidia.com/mig-2g.20gb": 2}
    dynamic = {
        "pool": "a",
        "kvitej.io/mig": "dynamic",
        "nvidia.com/gpu.product": "NVIDIA-H100-NVL",
        "nvidia.com/gpu.count": "1",
    }
    file = tmp_path / "cluster.yaml"
    found = {
        "nodes": [
            {"name": "a", "count": 2, "allocatable": gpus, "labels": {"pool": "a"}},
            {"name": "cut", "allocatable": {"cpu": 96, "memory": "1Ti", CUT: 7}, "labels": dynamic},
            {"name": "b", "allocatable": sliced},
        ],
        "tenants": ["team"],
        "policies": [
            {
                "name": "pool",
                "nodeSelector": {"pool": "a"},
                "tenants": [{"name": "team", "weight": 1}],
                "rules": list(rules),
                **fields,
            }
        ],
        "pods": [{"name": "p", "tenant": "team", "runs": "1h", "asks": {GPU: 1}}],
    }
    file.write_text(yaml.safe_dump(found))
    async with embedded(find(str(file)), Config(), "127.0.0.1", 0, ("127.0.0.1", 0)) as running:
        yield running


def create(running: Embedded, name: str, gpus: int = 1, profile: str | None = None) -> Json:
    annotations = {"nvidia.com/mig-profile": profile} if profile else {}
    return running.cluster.create("team", name, {GPU: gpus}, annotations, "fair-quota")


async def test_headroom_counts_who_waits_and_who_was_just_let_pass(tmp_path: Path) -> None:
    rule = {"name": "spare", "headroom": "5%"}
    async with cluster(tmp_path, rule) as running:
        create(running, "one", 5)
        create(running, "two", 5)
        await running.settle()
        # No node has 4 left: it counts while nobody has planned for it, and while it waits.
        create(running, "waits", 4)
        told = re.escape(
            "kvitej: it asks for 3 GPUs; 3 of the pool's 17 are left (10 in use, 4 for pods that wait), "
            "and 0.85 (5%) stay free; try again in 30 s (rule spare in FairnessPolicy pool)"
        )
        for _ in range(2):
            with pytest.raises(RefusedError, match=told):
                create(running, "three", 3)
            await running.settle()
        running.cluster.delete("team", "waits")
        await running.settle()
        create(running, "three", 3)
        await running.settle()
        told = re.escape("it asks for 4 GPUs; 4 of the pool's 17 are left (13 in use, 0 for pods that wait)")
        with pytest.raises(RefusedError, match=told):
            create(running, "four", 4)


async def test_the_hours_of_a_play_pass_by_its_own_clock(tmp_path: Path) -> None:
    rule = {"name": "days", "closed": {"days": ["Mon", "Wed", "Fri", "Sun"], "timeZone": "UTC"}}
    told: dict[int, str] = {}
    async with cluster(tmp_path, rule) as running:
        for day in range(7):
            running.clock.advance(day * 86_400)
            try:
                create(running, f"p{day}")
            except RefusedError as why:
                told[datetime.fromtimestamp(running.clock.wall(), UTC).weekday()] = str(why)
    assert sorted(told) == [0, 2, 4, 6]
    assert re.match(r"kvitej: no pods may be created until Thu .* 00:00 UTC \(UTC\); try again in", told[2])


async def test_headroom_says_nothing_of_a_pool_without_nodes(tmp_path: Path) -> None:
    async with cluster(
        tmp_path, {"name": "spare", "headroom": "100%"}, nodeSelector={"pool": "z"}, neverFits="wait"
    ) as running:
        create(running, "one")


async def test_a_profile_is_cut_where_the_pools_own_nodes_have_it(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        stored = create(running, "cut", 2, profile="1g.12gb")
        resources = stored["spec"]["containers"][0]["resources"]
        assert resources == {kind: {CUT: "2"} for kind in ("requests", "limits")}
        told = (
            "no node of the pool of FairnessPolicy pool has '1g.10gb'; the nearest that nodes have: 1g.12gb, "
        )
        with pytest.raises(RefusedError, match=told):
            create(running, "elsewhere", profile="1g.10gb")


async def test_with_never_fits_wait_a_profile_of_nodes_to_come_is_taken(tmp_path: Path) -> None:
    async with cluster(tmp_path, neverFits="wait") as running:
        stored = create(running, "later", profile="1g.10gb")
        assert stored["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/mig-1g.10gb": "1"}


def test_a_dry_run_is_a_warning_a_log_line_and_a_count_of_its_own() -> None:
    spec = {
        "tenants": [{"name": "training", "weight": 1}],
        "rules": [{"name": "trial", "maxGPUs": 0, "dryRun": True}],
    }
    served = Served(rules=policy(spec).rules)
    body = review(RECORDED["validate"], object=raw_pod("p", {GPU: "1"}, namespace="training"))
    told = "it asks for 1 GPU, and a pod may have at most 0 (rule trial in FairnessPolicy pool)"
    with structlog.testing.capture_logs() as logged:
        found = response(served.door.validate(body))
    assert found["allowed"]
    assert found["warnings"] == [f"kvitej would refuse this but for dryRun: {told}"]
    (line,) = logged
    assert (line["event"], line["pod"], line["why"]) == (
        "admit: would be refused",
        "training/p",
        "rule-max-gpus",
    )

    def counted(metric: str) -> float | None:
        labels = {"tenant": "training", "reason": "rule-max-gpus"}
        return served.metrics.registry.get_sample_value(metric, labels)

    response(served.door.validate(review(body, dryRun=True)))
    assert (counted("kvitej_dry_run_refusals_total"), counted("kvitej_refusals_total")) == (1, None)
