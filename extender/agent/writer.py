"""What one node's agent writes to the API server: its GPUNode, and the Lease that says the GPUNode is current.

A report is written with a JSON patch of the parts that differ from what was written last; when that isn't known for
sure (at the start, after a lost answer), the whole status is replaced. Each object has an owner: the Lease the
GPUNode, the GPUNode the Node, so that what a removed node leaves behind is collected. And since the Lease goes when
the GPUNode does, a heartbeat that finds no Lease knows that everything has to be written anew.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec
import structlog

from extender.kube.client import MERGE_PATCH, Answer, Client, StatusError
from extender.wire.gpunode import API_VERSION, KIND, PATH, GPUNode
from extender.wire.objects import Slim

log = structlog.get_logger(__name__)

NAMESPACE = "kvitej"
"""Of the Leases."""

JSON_PATCH = "application/json-patch+json"

Object = dict[str, Any]


class _Meta(Slim):
    uid: str = ""


class _Stored(Slim):
    metadata: _Meta


class Report(NamedTuple):
    """A GPUNode's two parts, as JSON has them."""

    spec: Mapping[str, Any]
    status: Mapping[str, Any]


class NodeWriter:
    """Writes for the node `node`; every call raises ApiError where it has not certainly succeeded.

    Parameters
    ----------
    lasts
        Seconds after which a Lease that is not renewed is stale; for people and other programs to read, since
        `kvitej serve` has its own limit.
    timeout
        Seconds for each call to the API server.

    Attributes
    ----------
    written : Report or None
        What the API server has for certain; None when that isn't known.
    """

    def __init__(self, client: Client, node: str, *, lasts: float = 90.0, timeout: float = 10.0) -> None:
        self.written: Report | None = None
        self._client = client
        self._node = node
        self._lasts = lasts
        self._timeout = timeout
        self._uid = ""
        self._begun = _micro(datetime.now(UTC))
        name = quote(node, safe="")
        self._report_path = f"{PATH}/{name}"
        self._leases_path = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
        self._lease_path = f"{self._leases_path}/{name}"
        self._node_path = f"/api/v1/nodes/{name}"

    async def read(self) -> GPUNode | None:
        """What the API server has; None when there is nothing, or nothing that can be read."""
        answer = await self._client.get(self._report_path, timeout=self._timeout)
        if answer.status == 404:
            return None
        try:
            return msgspec.json.decode(_wanted(answer, 200).body, type=GPUNode)
        except msgspec.DecodeError as error:
            log.warning("the report from before can't be read", reason=str(error))
            return None

    async def report(self, report: Report) -> None:
        """Have the GPUNode say this, and create it first where there is none."""
        before, self.written = self.written, None  # until the answers are there, nobody knows what is stored
        if before is None or not await self._change(before, report):
            await self._replace(report)
        self.written = report

    async def beat(self, now: datetime) -> None:
        """Renew the Lease: the GPUNode holds at `now`. `report` must have succeeded before."""
        renewed = {"holderIdentity": self._node, "leaseDurationSeconds": round(self._lasts)}
        renewed["renewTime"] = _micro(now)
        answer = await self._client.patch(
            self._lease_path, msgspec.json.encode({"spec": renewed}), MERGE_PATCH, timeout=self._timeout
        )
        if answer.status != 404:
            _wanted(answer, 200)
            return
        report, self.written = self.written, None
        if report is not None:
            await self.report(report)
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": self._meta(API_VERSION, KIND, self._uid),
            "spec": {**renewed, "acquireTime": self._begun},
        }
        body = msgspec.json.encode(lease)
        _wanted(await self._client.post(self._leases_path, body, timeout=self._timeout), 201)

    async def _change(self, before: Report, report: Report) -> bool:
        """Write the differences; False when there is no GPUNode any more."""
        for path, part in (("", "spec"), ("/status", "status")):
            patch = _differences(part, getattr(before, part), getattr(report, part))
            if not patch:
                continue
            answer = await self._patch(path, patch)
            if answer.status == 404:
                return False
            _wanted(answer, 200)
        return True

    async def _replace(self, report: Report) -> None:
        answer = await self._patch("", [_replaced("spec", report.spec)])
        if answer.status == 404:
            answer = await self._create(report.spec)
        self._uid = msgspec.json.decode(_wanted(answer, 200, 201).body, type=_Stored).metadata.uid
        _wanted(await self._patch("/status", [_replaced("status", report.status)]), 200)

    async def _patch(self, part: str, patch: list[Object]) -> Answer:
        body = msgspec.json.encode(patch)
        return await self._client.patch(self._report_path + part, body, JSON_PATCH, timeout=self._timeout)

    async def _create(self, spec: Mapping[str, Any]) -> Answer:
        found = _wanted(await self._client.get(self._node_path, timeout=self._timeout), 200)
        metadata = self._meta("v1", "Node", msgspec.json.decode(found.body, type=_Stored).metadata.uid)
        made = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}
        answer = await self._client.post(PATH, msgspec.json.encode(made), timeout=self._timeout)
        return _wanted(answer, 201)

    def _meta(self, api_version: str, kind: str, uid: str) -> Object:
        owner = {"apiVersion": api_version, "kind": kind, "name": self._node, "uid": uid}
        labels = {"app.kubernetes.io/name": "kvitej", "app.kubernetes.io/component": "agent"}
        return {"name": self._node, "labels": labels, "ownerReferences": [owner]}


def _replaced(path: str, value: Any) -> Object:
    """The step of a JSON patch that leaves nothing of what was there."""
    return {"op": "add", "path": f"/{path}", "value": value}


def _differences(part: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Object]:
    """The JSON patch that makes the `old` part the `new` one."""
    gone = [{"op": "remove", "path": f"/{part}/{key}"} for key in old if key not in new]
    changed = [key for key, value in new.items() if key not in old or old[key] != value]
    return gone + [_replaced(f"{part}/{key}", new[key]) for key in changed]


def _wanted(answer: Answer, *statuses: int) -> Answer:
    if answer.status not in statuses:
        raise StatusError(answer)
    return answer


def _micro(moment: datetime) -> str:
    """As `metav1.MicroTime` writes it."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
