"""The webhook's door and listener: statuses, counting, the certificate, and 10,000 malformed reviews."""

import asyncio
import json
import re
import ssl
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import trustme
import yaml

from extender.config import Config
from extender.serve import tls
from extender.serve.app import reviews
from extender.serve.book import Refusal
from extender.serve.listening import Webhook, listening, reviewing
from extender.serve.tls import Certificate, CertificateError
from tests.builders import GPU, Json, container, raw_pod
from tests.fairness.builders import policy
from tests.patches import patched
from tests.serve.mutants import mutants
from tests.serve.reviews import DATA, KVITEJ, RECORDED, Served, patch_of, response, review

pytestmark = pytest.mark.usefixtures("log")

MANY = 10_000


def test_a_recorded_create_is_gated_under_its_own_uid() -> None:
    served = Served()
    found = response(served.door.mutate(RECORDED["create"]))
    asked = json.loads(RECORDED["create"])["request"]
    assert found["uid"] == asked["uid"]
    assert found["patchType"] == "JSONPatch"
    spec = patched(asked["object"], patch_of(found))["spec"]
    assert spec["schedulingGates"] == [{"name": "kvitej.io/turn"}]
    assert len(spec["tolerations"]) == 3
    assert served.waiting == 0


def test_a_validating_review_counts_its_pod_once_and_a_dry_run_never() -> None:
    served = Served(depth=1)
    body = review(RECORDED["validate"], dryRun=True)
    assert response(served.door.validate(body))["allowed"]
    assert served.waiting == 0
    assert response(served.door.validate(RECORDED["validate"]))["allowed"]
    assert served.waiting == 1
    refused = response(served.door.validate(RECORDED["validate"]))
    assert refused["status"]["code"] == 429
    assert refused["status"]["message"].startswith(
        "kvitej: the queue of tenant training is full: 1 of 1 pods"
    )
    assert "details" not in refused["status"], "clients would wait for retryAfterSeconds in silence"
    response(served.door.validate(body))
    value = served.metrics.registry.get_sample_value(
        "kvitej_refusals_total", {"tenant": "training", "reason": "queue-full"}
    )
    assert value == 1, "a dry run is no refusal"


def test_a_recorded_update_puts_back_what_is_kvitejs() -> None:
    found = response(Served().door.mutate(RECORDED["update"]))
    assert patch_of(found) == [{"op": "remove", "path": "/metadata/annotations/kvitej.io~1devices"}]
    assert found["warnings"] == ["annotation kvitej.io/devices is kvitej's to write, and stays as it was"]


def test_the_manifest_spares_the_writers_and_both_reviews_are_of_the_same_requests() -> None:
    manifest = Path(__file__).parents[2] / "scheduler-config" / "webhook.yaml"
    (mutating,), (validating,) = (each["webhooks"] for each in yaml.safe_load_all(manifest.read_text()))
    for key in ("matchConditions", "rules", "namespaceSelector", "failurePolicy", "timeoutSeconds"):
        assert mutating[key] == validating[key]
    assert (mutating["failurePolicy"], mutating["timeoutSeconds"]) == ("Ignore", 3)
    (condition,) = mutating["matchConditions"]
    spared, _, _ = condition["expression"].partition(" && ")
    assert spared.startswith("!(request.userInfo.username in [")
    assert re.findall("'(.*?)'", spared) == list(Config().admission.writers)


def bodies() -> list[bytes]:
    """Reviews that must be refused when validated by a door whose queue is full, and some that need not be."""
    made = [RECORDED["validate"], RECORDED["create"], RECORDED["update"]]
    gated = {"schedulingGates": [{"name": "kvitej.io/turn"}], "schedulerName": "fair-quota"}
    terms = [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}, {}]
    affinity = {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    }
    annotations = {"kvitej.io/devices": "{}", "kvitej.io/gpu-memory": "1Gi", "x": "y"}
    for spec in (
        {},
        gated,
        {"affinity": affinity},
        {"schedulerName": "volcano"},
        {"priorityClassName": "top"},
    ):
        raw = raw_pod("p", {GPU: "1"}, spec=spec, namespace="training")
        raw["metadata"]["annotations"] = annotations
        made.append(review(RECORDED["validate"], object=raw))
    warm = {"initContainers": [container("warm", {GPU: 1})]}
    sliced = raw_pod("p", {GPU: "1", "cpu": "1"}, spec=warm, namespace="training")
    sliced["metadata"]["annotations"] = {"nvidia.com/mig-profile": "1g.10gb+me"}
    sliced["metadata"]["labels"] = {"kvitej.io/workload": "inference"}
    made.append(review(RECORDED["validate"], object=sliced))
    old = raw_pod("p", {GPU: "1"}, spec=gated, namespace="training")
    made.append(
        review(RECORDED["update"], oldObject=old, object=raw_pod("p", {GPU: "1"}, namespace="training"))
    )
    made.append(review(RECORDED["validate"], object=raw_pod("cpu", {"cpu": "1"}, namespace="training")))
    return made


