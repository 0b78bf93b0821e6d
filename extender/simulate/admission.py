"""The embedded API server's admission step: a new pod goes through the mutating review, then the validating one."""

import base64
import uuid
from collections.abc import Callable
from typing import Any

import msgspec

from extender.wire.admission import API_VERSION, KIND

Json = dict[str, Any]
Review = Callable[[bytes], bytes]
USER = "system:serviceaccount:kube-system:job-controller"


class RefusedError(Exception):
    """The pod is not created; the text says why, and who says so."""


class Admission:
    """`mutate` and `validate` take an AdmissionReview and answer it, as the webhook's two paths do."""

    def __init__(self, mutate: Review, validate: Review) -> None:
        self._mutate = mutate
        self._validate = validate

    def admit(self, pod: Json) -> Json:
        """The pod as it is to be stored.

        Raises
        ------
        RefusedError
            A review refused it.
        """
        answer = _ask(self._mutate, pod)
        for operation in msgspec.json.decode(base64.b64decode(answer.get("patch", b"W10="))):
            path = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
            pod = _patched(pod, path, operation)
        _ask(self._validate, pod)
        return pod


def _ask(review: Review, pod: Json) -> Json:
    request = {
        "uid": str(uuid.uuid4()),
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "operation": "CREATE",
        "namespace": pod["metadata"]["namespace"],
        "userInfo": {"username": USER},
        "object": pod,
    }
    body = msgspec.json.encode({"apiVersion": API_VERSION, "kind": KIND, "request": request})
    answer: Json = msgspec.json.decode(review(body))["response"]
    if not answer["allowed"]:
        raise RefusedError(answer["status"]["message"])
    return answer


def _patched(parent: Any, path: list[str], operation: Json) -> Any:
    """A copy with one operation of a JSON patch applied; kvitej writes only add and remove."""
    changed = parent.copy()
    key, *rest = path
    if rest:
        place: Any = int(key) if isinstance(parent, list) else key
        changed[place] = _patched(parent[place], rest, operation)
    elif operation["op"] == "remove":
        del changed[key]
    elif isinstance(changed, list):
        changed.append(operation["value"])
    else:
        changed[key] = operation["value"]
    return changed
