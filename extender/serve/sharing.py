"""`/shares`, `/shares/TENANT` and `/line` as HTTP: plain for whoever reaches the loopback listener, by token over TLS.

Over TLS all of it is for whoever may get fairnesspolicies, a tenant's shares also for whoever may list pods in a
namespace of the tenant.
"""

import time
from collections.abc import Callable
from http import HTTPStatus

import msgspec
from aiohttp import web

from extender.decide.plan import Planner
from extender.decide.report import lines_of, shares_of, shares_of_tenant, tables_of
from extender.fairness.record import Fairness
from extender.serve.book import Book, Refusal
from extender.serve.tokens import Guard, May, Rule
from extender.wire.shares import PoolShares

LISTED = 100
"""Pods of each line, unless asked for more."""
MOST_LISTED = 1000


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
        self.book = book
        self._clock = clock

    def shares(self, tenant: str | None = None) -> bytes:
        """All pools, or one tenant's part of them: KeyError when no policy has it."""
        shares = shares_of(self._begun(), self.book.snapshot(), self.fairness, self._clock())
        return msgspec.json.encode(shares if tenant is None else shares_of_tenant(shares, tenant))

    def line(self, most: int) -> bytes:
        """Who waits, at most so many pods of each pool."""
        return msgspec.json.encode(lines_of(self._begun(), self.book.snapshot(), self._clock(), most))

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
        self.book.trust()
        planner = self.planner()
        if planner is None:
            raise Refusal("kvitej does not plan yet: try again in a moment")
        return planner


def add_routes(app: web.Application, door: SharesDoor, guard: Guard | None = None) -> None:
    """GET /shares, /shares/TENANT and /line?most=N; without a guard to everybody."""

    rule = _rule(door)

    async def answer(request: web.Request, read: Callable[[], bytes]) -> web.Response:
        try:
            if guard is not None:
                await guard(request, rule)
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


def _rule(door: SharesDoor) -> Rule:
    async def needed(request: web.Request, may: May) -> str:
        if await may("get", "fairnesspolicies", group="kvitej.io"):
            return ""
        needed = "get fairnesspolicies.kvitej.io"
        tenant = request.match_info.get("tenant")
        if tenant is None:
            return needed
        namespace = request.query.get("namespace", tenant)
        if not door.has(tenant, namespace):
            return f"{needed}, or list pods in a namespace of the tenant, which ?namespace= names"
        if await may("list", "pods", namespace=namespace):
            return ""
        return f"{needed}, or list pods in namespace {namespace}"

    return needed