RULES = policy(
    {
        "tenants": [{"name": "training", "weight": 1}],
        "rules": [
            {"name": "models", "models": ["NVIDIA-H100-NVL"], "workloads": ["inference"]},
            {"name": "hours", "closed": {"timeZone": "Europe/Berlin", "to": "12:00"}, "dryRun": True},
            {"name": "memory", "minMemory": {"gpu": "16Gi", "host": "8Gi"}, "dryRun": True},
            {"name": "form", "form": {}, "dryRun": True},
            {"name": "few", "maxGPUs": 0, "dryRun": True},
            {"name": "spare", "headroom": "20%"},
        ],
    }
).rules


def plain(body: bytes) -> Any:
    """As another parser reads it; None for what it can't write again, such as 1e309 or a number of 5,000 digits."""
    try:
        document = json.loads(body)
        json.dumps(document, allow_nan=False)
        return document
    except (ValueError, RecursionError):
        return None


def surely_refused(body: bytes) -> bool:
    """By plain JSON: a GPU pod of the full queue, or a gate that somebody lifts."""
    try:
        request = plain(body)["request"]
        pod = request["object"]
        if request["kind"].get("group") or request["kind"]["kind"] != "Pod":
            return False
        if request["operation"] == "UPDATE":
            names = [
                [gate["name"] for gate in (request[key]["spec"].get("schedulingGates") or [])]
                for key in ("oldObject", "object")
            ]
            lifted = "kvitej.io/turn" in names[0] and "kvitej.io/turn" not in names[1]
            return lifted and request["userInfo"]["username"] != KVITEJ
        spec = pod["spec"]
        asks = [
            {**(each.get("resources", {}).get("limits") or {}), **(each["resources"].get("requests") or {})}
            for each in spec["containers"]
            if each.get("resources")
        ]
        wants = any(
            name.startswith("nvidia.com/") and value in ("1", 1)
            for ask in asks
            for name, value in ask.items()
        )
        full = request["namespace"] == "training" and not spec.get("nodeName")
        return request["operation"] == "CREATE" and wants and full
    except (KeyError, TypeError, AttributeError):
        return False


def answered(door: Callable[[bytes], bytes], body: bytes) -> Json | None:
    """The response, or None for a refusal that says why."""
    why = ""
    try:
        return response(door(body))
    except Refusal as refusal:
        why = str(refusal)
    assert len(why) > 20
    return None


def test_ten_thousand_malformed_reviews_are_never_wrongly_allowed() -> None:
    served = Served(depth=0, rules=RULES)
    allowed = refused = sure = 0
    for body in islice(mutants(bodies(), [b"{}", (DATA / "filter-args.json").read_bytes()], 5), MANY):
        found = answered(served.door.validate, body)
        if surely_refused(body):
            sure += 1
            assert found is None or not found["allowed"], body[:2000]
        allowed += found is not None and found["allowed"]
        refused += found is not None and not found["allowed"]
    assert served.waiting == 0, "what was refused was counted"
    assert min(allowed, refused, sure) > MANY / 50


def test_ten_thousand_malformed_reviews_never_get_a_patch_that_does_not_apply() -> None:
    served = Served(rules=RULES)
    changed = 0
    for body in islice(mutants(bodies(), [b"{}"], 6), MANY):
        found = answered(served.door.mutate, body)
        operations = patch_of(found) if found else []
        if not operations:
            continue
        document = plain(body)
        if document is None:
            continue
        request = document["request"]
        request["object"] = patched(request["object"], operations)
        again = answered(served.door.mutate, json.dumps(document).encode())
        assert again is not None
        assert again["allowed"]
        assert patch_of(again) == [], "a second review changes nothing"
        changed += 1
    assert changed > MANY / 20


