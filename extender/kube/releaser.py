"""Carries out what the planner decided: nominate a node, lift our gate, evict a victim, write a policy's status.

Writes to pods carry the uid of the pod that was meant, so that none hits a successor of the same name. Their
outcome is never guessed: what the API server's answer leaves open is read back, and what stays open is said to be.
"""

import time
from collections.abc import Awaitable, Callable, Mapping
from enum import Enum
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from extender.kube.client import (
    MERGE_PATCH,
    STRATEGIC_MERGE_PATCH,
    Answer,
    AnswerLostError,
    ApiError,
    Client,
    NotSentError,
    StatusError,
)
from extender.kube.writer import Writer, pod_path
from extender.wire.marks import EVICTED, GATE
from extender.wire.objects import Pod
from extender.wire.surroundings import GROUP, VERSION

_WRITE_SHARE = 2 / 3
"""Of a call's time; the rest is for asking what became of it."""


class Result(Enum):
    DONE = "done"
    GONE = "gone"
    """There is no such object any more; at most a successor of its name."""
    REFUSED = "refused"
    """Certainly not done."""
    UNKNOWN = "unknown"
    """The answer was lost or the server in trouble: it may have happened, or may yet."""


class Written(NamedTuple):
    """What became of a write, with a sentence unless it is done."""

    result: Result
    detail: str = ""

    @property
    def done(self) -> bool:
        return self.result is Result.DONE


