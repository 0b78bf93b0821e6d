"""Who is it, and what may they read? The API server tells, by TokenReview and SubjectAccessReview.

So whoever may see something with kubectl may see it here, with the same token and no list of users of our own.
"""

from typing import Any

import msgspec

from extender.kube.client import Client, StatusError
from extender.wire.objects import Slim


class User(Slim):
    """Whom a token stands for, as the API server knows them."""

    username: str = ""
    uid: str = ""
    groups: list[str] | None = None
    extra: dict[str, list[str]] | None = None


class _TokenStatus(Slim):
    authenticated: bool = False
    user: User | None = None


class _AccessStatus(Slim):
    allowed: bool = False


class _TokenReview(Slim):
    status: _TokenStatus


class _AccessReview(Slim):
    status: _AccessStatus


class Access:
    """Both calls raise ApiError where there is no usable answer; `timeout` in seconds is for each."""

    def __init__(self, client: Client, timeout: float) -> None:
        self._client = client
        self._timeout = timeout

    async def user(self, token: str) -> User | None:
        """Whom the token stands for; None: nobody."""
        body = await self._review("authentication.k8s.io", "TokenReview", {"token": token})
        status = msgspec.json.decode(body, type=_TokenReview).status
        return status.user if status.authenticated and status.user and status.user.username else None

    async def may(
        self, user: User, verb: str, resource: str, *, group: str = "", namespace: str | None = None
    ) -> bool:
        """Whether the user may do that with the resource, in one namespace or in the cluster."""
        asked: dict[str, Any] = {"verb": verb, "group": group, "resource": resource}
        if namespace is not None:
            asked["namespace"] = namespace
        spec: dict[str, Any] = {
            "user": user.username,
            "groups": user.groups or [],
            "resourceAttributes": asked,
        }
        if user.uid:
            spec["uid"] = user.uid
        if user.extra:
            spec["extra"] = user.extra
        body = await self._review("authorization.k8s.io", "SubjectAccessReview", spec)
        return msgspec.json.decode(body, type=_AccessReview).status.allowed

    async def _review(self, group: str, kind: str, spec: dict[str, Any]) -> bytes:
        review = {"apiVersion": f"{group}/v1", "kind": kind, "spec": spec}
        path = f"/apis/{group}/v1/{kind.lower()}s"
        answer = await self._client.post(path, msgspec.json.encode(review), timeout=self._timeout)
        if answer.status not in (200, 201):
            raise StatusError(answer)
        return answer.body
