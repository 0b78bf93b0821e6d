"""A fake API server over HTTP for what kvitej follows and writes, with the faults of a real one on demand.

Watches send the bytes that are stored, so that 5,000 nodes and 50,000 pods stream as fast as a client reads.
Versions, bookmarks, WatchList, 410, preconditions and binding rules follow the real server. In a test it runs
in the loop (`async with FakeApiServer() as server`); for benches it is a process of its own:
`python -m tests.fakes.apiserver --nodes 5000 --pods 50000` prints its URL as the first line.
"""

import argparse
import asyncio
import contextlib
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import yaml
from aiohttp import web

from tests.fakes.cluster import (
    KINDS,
    Cluster,
    Json,
    Stored,
    Watcher,
    event_line,
    patched,
    selector,
    stepwise_patched,
    strategically_patched,
)

TOKEN = "fake-token"
OBJECTS_PER_CHUNK = 64


class FakeApiServer(Cluster):
    """The server, its store and its switches.

    Attributes
    ----------
    requests : list of (method, path with query)
        Everything that was asked, in order.
    recorded : list of dict
        Events that were created.
    refuse : int or None
        The status of every answer, for as long as it is set.
    refuse_watch_list, gone_as_status, withhold_marker : bool
        Answer WatchList with 400; answer a version that is too old with status 410 instead of an ERROR event;
        leave out the bookmark that ends a WatchList's initial events.
    absent : set of str
        Resources that it does not know: 404, as for a custom resource without its definition.
    exhausted : bool
        A disruption budget allows no eviction.
    users : dict of str to dict
        Whom TokenReview knows, by token: username, and perhaps uid, groups, extra.
    rights : set of (username, verb, resource with its group, namespace)
        What SubjectAccessReview grants; the namespace is empty for what is in none.
    before_binding, after_binding : int or "drop" or "hang" or None
        What the next binding gets instead of its answer, before or after it was done: a status, a closed
        connection, or silence. Used once.
    before_write, after_write : dict
        The same for patches and evictions, by the last part of the path: a pod's name, status or eviction.
    """

    def __init__(self, *, bookmark_seconds: float = 60.0, token: str = TOKEN) -> None:
        super().__init__()
        self.url = ""
        self.requests: list[tuple[str, str]] = []
        self.recorded: list[Json] = []
        self.refuse: int | None = None
        self.refuse_watch_list = self.gone_as_status = self.withhold_marker = False
        self.before_binding: int | str | None = None
        self.after_binding: int | str | None = None
        self.absent: set[str] = set()
        self.exhausted = False
        self.users: dict[str, Json] = {}
        self.rights: set[tuple[str, str, str, str]] = set()
        self.before_write: dict[str, int | str] = {}
        self.after_write: dict[str, int | str] = {}
        self.token = token
        self.bookmark_seconds = bookmark_seconds
        self._requests: dict[Watcher, web.Request] = {}
        self._running = asyncio.Event()
        self._running.set()
        self._runner: web.AppRunner | None = None
        self._port = 0

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen on loopback; after a stop, on the same port as before."""
        app = web.Application(middlewares=[self._gate])
        for path in (
            "/api/v1/{resource:nodes|pods|namespaces}",
            "/apis/scheduling.k8s.io/v1/{resource:priorityclasses}",
            "/apis/policy/v1/{resource:poddisruptionbudgets}",
            "/apis/kvitej.io/v1alpha1/{resource:fairnesspolicies|gpunodes}",
            "/apis/coordination.k8s.io/v1/namespaces/kvitej/{resource:leases}",
        ):
            app.router.add_get(path, self._list_or_watch)
        app.router.add_patch(
            "/apis/kvitej.io/v1alpha1/fairnesspolicies/{name}/{part:status}", self._patch_policy
        )
        for path in (
            "/apis/kvitej.io/v1alpha1/{resource:gpunodes}",
            "/apis/coordination.k8s.io/v1/namespaces/{namespace:kvitej}/{resource:leases}",
        ):
            app.router.add_post(path, self._create)
            app.router.add_get(path + "/{name}", self._get)
            app.router.add_patch(path + "/{name}", self._patch_part)
            app.router.add_patch(path + "/{name}/{part:status}", self._patch_part)
        app.router.add_get("/api/v1/nodes/{name}", self._get)
        app.router.add_patch("/api/v1/nodes/{name}", self._patch)
        pod = "/api/v1/namespaces/{namespace}/pods/{name}"
        app.router.add_get(pod, self._get)
        app.router.add_patch(pod, self._patch)
        app.router.add_delete(pod, self._delete)
        app.router.add_patch(pod + "/{part:status}", self._patch)
        app.router.add_post(pod + "/binding", self._bind)
        app.router.add_post(pod + "/eviction", self._evict)
        app.router.add_post("/api/v1/namespaces/{namespace}/events", self._record)
        app.router.add_post("/apis/authentication.k8s.io/v1/tokenreviews", self._review_token)
        app.router.add_post("/apis/authorization.k8s.io/v1/subjectaccessreviews", self._review_access)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await site.start()
        self._port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self._port}"

    async def stop(self) -> None:
        """Refuse connections from now on; what is stored stays."""
        assert self._runner is not None
        self.resume()
        self.cut_watches()
        await self._runner.cleanup()

    def write_kubeconfig(self, path: Path) -> Path:
        """Write a kubeconfig with the token for this server."""
        path.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "fake",
                    "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake"}}],
                    "clusters": [{"name": "fake", "cluster": {"server": self.url}}],
                    "users": [{"name": "fake", "user": {"token": self.token}}],
                }
            )
        )
        return path

    @property
    def watches(self) -> int:
        return len(self.watchers)

    def cut_watches(self) -> None:
        """Close the connections of all watches at once, in the middle of a line if need be."""
        for request in self._requests.values():
            if request.transport is not None:
                request.transport.abort()

    def end_watches(self) -> None:
        """End all watches cleanly, as the server does after timeoutSeconds."""
        for watcher in self.watchers:
            watcher.lines.put_nowait(None)

    def send(self, resource: str, line: bytes) -> None:
        """Send a raw line to every watch of the resource."""
        for watcher in self.watchers:
            if watcher.resource == resource:
                watcher.lines.put_nowait(line)

    def pause(self) -> None:
        """Answer nothing and send nothing until `resume`."""
        self._running.clear()

    def resume(self) -> None:
        self._running.set()

    @web.middleware
    async def _gate(self, request: web.Request, handler: Callable[[web.Request], Any]) -> web.StreamResponse:
        self.requests.append((request.method, request.path_qs))
        await self._running.wait()
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            return _status(401, "Unauthorized")
        if self.refuse is not None:
            return _status(self.refuse, "not now")
        part = request.path.rpartition("/")[2]
        if request.method == "GET":
            part = ""
        if (before := self.before_write.pop(part, None)) is not None:
            return await self._fault(request, before)
        response: web.StreamResponse = await handler(request)
        if (after := self.after_write.pop(part, None)) is not None:
            return await self._fault(request, after)
        return response

    async def _list_or_watch(self, request: web.Request) -> web.StreamResponse:
        resource = request.match_info["resource"]
        if resource in self.absent:
            return web.Response(text="404 page not found", status=404)
        if request.query.get("watch") == "true":
            return await self._watch(request, resource)
        return self._list(request, resource)

    def _list(self, request: web.Request, resource: str) -> web.Response:
        limit = int(request.query.get("limit", "0")) or sys.maxsize
        token = request.query.get("continue")
        if token is None:
            version, bodies = (
                self.version,
                self.bodies(resource, selector(request.query.get("fieldSelector", ""))),
            )
        elif token in self.pages:
            version, bodies = self.pages.pop(token)
        else:
            return _status(410, "The provided continue parameter is too old.", "Expired")
        meta = {"resourceVersion": str(version)}
        if len(bodies) > limit:
            meta["continue"] = f"page-{self.version}-{uuid.uuid4().hex}"
            self.pages[meta["continue"]] = (version, bodies[limit:])
        head = msgspec.json.encode({"kind": f"{KINDS[resource]}List", "apiVersion": "v1", "metadata": meta})
        body = head[:-1] + b',"items":[' + b",".join(bodies[:limit]) + b"]}"
        return web.Response(body=body, content_type="application/json")

    async def _watch(self, request: web.Request, resource: str) -> web.StreamResponse:
        query = request.query
        whole = query.get("sendInitialEvents") == "true"
        if whole and self.refuse_watch_list:
            return _status(400, "sendInitialEvents is forbidden for watch", "BadRequest")
        watcher = Watcher(resource, selector(request.query.get("fieldSelector", "")))
        too_old = False
        first: Iterable[bytes] = ()
        if whole:
            marker = b"" if self.withhold_marker else self.bookmark(resource, initial_events_end=True)
            first = _added(self.bodies(resource, watcher.matches), marker)
        elif (since := int(query.get("resourceVersion", "0"))) < self.compacted:
            too_old = True
        else:
            first = [b"".join(self.since(since, watcher))]
        if too_old and self.gone_as_status:
            return _status(410, f"too old resource version: {since} ({self.compacted})", "Expired")
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        self.watchers.add(watcher)
        self._requests[watcher] = request
        try:
            await response.prepare(request)
            if too_old:
                message = f"too old resource version: {since} ({self.compacted})"
                await response.write(event_line("ERROR", _status_body(410, message, "Expired")))
                return response
            for chunk in filter(None, first):
                await response.write(chunk)
            async with asyncio.timeout(float(query.get("timeoutSeconds", "1800"))):
                await self._send_lines(watcher, response)
        except (TimeoutError, ConnectionError):
            pass
        finally:
            self.watchers.discard(watcher)
            del self._requests[watcher]
        return response

    async def _send_lines(self, watcher: Watcher, response: web.StreamResponse) -> None:
        while True:
            try:
                async with asyncio.timeout(self.bookmark_seconds):
                    lines = [await watcher.lines.get()]
            except TimeoutError:
                lines = [self.bookmark(watcher.resource)]
            while not watcher.lines.empty():
                lines.append(watcher.lines.get_nowait())
            await self._running.wait()
            ended = None in lines
            await response.write(b"".join(line for line in lines if line is not None))
            if ended:
                return

    async def _get(self, request: web.Request) -> web.Response:
        _, stored = self._find(request)
        if stored is None:
            return _not_found(request)
        return web.Response(body=stored.body, content_type="application/json")

    async def _patch(self, request: web.Request) -> web.Response:
        key, stored = self._find(request)
        if stored is None:
            return _not_found(request)
        patch = await request.json()
        if patch.get("metadata", {}).get("uid", stored.uid) != stored.uid:
            return _status(409, "the UID in the precondition does not match", "Conflict")
        resource = "pods" if "namespace" in request.match_info else "nodes"
        # The status goes by its own path, and there the spec does not.
        patch.pop("spec" if "part" in request.match_info else "status", None)
        strategic = request.content_type == "application/strategic-merge-patch+json"
        merge = strategically_patched if strategic else patched
        self.put(resource, key, merge(msgspec.json.decode(stored.body), patch))
        return web.Response(body=self.stores[resource][key].body, content_type="application/json")

    async def _create(self, request: web.Request) -> web.Response:
        made = await request.json()
        made.pop("status", None)
        resource, key = request.match_info["resource"], made["metadata"]["name"]
        if "namespace" in request.match_info:
            key = f"{request.match_info['namespace']}/{key}"
        if key in self.stores[resource]:
            return _status(409, f"{key} already exists", "AlreadyExists")
        self.put(resource, key, made)
        return web.Response(status=201, body=self.stores[resource][key].body, content_type="application/json")

    async def _patch_part(self, request: web.Request) -> web.Response:
        """A merge patch or a JSON patch, of the status or of all the rest."""
        key, stored = self._find(request)
        if stored is None:
            return _not_found(request)
        patch, before = await request.json(), msgspec.json.decode(stored.body)
        jsonpatch = request.content_type == "application/json-patch+json"
        after = stepwise_patched(before, patch) if jsonpatch else patched(before, patch)
        if "part" in request.match_info:
            after = {**before, "status": after.get("status", {})}
        elif "status" in before:
            after["status"] = before["status"]
        resource = request.match_info["resource"]
        self.put(resource, key, after)
        return web.Response(body=self.stores[resource][key].body, content_type="application/json")

    async def _patch_policy(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        stored = self.stores["fairnesspolicies"].get(name)
        if stored is None:
            return _not_found(request)
        status = {"status": (await request.json())["status"]}
        self.put("fairnesspolicies", name, patched(msgspec.json.decode(stored.body), status))
        return _status(200, "", "Success")

    async def _evict(self, request: web.Request) -> web.Response:
        key, stored = self._find(request)
        eviction = await request.json()
        if stored is None:
            return _not_found(request)
        if eviction["deleteOptions"]["preconditions"]["uid"] != stored.uid:
            return _status(409, "the UID in the precondition does not match", "Conflict")
        if self.exhausted:
            message = "Cannot evict pod as it would violate the pod's disruption budget."
            return _status(429, message, "TooManyRequests")
        deletion = {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}
        self.put("pods", key, patched(msgspec.json.decode(stored.body), deletion))
        return _status(201, "", "Success")

    async def _delete(self, request: web.Request) -> web.Response:
        key, stored = self._find(request)
        if stored is None:
            return _not_found(request)
        if stored.node and request.query.get("gracePeriodSeconds") != "0":
            deletion = {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}
            self.put("pods", key, patched(msgspec.json.decode(stored.body), deletion))
        else:
            self.delete("pods", key)
        return _status(200, "", "Success")

    async def _bind(self, request: web.Request) -> web.StreamResponse:
        binding = await request.json()
        before, self.before_binding = self.before_binding, None
        if before is not None:
            return await self._fault(request, before)
        answer = self._bound(request, binding)
        after, self.after_binding = self.after_binding, None
        return answer if after is None else await self._fault(request, after)

    def _bound(self, request: web.Request, binding: Json) -> web.Response:
        key, stored = self._find(request)
        name, meta, target = request.match_info["name"], binding["metadata"], binding["target"]
        if stored is None:
            return _not_found(request)
        if meta.get("name") != name:
            return _status(400, "the name of the object does not match the name on the URL", "BadRequest")
        if not target.get("name"):
            return _status(422, "target.name: Required value", "Invalid")
        content = msgspec.json.decode(stored.body)
        problem = None
        if meta.get("uid", stored.uid) != stored.uid:
            problem = f"the UID in the precondition ({meta['uid']}) does not match ({stored.uid})"
        elif stored.node:
            problem = f"pod {name} is already assigned to node {stored.node!r}"
        elif "deletionTimestamp" in content["metadata"]:
            problem = f"pod {name} is being deleted, cannot be assigned to a host"
        elif content.get("spec", {}).get("schedulingGates"):
            problem = f"pod {name} has non-empty .spec.schedulingGates"
        if problem:
            return _status(409, f"Operation cannot be fulfilled on pods/binding: {problem}", "Conflict")
        change = {
            "metadata": {"annotations": meta.get("annotations") or {}},
            "spec": {"nodeName": target["name"]},
        }
        self.put("pods", key, patched(content, change))
        return _status(201, "", "Success")

    async def _record(self, request: web.Request) -> web.Response:
        event = await request.json()
        if event["involvedObject"]["namespace"] != request.match_info["namespace"]:
            return _status(422, "involvedObject.namespace: does not match event.namespace", "Invalid")
        self.recorded.append(event)
        return web.json_response(event, status=201)

    async def _review_token(self, request: web.Request) -> web.Response:
        review = await request.json()
        user = self.users.get(review["spec"]["token"])
        status: Json = (
            {"authenticated": True, "user": user} if user else {"user": {}, "error": "no such token"}
        )
        return web.json_response({**review, "status": status}, status=201)

    async def _review_access(self, request: web.Request) -> web.Response:
        review = await request.json()
        spec = review["spec"]
        asked = spec["resourceAttributes"]
        resource = ".".join(filter(None, (asked["resource"], asked["group"])))
        allowed = (spec["user"], asked["verb"], resource, asked.get("namespace", "")) in self.rights
        return web.json_response({**review, "status": {"allowed": allowed}}, status=201)

    async def _fault(self, request: web.Request, fault: int | str) -> web.StreamResponse:
        if isinstance(fault, int):
            return _status(fault, "injected", "InternalError")
        if fault == "hang":
            await asyncio.sleep(3600)
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    def _find(self, request: web.Request) -> tuple[str, Stored | None]:
        name, namespace = request.match_info["name"], request.match_info.get("namespace")
        key = f"{namespace}/{name}" if namespace else name
        resource = request.match_info.get("resource", "pods" if namespace else "nodes")
        return key, self.stores[resource].get(key)


def _added(bodies: list[bytes], last: bytes) -> Iterator[bytes]:
    """All objects as ADDED lines in large pieces, then the last line."""
    for start in range(0, len(bodies), OBJECTS_PER_CHUNK):
        piece = b'}\n{"type":"ADDED","object":'.join(bodies[start : start + OBJECTS_PER_CHUNK])
        yield b'{"type":"ADDED","object":%s}\n' % piece
    yield last


def _status_body(code: int, message: str, reason: str) -> bytes:
    return msgspec.json.encode(
        {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Success" if code < 300 else "Failure",
            "message": message,
            "reason": reason,
            "code": code,
        }
    )


def _status(code: int, message: str, reason: str = "") -> web.Response:
    body = _status_body(code, message, reason)
    return web.Response(body=body, status=code, content_type="application/json")


def _not_found(request: web.Request) -> web.Response:
    return _status(404, f'"{request.match_info["name"]}" not found', "NotFound")


@contextlib.asynccontextmanager
async def serving(nodes: int, pods: int) -> AsyncIterator[FakeApiServer]:
    """A server with a large cluster in it."""
    server = FakeApiServer()
    server.fill(nodes, pods)
    async with server:
        yield server


async def _serve_until_killed(nodes: int, pods: int, kubeconfig: Path | None) -> None:
    async with serving(nodes, pods) as server:
        if kubeconfig:
            server.write_kubeconfig(kubeconfig)
        print(server.url, flush=True)
        await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fakes.apiserver")
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pods", type=int, default=50_000)
    parser.add_argument("--kubeconfig", type=Path, help="also write a kubeconfig with the token there")
    arguments = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve_until_killed(arguments.nodes, arguments.pods, arguments.kubeconfig))


if __name__ == "__main__":
    main()