class Releaser:
    """Calls that carry out the planner's instructions; `timeout` in seconds holds for each write with its read.

    None of them raises anything but cancellation, which leaves the outcome open.
    """

    def __init__(self, client: Client, timeout: float) -> None:
        self._client = client
        self._timeout = timeout
        self._encoder = msgspec.json.Encoder()
        self._pods = Writer(client, timeout)

    async def nominate(self, namespace: str, name: str, uid: str, node: str | None) -> Written:
        """Name the node that the scheduler shall try first; None takes the nomination back."""
        patch = {"metadata": {"uid": uid}, "status": {"nominatedNodeName": node}}
        path = pod_path(namespace, name) + "/status"
        return await self._patch_pod(namespace, name, uid, path, patch, MERGE_PATCH, _nominated(node))

    async def lift(self, namespace: str, name: str, uid: str, annotations: Mapping[str, str]) -> Written:
        """Let the scheduler see the pod: remove our gate and no other, and add annotations in the same write.

        A pod without our gate is done, too.
        """
        gates = [{"$patch": "delete", "name": GATE}]
        patch = {
            "metadata": {"uid": uid, "annotations": dict(annotations)},
            "spec": {"schedulingGates": gates},
        }
        path = pod_path(namespace, name)
        return await self._patch_pod(namespace, name, uid, path, patch, STRATEGIC_MERGE_PATCH, _lifted)

    async def evict(self, namespace: str, name: str, uid: str, reason: str) -> Written:
        """Annotate the pod with the reason, then ask for its eviction; done means that it terminates.

        A disruption budget may refuse. Then the annotation is taken back, for it would tell of what did not happen.
        """
        noted = await self._annotate(namespace, name, uid, reason)
        if noted.result is not Result.DONE:
            result = Result.GONE if noted.result is Result.GONE else Result.REFUSED
            return Written(result, f"The pod was not evicted: its annotation was not written. {noted.detail}")
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"namespace": namespace, "name": name},
            "deleteOptions": {"preconditions": {"uid": uid}},
        }
        call = self._client.post(
            pod_path(namespace, name) + "/eviction",
            self._encoder.encode(body),
            timeout=self._timeout * _WRITE_SHARE,
        )
        evicted = await self._outcome(namespace, name, uid, call, _terminating)
        if evicted.result is Result.REFUSED:
            await self._annotate(namespace, name, uid, None)
        return evicted

    async def write_status(self, policy: str, status: Mapping[str, Any]) -> Written:
        """Merge into the status of a FairnessPolicy: lists are replaced, and keys that are left out stay.

        The policy of that name gets it, whichever it is: for the status of a custom resource the API server does
        not compare uids.
        """
        path = f"/apis/{GROUP}/{VERSION}/fairnesspolicies/{quote(policy, safe='')}/status"
        patch = self._encoder.encode({"status": dict(status)})
        try:
            answer = await self._client.patch(path, patch, MERGE_PATCH, timeout=self._timeout)
        except NotSentError as failure:
            return Written(Result.REFUSED, str(failure))
        except AnswerLostError as failure:
            return Written(Result.UNKNOWN, str(failure))
        if answer.status == 404:
            return Written(Result.GONE, f"FairnessPolicy {policy} is gone.")
        return _certain(answer) or Written(Result.UNKNOWN, str(StatusError(answer)))

    async def _annotate(self, namespace: str, name: str, uid: str, reason: str | None) -> Written:
        patch = {"metadata": {"uid": uid, "annotations": {EVICTED: reason}}}
        path = pod_path(namespace, name)
        return await self._patch_pod(namespace, name, uid, path, patch, MERGE_PATCH, _noted(reason))

    async def _patch_pod(
        self,
        namespace: str,
        name: str,
        uid: str,
        path: str,
        patch: dict[str, Any],
        content_type: str,
        done: Callable[[Pod], bool],
    ) -> Written:
        call = self._client.patch(
            path, self._encoder.encode(patch), content_type, timeout=self._timeout * _WRITE_SHARE
        )
        return await self._outcome(namespace, name, uid, call, done)

    async def _outcome(
        self,
        namespace: str,
        name: str,
        uid: str,
        call: Awaitable[Answer],
        done: Callable[[Pod], bool],
    ) -> Written:
        """Make the call; `done` tells from the pod whether it has happened."""
        deadline = time.monotonic() + self._timeout
        certain = None
        try:
            answer = await call
        except NotSentError as failure:
            return Written(Result.REFUSED, str(failure))
        except AnswerLostError as failure:
            detail = str(failure)
        else:
            if answer.status == 404:
                return Written(Result.GONE, f"Pod {namespace}/{name} is gone.")
            certain = _certain(answer)
            # A uid that is not the pod's is answered by 409 or 422: gone, or another conflict?
            if certain is not None and answer.status not in (409, 422):
                return certain
            detail = str(StatusError(answer))
        try:
            pod = await self._pods.read(namespace, name, timeout=max(deadline - time.monotonic(), 0.1))
        except ApiError as failure:
            return certain or Written(Result.UNKNOWN, f"{detail} Asking again did not help: {failure}")
        if pod is None:
            return Written(Result.GONE, f"Pod {namespace}/{name} is gone.")
        if pod.metadata.uid != uid:
            return Written(
                Result.GONE, f"Pod {namespace}/{name} was re-created: uid {pod.metadata.uid}, not {uid}."
            )
        if done(pod):
            return Written(Result.DONE, detail)
        return certain or Written(Result.UNKNOWN, detail)


def _certain(answer: Answer) -> Written | None:
    """Done or refused by what the answer says; None when it leaves that open."""
    if 200 <= answer.status < 300:
        return Written(Result.DONE)
    # The API server refuses a pod with two disruption budgets by a 500.
    if answer.status < 500 or (answer.status == 500 and b"more than one PodDisruptionBudget" in answer.body):
        return Written(Result.REFUSED, str(StatusError(answer)))
    return None


def _nominated(node: str | None) -> Callable[[Pod], bool]:
    return lambda pod: ((pod.status.nominated_node_name if pod.status else None) or None) == node


def _lifted(pod: Pod) -> bool:
    return all(gate.name != GATE for gate in (pod.spec.scheduling_gates if pod.spec else None) or ())


def _noted(reason: str | None) -> Callable[[Pod], bool]:
    return lambda pod: (pod.metadata.annotations or {}).get(EVICTED) == reason


def _terminating(pod: Pod) -> bool:
    return pod.metadata.deletion_timestamp is not None
