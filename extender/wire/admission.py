"""AdmissionReview v1: what the API server asks before it stores a pod, and the answers that it takes.

The envelope is decoded first, so that a pod that can't be read is still answered under the review's uid; of the pod
only the slim fields are read, which are also all that a patch of ours touches. The review of another kind has no pod.

Source: k8s.io/api `admission/v1/types.go`, written by apiserver `pkg/admission/plugin/webhook/request`.
"""

import base64
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from extender.wire.objects import Pod, Slim

API_VERSION = "admission.k8s.io/v1"
KIND = "AdmissionReview"

Operation = Literal["CREATE", "UPDATE", "DELETE", "CONNECT"]


class ReviewError(ValueError):
    """A body that is no review, or one whose pod can't be read: then `uid` is there, and can be answered."""

    def __init__(self, sentence: str, uid: str | None = None) -> None:
        super().__init__(sentence)
        self.uid = uid


class Review(msgspec.Struct, frozen=True, gc=False):
    """One review. `pod` is None for another kind, and where the API server sends none; `old` is before an update."""

    uid: str
    operation: Operation
    namespace: str
    username: str
    dry_run: bool
    pod: Pod | None = None
    old: Pod | None = None


class Add(msgspec.Struct, frozen=True, gc=False, tag_field="op", tag="add"):
    """Add a member, or replace it; a `path` that ends in /- appends to a list. RFC 6902."""

    path: str
    value: Any


class Remove(msgspec.Struct, frozen=True, gc=False, tag_field="op", tag="remove"):
    """Remove a member that is there."""

    path: str


Patch = Sequence[Add | Remove]


def escaped(key: str) -> str:
    """A key as part of a path (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")


_NULL = msgspec.Raw(b"null")


class _Kind(Slim):
    group: str = ""
    kind: str = ""


class _User(Slim):
    username: str = ""


class _Request(Slim):
    uid: str
    kind: _Kind
    operation: Operation
    user_info: _User = msgspec.field(default_factory=_User)
    namespace: str = ""
    object: msgspec.Raw = msgspec.field(default_factory=lambda: _NULL)
    old_object: msgspec.Raw = msgspec.field(default_factory=lambda: _NULL)
    dry_run: bool | None = None


class _Body(Slim):
    api_version: str = ""
    kind: str = ""
    request: _Request | None = None


_SHOWN = 200  # characters of a decoder's complaint that an error may quote
_BODY = msgspec.json.Decoder(_Body)
_POD = msgspec.json.Decoder(Pod)


def decode_review(body: bytes) -> Review:
    """The review in `body`.

    Raises
    ------
    ReviewError
        Without uid when `body` is no AdmissionReview v1, with it when its pod can't be read.
    """
    try:
        if not body.isascii():
            body.decode()  # msgspec checks no text inside a Raw
        found = _BODY.decode(body)
    except UnicodeDecodeError as error:
        raise ReviewError(f"the body is not UTF-8: {error.reason} at byte {error.start}") from None
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ReviewError(f"the body is no AdmissionReview: {str(error)[:_SHOWN]}") from None
    if (found.api_version, found.kind) != (API_VERSION, KIND):
        raise ReviewError(
            f"apiVersion and kind are {found.api_version[:_SHOWN]!r} and {found.kind[:_SHOWN]!r}: "
            f'kvitej answers {API_VERSION} {KIND}, so set admissionReviewVersions: ["v1"]'
        )
    request = found.request
    if request is None or not request.uid:
        raise ReviewError(f"{'request' if request is None else 'request.uid'} is missing or empty")
    asked = (request.operation, request.user_info.username, bool(request.dry_run))
    operation, username, dry_run = asked
    if (request.kind.group, request.kind.kind) != ("", "Pod"):
        return Review(request.uid, operation, request.namespace, username, dry_run)
    if not request.namespace:
        raise ReviewError("request.namespace is missing or empty, and a pod has one", request.uid)
    created_or_updated = operation in ("CREATE", "UPDATE")
    return Review(
        request.uid,
        operation,
        request.namespace,
        username,
        dry_run,
        _pod(request, request.object, "object") if created_or_updated else None,
        _pod(request, request.old_object, "oldObject") if operation == "UPDATE" else None,
    )


def allowed(uid: str, patch: Patch = (), warnings: Sequence[str] = ()) -> bytes:
    """The answer that lets a request pass, changed by `patch`; the user sees the warnings."""
    response: dict[str, Any] = {"uid": uid, "allowed": True}
    if patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(msgspec.json.encode(patch)).decode()
    if warnings:
        response["warnings"] = warnings
    return _answer(response)


def denied(uid: str, code: int, reason: str, message: str) -> bytes:
    """The answer that refuses; `reason` is one of the API's words, such as Forbidden, and goes with the code."""
    status = {"status": "Failure", "code": code, "reason": reason, "message": message}
    return _answer({"uid": uid, "allowed": False, "status": status})


def _answer(response: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"apiVersion": API_VERSION, "kind": KIND, "response": response})


def _pod(request: _Request, raw: bytes, key: str) -> Pod:
    if raw == _NULL:
        raise ReviewError(
            f"request.{key} is missing or null, and is needed for {request.operation}", request.uid
        )
    try:
        pod = _POD.decode(raw)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ReviewError(f"request.{key} can't be read: {str(error)[:_SHOWN]}", request.uid) from None
    if pod.spec is None:
        raise ReviewError(f"request.{key}.spec is missing or null", request.uid)
    return pod
