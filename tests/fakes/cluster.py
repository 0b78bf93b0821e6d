"""The state behind the fake API server: objects as encoded bytes, versions, history and open watches."""

import asyncio
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from tests.fakes import objects

KINDS = {
    "nodes": "Node",
    "pods": "Pod",
    "namespaces": "Namespace",
    "priorityclasses": "PriorityClass",
    "poddisruptionbudgets": "PodDisruptionBudget",
    "fairnesspolicies": "FairnessPolicy",
    "gpunodes": "GPUNode",
    "leases": "Lease",
}
_SELECTABLE = {"status.phase": "phase", "spec.nodeName": "node", "metadata.name": "name"}

Json = dict[str, Any]
Selector = Callable[["Stored"], bool]


class Stored(NamedTuple):
    """One object at one version; the fields beside `body` are what selectors and bindings look at."""

    body: bytes
    uid: str
    name: str
    phase: str = ""
    node: str = ""


@dataclass(eq=False)
class Watcher:
    """One open watch: what it is to send waits in `lines`; None ends it cleanly."""

    resource: str
    matches: Selector
    lines: asyncio.Queue[bytes | None] = field(default_factory=asyncio.Queue)


class Cluster:
    """Objects of each kind; every change is published to the watches that select it.

    Attributes
    ----------
    version, compacted : int
        The latest resourceVersion, and the oldest that a watch may still go on from.
    stores : dict of dict
        Resource → key (name, or namespace/name) → object.
    watchers : set of Watcher
        Open watches; who sends their lines adds and removes them.
    pages : dict
        Continue token → version and the encoded objects that are still to be listed.
    """

    def __init__(self) -> None:
        self.version = self.compacted = 1000
        self.stores: dict[str, dict[str, Stored]] = {resource: {} for resource in KINDS}
        self.watchers: set[Watcher] = set()
        self.pages: dict[str, tuple[int, list[bytes]]] = {}
        self._history: deque[tuple[int, str, str, Stored | None, Stored]] = deque(maxlen=100_000)

    def put_node(self, name: str, **node: Any) -> str:
        """Create or change a node from whole parts (`labels=`, `status=`, …); return its uid."""
        return self.put("nodes", name, objects.node(name, **node))

    def put_pod(self, name: str, namespace: str = "default", **pod: Any) -> str:
        """Create or change a pod from whole parts (`spec=`, `status=`, …); return its uid."""
        return self.put("pods", f"{namespace}/{name}", objects.pod(name, namespace, **pod))

    def put(self, resource: str, key: str, content: Json) -> str:
        """Store any object, readable or not, under the next version; return its uid."""
        before = self.stores[resource].get(key)
        meta: Json = {**content.get("metadata", {})}
        meta.setdefault("uid", before.uid if before else str(uuid.uuid4()))
        self.version += 1
        meta["resourceVersion"] = str(self.version)
        after = _stored({"kind": KINDS[resource], "apiVersion": "v1", **content, "metadata": meta})
        self.stores[resource][key] = after
        self._publish(resource, "MODIFIED" if before else "ADDED", before, after)
        return after.uid

    def delete(self, resource: str, key: str) -> None:
        before = self.stores[resource].pop(key)
        self.version += 1
        content = msgspec.json.decode(before.body)
        content["metadata"]["resourceVersion"] = str(self.version)
        self._publish(resource, "DELETED", before, _stored(content))

    def pod(self, name: str, namespace: str = "default") -> Json:
        """The stored pod, decoded."""
        return self.read("pods", f"{namespace}/{name}")

    def read(self, resource: str, key: str) -> Json:
        """Any stored object, decoded."""
        content: Json = msgspec.json.decode(self.stores[resource][key].body)
        return content

    def set_phase(self, name: str, phase: str, namespace: str = "default") -> None:
        self.put("pods", f"{namespace}/{name}", {**self.pod(name, namespace), "status": {"phase": phase}})

    def fill(self, nodes: int, pods: int) -> None:
        """Add a large cluster of realistic objects, without telling watches about it."""
        for resource, made in (("nodes", objects.big_nodes(nodes)), ("pods", objects.big_pods(pods, nodes))):
            store = self.stores[resource]
            for key, uid, name, node, template in made:
                self.version += 1
                body = template.replace(b"@VERSION@", b"%d" % self.version)
                store[key] = Stored(body, uid, name, "Running" if node else "", node)
        self.compact()

    def compact(self) -> None:
        """Forget all history: older versions and open list pages are 410 from now on."""
        self.compacted = self.version
        self._history.clear()
        self.pages.clear()

    def bodies(self, resource: str, matches: Selector) -> list[bytes]:
        return [stored.body for stored in self.stores[resource].values() if matches(stored)]

    def since(self, version: int, watcher: Watcher) -> Iterator[bytes]:
        """The lines that a watch from this version has missed."""
        for at, resource, kind, before, after in self._history:
            line = _seen_by(watcher, kind, before, after) if resource == watcher.resource else None
            if line and at > version:
                yield line

    def bookmark(self, resource: str, *, initial_events_end: bool = False) -> bytes:
        """A bookmark line at the current version."""
        meta: Json = {"resourceVersion": str(self.version), "creationTimestamp": None}
        if initial_events_end:
            meta["annotations"] = {"k8s.io/initial-events-end": "true"}
        bookmark = {"kind": KINDS[resource], "apiVersion": "v1", "metadata": meta, "spec": {}, "status": {}}
        return event_line("BOOKMARK", msgspec.json.encode(bookmark))

    def _publish(self, resource: str, kind: str, before: Stored | None, after: Stored) -> None:
        self._history.append((self.version, resource, kind, before, after))
        for watcher in self.watchers:
            if watcher.resource == resource and (line := _seen_by(watcher, kind, before, after)):
                watcher.lines.put_nowait(line)


