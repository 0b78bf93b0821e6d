"""Lifts our gate by hand, for emergencies and before an uninstall; gates of others stay."""

import asyncio
from pathlib import Path
from urllib.parse import quote

import msgspec

from extender.kube.client import STRATEGIC_MERGE_PATCH, ApiError, Client, StatusError, connect
from extender.wire.marks import GATE
from extender.wire.objects import Pod, PodList

PAGE = 500
IN_FLIGHT = 32

Released = list[tuple[str, str | None]]
"""Pods as NAMESPACE/NAME, each with what went wrong, or None where the gate is lifted."""


def release_by_hand(
    kubeconfig: Path | None, *, namespace: str | None, pod: str | None, user: str | None
) -> Released:
    """Lift the gate of one pod (in `default` unless a namespace is given), of a namespace, or of all pods.

    Parameters
    ----------
    kubeconfig
        None for the service account of this pod.
    user
        The API user to act as.

    Raises
    ------
    KubeConfigError
        The cluster can't be reached as configured.
    ApiError
        The pods can't be read, or there is no such pod.
    """
    return asyncio.run(_release(kubeconfig, namespace, pod, user))


async def _release(
    kubeconfig: Path | None, namespace: str | None, pod: str | None, user: str | None
) -> Released:
    async with await connect(kubeconfig, impersonate=user) as client:
        if pod is not None:
            found = [await _read(client, namespace or "default", pod)]
            if not _is_gated(found[0]):
                return [(_named(found[0]), f"it does not have the gate {GATE}")]
        else:
            found = [each for each in await _list(client, namespace) if _is_gated(each)]
        limit = asyncio.Semaphore(IN_FLIGHT)
        problems = await asyncio.gather(*(_lift(client, each, limit) for each in found))
        return [(_named(each), problem) for each, problem in zip(found, problems, strict=True)]


async def _lift(client: Client, pod: Pod, limit: asyncio.Semaphore) -> str | None:
    """What keeps the gate in place, if anything; the uid is a precondition."""
    gone = {"$patch": "delete", "name": GATE}
    patch = {"metadata": {"uid": pod.metadata.uid}, "spec": {"schedulingGates": [gone]}}
    try:
        path = _path(pod.metadata.namespace, pod.metadata.name)
        async with limit:
            answer = await client.patch(path, msgspec.json.encode(patch), STRATEGIC_MERGE_PATCH)
    except ApiError as error:
        return str(error)
    return None if answer.status in (200, 404) else str(StatusError(answer))


async def _read(client: Client, namespace: str, name: str) -> Pod:
    answer = await client.get(_path(namespace, name))
    if answer.status != 200:
        raise StatusError(answer)
    return msgspec.json.decode(answer.body, type=Pod)


async def _list(client: Client, namespace: str | None) -> list[Pod]:
    found: list[Pod] = []
    query = {"limit": str(PAGE)}
    while True:
        answer = await client.get(_path(namespace), query)
        if answer.status != 200:
            raise StatusError(answer)
        page = msgspec.json.decode(answer.body, type=PodList)
        found += page.items or []
        if not page.metadata.continue_:
            return found
        query["continue"] = page.metadata.continue_


def _path(namespace: str | None, name: str | None = None) -> str:
    start = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods" if namespace else "/api/v1/pods"
    return f"{start}/{quote(name, safe='')}" if name else start


def _is_gated(pod: Pod) -> bool:
    return any(gate.name == GATE for gate in (pod.spec and pod.spec.scheduling_gates) or ())


def _named(pod: Pod) -> str:
    return f"{pod.metadata.namespace}/{pod.metadata.name}"
