"""FairnessPolicy on a real API server: what it takes, what it refuses and why, and what it keeps."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from extender.decide.status import restore, status_of
from extender.fairness.reading import read_policy
from extender.fairness.record import Fairness
from extender.wire.policy import API_VERSION, KIND, PATH, FairnessPolicy
from tests.controlplane.api import Api, ApiError, Object
from tests.decide.planning import WALL, Job, World
from tests.fairness.bad import BAD
from tests.fairness.builders import THREE_TENANTS, policy, readme

pytestmark = pytest.mark.controlplane

FOLDER = Path(__file__).parents[2] / "scheduler-config"
CRD = "crd-fairnesspolicies.yaml"
FULL = """
decayHalfLife: 1.5h
decayStrength: 0.5
nodeSelector: {pool: a100}
schedulerNames: [fair-quota]
default: web
holdAfter: 0s
autoscaling: {maxPending: 3}
neverFits: refuse
foreignScheduler: deny
reclaim: {dryRun: true}
watermark: 82.5
dynamicWatermark: {max: 90}
rules:
- name: no-batch-by-day
  message: batch work runs at night
  dryRun: true
  tenants: [ml, batch]
  namespaces: [ml-1]
  workloads: [training]
  closed: {days: [Mon-Fri, Sun], from: "09:00", to: "18:00", timeZone: Europe/Berlin}
- {name: nights, closed: {from: "22:00", to: "00:00", timeZone: Etc/GMT+5}}
- {name: memory, workloads: [inference], minMemory: {host: 8Gi, gpu: 16e9}}
- {name: forms, form: {batch: whole}}
- {name: small, maxGPUs: 0.5}
- {name: models, models: [NVIDIA-H100-80GB-HBM3, NVIDIA-A100-SXM4-80GB]}
- {name: spare, headroom: 12.5%}
tenants:
- name: ml
  weight: 0.5
  minShare: 33.3
  maxGPUs: 12.5
  preemptible: true
  namespaces: {names: [ml-1, ml-2], selector: {matchLabels: {team: ml}}}
  decayHalfLife: 6h30m
  queueDepth: 10
  minRuntime: 90s
  evictionsPerHour: 0
  priorityClasses: [low]
  waitTarget: 250ms
  adopt: true