def selector(text: str) -> Selector:
    """A field selector, as in `status.phase!=Failed,spec.nodeName=n1`."""
    terms: list[tuple[str, str, bool]] = []
    for term in filter(None, text.split(",")):
        name, _, value = term.rpartition("=")
        terms.append((_SELECTABLE[name.rstrip("!=")], value, not name.endswith("!")))
    return lambda stored: all((getattr(stored, at) == value) is wanted for at, value, wanted in terms)


def patched(content: Any, patch: Any) -> Any:
    """The content after a merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(content) if isinstance(content, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = patched(merged.get(key), value)
    return merged


def stepwise_patched(content: Any, patch: Any) -> Any:
    """The content after a JSON patch (RFC 6902) that adds and removes members of objects."""
    changed = msgspec.json.decode(msgspec.json.encode(content))
    for step in patch:
        *parents, last = step["path"].removeprefix("/").split("/")
        holder = changed
        for each in parents:
            holder = holder[each]
        if step["op"] == "add":
            holder[last] = step["value"]
        else:
            del holder[last]
    return changed


def strategically_patched(content: Any, patch: Any) -> Any:
    """The content after a strategic merge patch of a pod, in which gates are merged by name."""
    patch = {**patch, "spec": dict(patch.get("spec", {}))}
    directives = patch["spec"].pop("schedulingGates", [])
    deleted = {each["name"] for each in directives if each.get("$patch") == "delete"}
    merged = patched(content, patch)
    gates = [gate for gate in merged["spec"].get("schedulingGates", []) if gate["name"] not in deleted]
    return patched(merged, {"spec": {"schedulingGates": gates or None}})


def event_line(kind: str, body: bytes) -> bytes:
    return b'{"type":"%s","object":%s}\n' % (kind.encode(), body)


def _stored(content: Json) -> Stored:
    meta = content["metadata"]
    spec, status = content.get("spec"), content.get("status")
    return Stored(
        msgspec.json.encode(content),
        meta["uid"],
        meta["name"],
        (status.get("phase") or "") if isinstance(status, dict) else "",
        (spec.get("nodeName") or "") if isinstance(spec, dict) else "",
    )


def _seen_by(watcher: Watcher, kind: str, before: Stored | None, after: Stored) -> bytes | None:
    """The line of a change for one watch: leaving its selection is a deletion, coming in an addition."""
    was = before is not None and watcher.matches(before)
    now = kind != "DELETED" and watcher.matches(after)
    if not was and not now:
        return None
    return event_line("MODIFIED" if was and now else "ADDED" if now else "DELETED", after.body)
