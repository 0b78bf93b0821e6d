"""A small asynchronous client of the API server for tests and benches, on plain aiohttp.

It speaks the REST API as it is: paths in, decoded JSON objects out. The extender's own client is what is
under test, so nothing here goes through it. `node` and `pod` build the objects that most tests create.
"""

from __future__ import annotations

import asyncio
import inspect
import ssl
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from http import HTTPStatus
from types import TracebackType
from typing import Any, Self

import aiohttp
import msgspec

from tests.controlplane.processes import ControlPlane

Object = dict[str, Any]
Objects = list[Object]
Params = Mapping[str, str]
Body = Mapping[str, Any]

GPU = "nvidia.com/gpu"
CONNECTIONS = 256
JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"


class ApiError(Exception):
    """The API server refused a request: HTTP `status`, and the message of its Status object."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message


class Api:
    """A client of one control plane as one of its users; use as an asynchronous context manager.

    Paths are those of the REST API, for instance `/api/v1/namespaces/default/pods/worker-0`; bodies and
    answers are decoded JSON. Every method raises ApiError for an answer of 400 or above.
    """

    def __init__(self, control_plane: ControlPlane, user: str = "admin") -> None:
        self._url = control_plane.url
        self._ca_file = control_plane.ca_file
        self._token = control_plane.token(user)
        self._resources: dict[str, Objects] = {}

    async def __aenter__(self) -> Self:
        context = ssl.create_default_context(cafile=self._ca_file)
        self._session = aiohttp.ClientSession(
            self._url,
            connector=aiohttp.TCPConnector(ssl=context, limit=CONNECTIONS),
            headers={"Authorization": f"Bearer {self._token}"},
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def get(
        self, path: str, params: Params | None = None, headers: Mapping[str, str] | None = None
    ) -> Object:
        return await self._ask("GET", path, params=params, headers=headers)

    async def text(self, path: str) -> str:
        """What a path that is no API object answers, such as `/metrics`."""
        async with self._session.get(path) as answer:
            await _raise_for(answer)
            return await answer.text()

    async def post(self, path: str, body: Body, params: Params | None = None) -> Object:
        return await self._ask("POST", path, body, params=params)

    async def put(self, path: str, body: Body, params: Params | None = None) -> Object:
        return await self._ask("PUT", path, body, params=params)

    async def patch(self, path: str, body: Body | Objects, content_type: str = MERGE_PATCH) -> Object:
        return await self._ask("PATCH", path, body, content_type=content_type)

    async def delete(self, path: str, body: Body | None = None) -> Object:
        return await self._ask("DELETE", path, body)

    async def list(self, path: str, params: Params | None = None) -> Objects:
        """The items of a collection, for instance `/api/v1/pods`."""
        items: Objects = (await self.get(path, params)).get("items") or []
        return items

    async def watch(
        self, path: str, params: Params | None = None
    ) -> AsyncGenerator[tuple[str, Object], None]:
        """Yield (type, object) of each watch event until the server ends the stream.

        Types are ADDED, MODIFIED, DELETED, BOOKMARK and ERROR (the object is a Status then, for instance
        with code 410); a connection that breaks raises aiohttp.ClientError. Without `resourceVersion` in
        `params` what exists comes first, as ADDED. Leave the loop inside `contextlib.aclosing`, which gives
        the connection back at once.
        """
        timeout = aiohttp.ClientTimeout(total=None)
        query = {"watch": "true", **(params or {})}
        async with self._session.get(path, params=query, timeout=timeout) as answer:
            await _raise_for(answer)
            rest = b""
            async for chunk in answer.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    event = msgspec.json.decode(line)
                    yield event["type"], event["object"]

    async def apply(self, manifest: Body) -> Object:
        """Create the object, or replace the one that has its name; return what the server stored.

        The path is found by the API server's discovery, so every served kind works. A
        CustomResourceDefinition is returned when its kind is served.
        """
        collection = await self._collection(manifest)
        path = f"{collection}/{manifest['metadata']['name']}"
        try:
            stored = await self.post(collection, manifest)
        except ApiError as error:
            if error.status != HTTPStatus.CONFLICT:
                raise
            version = (await self.get(path))["metadata"]["resourceVersion"]
            stored = await self.put(
                path, {**manifest, "metadata": {**manifest["metadata"], "resourceVersion": version}}
            )
        if manifest["kind"] == "CustomResourceDefinition":

            async def established() -> bool:
                conditions = (await self.get(path)).get("status", {}).get("conditions") or []
                return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)

            await wait_until(established, 10, f"{manifest['metadata']['name']} established")
        return stored

    async def create_nodes(self, nodes: Iterable[Object], *, in_flight: int = 64) -> None:
        """Create nodes, `in_flight` requests at a time; the first refusal ends it, as an ApiError."""
        await self._create_all((("/api/v1/nodes", node) for node in nodes), in_flight)

    async def create_pods(self, pods: Iterable[Object], *, in_flight: int = 64) -> None:
        """Create pods in the namespaces they name; otherwise as `create_nodes`."""
        placed = ((f"{_namespace_path('/api/v1', pod)}/pods", pod) for pod in pods)
        await self._create_all(placed, in_flight)

    async def delete_pod(self, namespace: str, name: str, *, force: bool = True) -> None:
        """Delete a pod; with `force` it is gone at once, otherwise a bound pod waits for a kubelet."""
        path = f"/api/v1/namespaces/{namespace}/pods/{name}"
        await self.delete(path, {"gracePeriodSeconds": 0} if force else None)

    async def _ask(
        self,
        method: str,
        path: str,
        body: Body | Objects | None = None,
        *,
        params: Params | None = None,
        content_type: str = JSON,
        headers: Mapping[str, str] | None = None,
    ) -> Object:
        data = None if body is None else msgspec.json.encode(body)
        if body is not None:
            headers = {"Content-Type": content_type}
        async with self._session.request(method, path, data=data, headers=headers, params=params) as answer:
            await _raise_for(answer)
            decoded: Object = msgspec.json.decode(await answer.read())
            return decoded

    async def _create_all(self, wanted: Iterable[tuple[str, Object]], in_flight: int) -> None:
        remaining = iter(wanted)

        async def create() -> None:
            for path, body in remaining:
                await self.post(path, body)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(in_flight):
                    group.create_task(create())
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _collection(self, manifest: Body) -> str:
        version, kind = manifest["apiVersion"], manifest["kind"]
        prefix = f"/apis/{version}" if "/" in version else f"/api/{version}"
        if not any(each["kind"] == kind for each in self._resources.get(prefix, ())):
            self._resources[prefix] = (await self.get(prefix))["resources"]
        for resource in self._resources[prefix]:
            if resource["kind"] == kind and "/" not in resource["name"]:
                if not resource["namespaced"]:
                    return f"{prefix}/{resource['name']}"
                return f"{_namespace_path(prefix, manifest)}/{resource['name']}"
        raise ApiError(HTTPStatus.NOT_FOUND, f"the API server serves no kind {kind} in {version}")


async def wait_until(
    predicate: Callable[[], bool | Awaitable[bool]],
    timeout: float,
    describe: str | Callable[[], str],
    *,
    interval: float = 0.05,
) -> None:
    """Wait until `predicate`, plain or asynchronous, holds; asked every `interval` seconds.

    Raises
    ------
    TimeoutError
        It did not hold within `timeout` seconds; the message is what `describe` says then.
    """
    deadline = time.monotonic() + timeout
    while True:
        holds = predicate()
        if inspect.isawaitable(holds):
            holds = await holds
        if holds:
            return
        if time.monotonic() > deadline:
            what = describe if isinstance(describe, str) else describe()
            raise TimeoutError(f"Not within {timeout:g} s: {what}")
        await asyncio.sleep(interval)


def node(
    name: str,
    *,
    cpu: str = "96",
    memory: str = "1000Gi",
    gpus: int = 8,
    labels: Mapping[str, str] | None = None,
    extra: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    taints: Sequence[Mapping[str, str]] = (),
) -> Object:
    """A ready node with A100-80GB cards and the labels that GPU feature discovery gives it.

    `labels` are added to, or replace, those of feature discovery; `extra` are more allocatable resources, as
    in {"nvidia.com/mig-1g.10gb": "7"}. Without GPUs there is neither the resource nor its labels.
    """
    resources = {"cpu": cpu, "memory": memory, "pods": "110"}
    all_labels = {"kubernetes.io/hostname": name}
    if gpus:
        resources[GPU] = str(gpus)
        all_labels |= {
            f"{GPU}.product": "NVIDIA-A100-SXM4-80GB",
            f"{GPU}.memory": "81920",
            f"{GPU}.count": str(gpus),
        }
    resources |= extra or {}
    all_labels |= labels or {}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": all_labels,
            "annotations": dict(annotations or {}),
        },
        "spec": {"taints": [dict(taint) for taint in taints]},
        "status": {
            "capacity": resources,
            "allocatable": resources,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        },
    }


def pod(
    name: str,
    *,
    namespace: str = "default",
    requests: Mapping[str, int | str] | None = None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    scheduler: str | None = None,
    priority: str | None = None,
    gates: Sequence[str] = (),
    spec: Mapping[str, Any] | None = None,
) -> Object:
    """A pod with one container, which asks for one GPU unless `requests` say otherwise.

    Extended resources (names with a slash) get limits equal to their requests, as the API demands.
    `priority` names a PriorityClass, `gates` are scheduling gates, and `spec` adds further keys to the
    pod's spec.
    """
    wanted = {key: str(value) for key, value in ({GPU: 1} if requests is None else requests).items()}
    limits = {key: value for key, value in wanted.items() if "/" in key}
    container = {"name": "main", "image": "none", "resources": {"requests": wanted, "limits": limits}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": dict(labels or {}),
            "annotations": dict(annotations or {}),
        },
        "spec": {
            "containers": [container],
            **({"schedulerName": scheduler} if scheduler else {}),
            **({"priorityClassName": priority} if priority else {}),
            **({"schedulingGates": [{"name": gate} for gate in gates]} if gates else {}),
            **(spec or {}),
        },
    }


def _namespace_path(prefix: str, manifest: Body) -> str:
    return f"{prefix}/namespaces/{manifest['metadata'].get('namespace', 'default')}"


async def _raise_for(answer: aiohttp.ClientResponse) -> None:
    if answer.status < HTTPStatus.BAD_REQUEST:
        return
    text = await answer.text()
    try:
        message = str(msgspec.json.decode(text)["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        message = text
    raise ApiError(answer.status, message)