- {name: web, weight: 1, minShare: 33.4}
- {name: tests, weight: 1, minShare: 33.3}
- {name: batch, weight: 1, minGPUs: 4, maxShare: 50}
"""


def manifest(spec: str | dict[str, Any], name: str) -> Object:
    """A policy as a user writes it."""
    parsed = yaml.safe_load(spec) if isinstance(spec, str) else spec
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": parsed}


@pytest.fixture
async def server(api: Api) -> AsyncIterator[Api]:
    """An API server with the shipped CRD and no policy."""
    assert CRD in yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["resources"]
    await api.apply(yaml.safe_load((FOLDER / CRD).read_text()))
    yield api
    for each in await api.list(PATH):
        await api.delete(f"{PATH}/{each['metadata']['name']}")


async def stored(server: Api, name: str) -> FairnessPolicy:
    return msgspec.convert(await server.get(f"{PATH}/{name}"), FairnessPolicy)


async def test_the_policy_of_three_tenants_applies_as_it_stands(server: Api) -> None:
    await server.apply(manifest(THREE_TENANTS, "myfair-cluster"))
    assert read_policy(await stored(server, "myfair-cluster")) == policy(THREE_TENANTS)


async def test_the_policy_and_the_rules_of_the_readme_are_taken(server: Api) -> None:
    await server.apply(manifest(readme(), "readme"))
    assert read_policy(await stored(server, "readme")) == policy(readme(), "readme")


async def test_every_field_is_kept_and_read_as_it_was_written(server: Api) -> None:
    kept = await server.apply(manifest(FULL, "full"))
    assert kept["spec"] == yaml.safe_load(FULL)
    assert read_policy(await stored(server, "full")) == policy(FULL, "full")


async def test_a_misspelled_field_is_refused_when_asked_to_be_strict(server: Api) -> None:
    wrong = manifest({"tenants": [{"name": "a", "weight": 1, "minshare": 5}]}, "wrong")
    with pytest.raises(ApiError, match=r'unknown field "spec\.tenants\[0\]\.minshare"'):
        await server.post(PATH, wrong, {"fieldValidation": "Strict"})


@pytest.mark.parametrize(("spec", "told"), BAD, ids=[told for _, told in BAD])
async def test_a_bad_policy_is_refused_with_the_path_of_the_field(
    server: Api, spec: dict[str, Any], told: str
) -> None:
    path = re.match(r"spec[\w.\[\]]*", told)
    assert path is not None
    with pytest.raises(ApiError) as refused:
        await server.apply(manifest(spec, "bad"))
    assert refused.value.status == 422
    assert path[0] in refused.value.message
    assert "rule evaluation error" not in refused.value.message


@pytest.mark.parametrize(
    "length", ["24", "-1h", "1d", "1 h", "h", "", "1h!", "soon", "1e3s", "9999999h", ".5h"]
)
@pytest.mark.parametrize("field", ["decayHalfLife", "minRuntime", "waitTarget"])
async def test_what_is_no_duration_is_refused_and_told_how_to_write_one(
    server: Api, field: str, length: str
) -> None:
    spec = {"tenants": [{"name": "a", "weight": 1, field: length}]}
    with pytest.raises(ApiError, match=rf"spec\.tenants\[0\]\.{field}: .*must be a duration .*such as"):
        await server.apply(manifest(spec, "bad"))


@pytest.mark.parametrize("length", ["999999h999999h99999h", "0.000001h", "0.000001ms", "1h1m1s1ms"])
async def test_the_longest_and_the_finest_durations_are_read_too(server: Api, length: str) -> None:
    spec = {"decayHalfLife": length, "tenants": [{"name": "a", "weight": 1}]}
    await server.apply(manifest(spec, "fine"))
    assert read_policy(await stored(server, "fine")).tenants[0].half_life > 0


async def test_status_is_written_apart_from_the_spec_and_kept_to_the_last_bit(server: Api) -> None:
    await server.apply(manifest(THREE_TENANTS, "myfair-cluster"))
    status = {
        "observedGeneration": 1,
        "capacity": 512,
        "inUse": 500.5,
        "waiting": 3,
        "decayedAt": "2026-01-01T00:00:00.123456Z",
        "conditions": [
            {
                "type": "Accepted",
                "status": "True",
                "reason": "Read",
                "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
                "observedGeneration": 1,
            }
        ],
        "tenants": [
            {
                "name": "training",
                "entitlement": 204.8,
                "inUse": 0.1,
                "borrowed": 0,
                "decayedUse": 12.000000000000002,
                "waiting": 3,
                "longestWait": 17.25,
                "evictions": 2,
                "evictedAt": ["2026-01-01T00:00:00.000001Z"],
            }
        ],
    }
    await server.patch(f"{PATH}/myfair-cluster/status", {"status": status, "spec": {"default": "research"}})
    await server.patch(f"{PATH}/myfair-cluster", {"status": {"capacity": 1}})
    found = await server.get(f"{PATH}/myfair-cluster")
    assert found["status"] == status
    assert "default" not in found["spec"]
    assert found["metadata"]["generation"] == 1
    read = (await stored(server, "myfair-cluster")).status
    assert read is not None
    assert msgspec.to_builtins(read) == status


async def test_a_status_as_kvitej_makes_it_is_kept_and_carried_on_from(server: Api) -> None:
    await server.apply(manifest(THREE_TENANTS, "myfair-cluster"))
    world, fairness = World([policy()], nodes=["n0"]), Fairness()
    world.put(*(Job(f"a-{n}", "inference") for n in range(3)))
    world.run()
    world.now = 3_600.123456789
    moment = {"wall": WALL + world.now, "now": world.now}
    made = status_of(world.planner, world.state.snapshot(), fairness, {}, **moment)["myfair-cluster"]
    await server.patch(f"{PATH}/myfair-cluster/status", {"status": made})
    found = (await server.get(f"{PATH}/myfair-cluster"))["status"]
    assert found == made
    world.start()
    ledger = world.planner.pools.by_name["myfair-cluster"].ledger
    bound = {f"uid-a-{n}": WALL for n in range(3)}
    statuses = {"myfair-cluster": found}
    assert not restore(world.planner, world.state.snapshot(), fairness, statuses, bound, **moment)
    assert ledger.usage.of("inference", world.now) == found["tenants"][1]["decayedUse"] > 0.08