class Pair:
    """A certificate and key in files, written anew on demand."""

    def __init__(self, folder: Path) -> None:
        self.authority = trustme.CA()
        self.cert, self.key = folder / "tls.crt", folder / "tls.key"
        self.client = ssl.create_default_context()
        self.authority.configure_trust(self.client)
        self.write()

    def write(self, kind: trustme.KeyType = trustme.KeyType.ECDSA) -> None:
        made = self.authority.issue_cert("127.0.0.1", key_type=kind)
        self.key.write_bytes(made.private_key_pem.bytes())
        self.cert.write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path)


async def shown(pair: Pair, address: str) -> bytes:
    """The certificate that a new connection is shown."""
    host, _, port = address.removeprefix("https://").rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port), ssl=pair.client)
    found: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    await writer.wait_closed()
    return found


async def test_a_certificate_is_replaced_under_the_listener_and_a_broken_one_is_not(pair: Pair) -> None:
    certificate = Certificate(pair.cert, pair.key)
    app = reviews(Served().door, Config())
    async with (
        listening(app, "127.0.0.1", 0, certificate.context) as address,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=pair.client)) as session,
    ):

        async def asks() -> bool:
            async with session.post(f"{address}/validate", data=RECORDED["validate"]) as answer:
                return bool(response(await answer.read())["allowed"])

        assert await asks()
        first = await shown(pair, address)
        pair.key.write_bytes(b"no key")
        certificate.refresh()
        assert await shown(pair, address) == first
        for kind in (trustme.KeyType.RSA, trustme.KeyType.ECDSA):
            pair.write(kind)
            certificate.refresh()
            second = await shown(pair, address)
            assert second != first
            first = second
        assert await asks(), "the connection from before goes on"


async def test_a_turned_link_is_noticed_by_itself(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "LOOK_SECONDS", 0.01)
    (tmp_path / "new").mkdir()
    new = Pair(tmp_path / "new")
    new.authority = pair.authority
    new.write()
    current = tmp_path / "current"
    current.symlink_to(tmp_path)
    webhook = Webhook("127.0.0.1", 0, current / "tls.crt", current / "tls.key")
    async with reviewing(Served().door, Config(), webhook) as address:
        first = await shown(pair, address)
        current.unlink()
        current.symlink_to(tmp_path / "new")
        deadline = time.monotonic() + 5
        while await shown(pair, address) == first:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)


def test_a_pair_that_cannot_be_used_is_one_sentence(pair: Pair, tmp_path: Path) -> None:
    with pytest.raises(CertificateError, match=r"none\.crt with the key .* can't be used: No such file"):
        Certificate(tmp_path / "none.crt", pair.key)
    other = trustme.CA().issue_cert("x").private_key_pem.bytes()
    pair.key.write_bytes(other)
    with pytest.raises(CertificateError, match="key values mismatch"):
        Certificate(pair.cert, pair.key)


async def test_reviews_over_tls_and_what_is_none_is_400_with_a_sentence(pair: Pair) -> None:
    served = Served()
    webhook = Webhook("127.0.0.1", 0, pair.cert, pair.key)
    async with (
        reviewing(served.door, Config(), webhook) as address,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=pair.client)) as session,
    ):
        for body in islice(mutants(bodies(), [b"{}"], 7), 300):
            for path in ("mutate", "validate"):
                async with session.post(f"{address}/{path}", data=body) as answer:
                    text = await answer.read()
                    assert answer.status in (200, 400)
                    if answer.status == 200:
                        response(text)
                    else:
                        assert len(text) > 20
        async with session.post(f"{address}/mutate", data=b"{}") as answer:
            assert (answer.status, await answer.text()) == (
                400,
                "apiVersion and kind are '' and '': kvitej answers admission.k8s.io/v1 AdmissionReview, "
                'so set admissionReviewVersions: ["v1"]\n',
            )
        async with session.get(f"{address}/metrics") as answer:
            assert answer.status == 404
