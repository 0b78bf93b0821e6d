"""Who may read what over TLS: a bearer token opens what it may see with kubectl, too."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol

import msgspec
import structlog
from aiohttp import web

if TYPE_CHECKING:
    from extender.kube.access import Access

log = structlog.get_logger()

IN_FLIGHT = 16
"""Requests over TLS at once: each asks the API server twice or three times."""


class May(Protocol):
    """Whether whoever asks may do that with the resource, in one namespace or in the cluster."""

    async def __call__(
        self, verb: str, resource: str, *, group: str = "", namespace: str | None = None
    ) -> bool: ...


Rule = Callable[[web.Request, May], Awaitable[str]]
"""The right that the request takes and that is missing, in words; nothing if it may be answered."""

Guard = Callable[[web.Request, Rule], Awaitable[None]]
"""Raises an HTTP error for whoever may not have what is asked for."""


class ByToken:
    """A guard that asks the API server whom a bearer token stands for, and what they may see."""

    def __init__(self, access: "Access") -> None:
        self._access = access
        self._now = 0

    async def __call__(self, request: web.Request, rule: Rule) -> None:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise web.HTTPUnauthorized(
                text="Say who you are, by a header such as 'Authorization: Bearer TOKEN'.\n",
                headers={"WWW-Authenticate": "Bearer"},
            )
        if self._now >= IN_FLIGHT:
            raise web.HTTPServiceUnavailable(
                text=f"kvitej answers {IN_FLIGHT} such requests already: try again.\n"
            )
        self._now += 1
        try:
            await self._admit(request, rule, token.strip())
        except (ConnectionError, msgspec.DecodeError) as error:
            log.warning("a token could not be reviewed", reason=str(error))
            raise web.HTTPServiceUnavailable(
                text="The API server did not tell who you are and what you may see: try again.\n"
            ) from None
        finally:
            self._now -= 1

    async def _admit(self, request: web.Request, rule: Rule, token: str) -> None:
        user = await self._access.user(token)
        if user is None:
            raise web.HTTPUnauthorized(
                text="The API server knows no such token.\n", headers={"WWW-Authenticate": "Bearer"}
            )

        async def may(verb: str, resource: str, *, group: str = "", namespace: str | None = None) -> bool:
            return await self._access.may(user, verb, resource, group=group, namespace=namespace)

        needed = await rule(request, may)
        if needed:
            raise web.HTTPForbidden(
                text=f"{user.username} may not see this: it takes the right to {needed}.\n"
            )
