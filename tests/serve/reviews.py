"""The webhook's door over one policy, and reviews as a real API server sent them."""

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from extender.cluster.state import ClusterState
from extender.config import Config
from extender.fairness.depth import Queue, QueueDepths
from extender.fairness.policy import Foreign, Place, Policy, Tenant
from extender.fairness.rules import Rule
from extender.schedulerconfig import managed_resources
from extender.serve.book import Book
from extender.serve.metrics import Metrics
from extender.serve.webhook import WebhookDoor, admission
from tests.builders import Json

QUEUE = Queue("pool", "training")
KVITEJ = "system:serviceaccount:kvitej:kvitej"
DATA = Path(__file__).parents[1] / "data" / "wire"
RECORDED = {
    name: (DATA / f"admission-review-{name}.json").read_bytes() for name in ("create", "validate", "update")
}


class Training:
    def __init__(self, depth: int, rules: tuple[Rule, ...]) -> None:
        tenant = Tenant("training", 1, queue_depth=depth, priority_classes=frozenset(("low",)))
        self.policy = Policy(
            "pool", (tenant,), node_selector={"pool": "a"}, foreign=Foreign.DENY, rules=rules
        )

    def place(self, namespace: str, namespace_labels: Mapping[str, str], scheduler_name: str) -> Place | None:
        return Place(self.policy, self.policy.tenant(namespace))


class Served:
    def __init__(
        self, depth: int = 1_000, config: Config | None = None, rules: tuple[Rule, ...] = ()
    ) -> None:
        book = Book(ClusterState(managed_resources()))
        self.metrics = Metrics(book.snapshot, lambda: ())
        self.depths = QueueDepths()
        self.door = WebhookDoor(
            admission(config or Config(), Training(depth, rules), lambda _: {}),
            self.depths,
            self.metrics,
            lambda: 0.0,
        )

    @property
    def waiting(self) -> int:
        return self.depths.depth(QUEUE, 0.0)


def review(body: bytes, **request: Any) -> bytes:
    document = json.loads(body)
    document["request"] |= request
    return json.dumps(document).encode()


def response(answer: bytes) -> Json:
    document = json.loads(answer)
    assert list(document) == ["apiVersion", "kind", "response"]
    assert (document["apiVersion"], document["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    found: Json = document["response"]
    assert isinstance(found["uid"], str)
    assert type(found["allowed"]) is bool
    if found["allowed"]:
        assert "status" not in found
        assert ("patch" in found) == ("patchType" in found)
    else:
        assert found["status"]["code"] in (400, 403, 422, 429)
        assert len(found["status"]["message"]) > 20
        assert "patch" not in found
    return found


def patch_of(found: Json) -> list[Json]:
    operations: list[Json] = json.loads(base64.b64decode(found.get("patch", "W10=")))
    return operations
