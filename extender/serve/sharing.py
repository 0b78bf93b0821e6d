"""`/shares`, `/shares/TENANT` and `/line` as HTTP: plain for whoever reaches the loopback listener, by token over TLS.

Over TLS a bearer token opens what it may see with kubectl, too: all of it to one that may get fairnesspolicies, a
tenant's shares also to one that may list pods in a namespace of the tenant.
"""

import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import TYPE_CHECKING

import msgspec
import structlog
from aiohttp import web

from extender.decide.plan import Planner
from extender.decide.report import lines_of, shares_of, shares_of_tenant, tables_of
from extender.fairness.record import Fairness
from extender.serve.book import Book, Refusal
from extender.wire.shares import PoolShares

if TYPE_CHECKING:
    from extender.kube.access import Access

log = structlog.get_logger()

LISTED = 100
"""Pods of each line, unless asked for more."""
MOST_LISTED = 1000
IN_FLIGHT = 16
"""Requests over TLS at once: each asks the API server twice or three times."""


class SharesDoor:
    """Reads the planner, changes nothing; raises Refusal while the book can't be trusted, or nothing is planned yet.

    `planner` gives it once it has begun; `clock` gives the seconds that it counts in.
    """

    def __init__(
        self,
        book: Book,
        planner: Callable[[], Planner | None],
        fairness: Fairness,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.planner = planner
        self.fairness = fairness
        self._book = book
        self._clock = clock

    def shares(self, tenant: str | None = None) -> bytes:
        """All pools, or one tenant's part of them: KeyError when no policy has it."""
        shares = shares_of(self._begun(), self._book.snapshot(), self.fairness, self._clock())
        return msgspec.json.encode(shares if tenant is None else shares_of_tenant(shares, tenant))

    def line(self, most: int) -> bytes:
        """Who waits, at most so many pods of each pool."""
        return msgspec.json.encode(lines_of(self._begun(), self._book.snapshot(), self._clock(), most))

    def tables(self) -> list[PoolShares]:
        """What the exporter reads: nothing before the planner begins."""
        planner = self.planner()
        return tables_of(planner, self.fairness, self._clock()) if planner is not None else []

    def has(self, tenant: str, namespace: str) -> bool:
        """Whether the namespace belongs to that tenant under some policy."""
        pools = self._begun().pools
        return any(
            found is not None and found.name == tenant
            for policy in pools.policies.all
            for found in (pools.tenant_in(policy, namespace),)
        )

    def _begun(self) -> Planner:
        self._book.trust()
        planner = self.planner()
        if planner is None:
            raise Refusal("kvitej does not plan yet: try again in a moment")
        return planner


Guard = Callable[[web.Request, SharesDoor], Awaitable[None]]
"""Raises an HTTP error for whoever may not have what is asked for."""


def add_routes(app: web.Application, door: SharesDoor, guard: Guard | None = None) -> None:
    """GET /shares, /shares/TENANT and /line?most=N; without a guard to everybody."""

    async def answer(request: web.Request, read: Callable[[], bytes]) -> web.Response:
        try:
            if guard is not None:
                await guard(request, door)
            return web.Response(body=read(), content_type="application/json")
        except Refusal as refusal:
            return web.Response(status=HTTPStatus.SERVICE_UNAVAILABLE, text=f"{refusal}\n")

    async def shares(request: web.Request) -> web.Response:
        return await answer(request, door.shares)

    async def tenant(request: web.Request) -> web.Response:
        name = request.match_info["tenant"]
        try:
            return await answer(request, lambda: door.shares(name))
        except KeyError:
            return web.Response(
                status=HTTPStatus.NOT_FOUND,
                text=f"No FairnessPolicy has a tenant {name!r}: /shares lists all.\n",
            )

    async def line(request: web.Request) -> web.Response:
        asked = request.query.get("most", str(LISTED))
        if not (asked.isascii() and asked.isdecimal() and len(asked) < 6 and int(asked) <= MOST_LISTED):
            text = f"most={asked[:20]} is no number of pods from 0 to {MOST_LISTED}.\n"
            return web.Response(status=HTTPStatus.BAD_REQUEST, text=text)
        return await answer(request, lambda: door.line(int(asked)))

    app.router.add_get("/shares", shares)
    app.router.add_get("/shares/{tenant}", tenant)
    app.router.add_get("/line", line)


class ByToken:
    """A guard that asks the API server whom a bearer token stands for, and what they may see."""

    def __init__(self, access: "Access") -> None:
        self._access = access
        self._now = 0

    async def __call__(self, request: web.Request, door: SharesDoor) -> None:
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
            await self._admit(request, door, token.strip())
        except (ConnectionError, msgspec.DecodeError) as error:
            log.warning("a token could not be reviewed", reason=str(error))
            raise web.HTTPServiceUnavailable(
                text="The API server did not tell who you are and what you may see: try again.\n"
            ) from None
        finally:
            self._now -= 1

    async def _admit(self, request: web.Request, door: SharesDoor, token: str) -> None:
        user = await self._access.user(token)
        if user is None:
            raise web.HTTPUnauthorized(
                text="The API server knows no such token.\n", headers={"WWW-Authenticate": "Bearer"}
            )
        if await self._access.may(user, "get", "fairnesspolicies", group="kvitej.io"):
            return
        needed = "get fairnesspolicies.kvitej.io"
        tenant = request.match_info.get("tenant")
        if tenant is not None:
            namespace = request.query.get("namespace", tenant)
            if door.has(tenant, namespace):
                if await self._access.may(user, "list", "pods", namespace=namespace):
                    return
                needed += f", or list pods in namespace {namespace}"
            else:
                needed += ", or list pods in a namespace of the tenant, which ?namespace= names"
        raise web.HTTPForbidden(text=f"{user.username} may not see this: it takes the right to {needed}.\n")
