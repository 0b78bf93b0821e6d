"""What the control-plane tests of kvitej have in common: a cluster for it, pods in numbers, and the recount."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from bench.recount import recount
from tests.controlplane.api import Api, ApiError, Object, wait_until
from tests.controlplane.extender import Extender

ANNOTATION = "kvitej.io/devices"


async def clear(api: Api) -> None:
    """Delete every pod at once, and every node."""
    await api._ask("DELETE", "/api/v1/namespaces/default/pods", {"gracePeriodSeconds": 0})
    await api._ask("DELETE", "/api/v1/nodes")
    await wait_until(lambda: _none(api), 30, "all pods and nodes deleted")


async def _none(api: Api) -> bool:
    return not await api.list("/api/v1/pods") and not await api.list("/api/v1/nodes")


async def pods(api: Api) -> dict[str, Object]:
    """Pods by name."""
    return {pod["metadata"]["name"]: pod for pod in await api.list("/api/v1/pods")}


def node_of(pod: Object) -> str | None:
    name: str | None = pod["spec"].get("nodeName")
    return name


async def wait_bound(api: Api, count: int, timeout: float) -> dict[str, Object]:
    """Wait until `count` pods have a node; TimeoutError says what the others wait for."""
    found: dict[str, Object] = {}

    async def enough() -> bool:
        found.clear()
        found.update(await pods(api))
        return sum(node_of(pod) is not None for pod in found.values()) >= count

    def describe() -> str:
        waiting = [pod for pod in found.values() if node_of(pod) is None]
        why = {json.dumps(pod.get("status", {}).get("conditions")) for pod in waiting[:20]}
        return f"{count} pods bound; {len(waiting)} wait: {sorted(why)[:3]}"

    await wait_until(enough, timeout, describe, interval=0.3)
    return found


async def assert_no_double_seat(api: Api) -> None:
    """Recount from the API server alone."""
    assert recount(await api.list("/api/v1/nodes"), await api.list("/api/v1/pods")) == []


async def assert_book_agrees(api: Api, extender: Extender, *, foreign: int = 0) -> None:
    """The book's seats are the bound pods, none is reserved or claimed, and nothing was bound past us."""

    async def agrees() -> bool:
        bound = sum(node_of(pod) is not None for pod in await api.list("/api/v1/pods"))
        return (
            extender.metric("kvitej_seats", phase="bound"),
            extender.metric("kvitej_seats", phase="reserved"),
            extender.metric("kvitej_seats", phase="uncertain"),
        ) == (bound, 0, 0)

    await wait_until(
        agrees, 20, lambda: f"the book agrees with the API server; kvitej says\n{extender.tail(5)}"
    )
    assert extender.metric("kvitej_pods_bound_past_us") == foreign
    assert "Traceback" not in extender.log.read_text()


def record_of(pod: Object) -> Any:
    """The annotation kvitej.io/devices, decoded."""
    return json.loads(pod["metadata"]["annotations"][ANNOTATION])


async def events(api: Api, reason: str) -> list[Object]:
    return [event for event in await api.list("/api/v1/events") if event["reason"] == reason]


async def bind_by_hand(api: Api, name: str, node: str) -> None:
    """Bind a pod past kvitej, as another scheduler would."""
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }
    await api.post(f"/api/v1/namespaces/default/pods/{name}/binding", binding)


async def delete_if_there(api: Api, name: str) -> None:
    try:
        await api.delete_pod("default", name)
    except ApiError as error:
        if error.status != 404:
            raise


async def in_background(work: Callable[[], Any]) -> Any:
    """Run what blocks without stopping the loop."""
    return await asyncio.to_thread(work)
