"""`/devices` as HTTP: what the book knows of the cards, plain for whoever reaches the loopback listener, by token
over TLS for whoever may get the GPUNodes, which tell the most of it."""

import asyncio
from http import HTTPStatus

import msgspec
from aiohttp import web

from extender.decide.cards import cards_of, nodes_with_cards
from extender.serve.book import Book, Refusal
from extender.serve.tokens import Guard, May

AT_ONCE = 50
"""Nodes between two looks at what else there is to do: a cluster's scheduling does not wait for a long answer."""


class DevicesDoor:
    """Reads the book, changes nothing; raises Refusal while it can't be trusted."""

    def __init__(self, book: Book) -> None:
        self._book = book

    def node(self, name: str) -> bytes:
        """One node's cards: KeyError for a node that the book does not have."""
        self._book.trust()
        return _document([msgspec.json.encode(cards_of(self._book.snapshot(), name))])

    async def all(self) -> bytes:
        """Those of all nodes that have some; each node as it is when its turn comes."""
        self._book.trust()
        names = nodes_with_cards(self._book.snapshot())
        found = []
        for start in range(0, len(names), AT_ONCE):
            snapshot = self._book.snapshot()
            found += [
                msgspec.json.encode(cards_of(snapshot, name))
                for name in names[start : start + AT_ONCE]
                if name in snapshot.inventories
            ]
            await asyncio.sleep(0)
        return _document(found)


def add_routes(app: web.Application, door: DevicesDoor, guard: Guard | None = None) -> None:
    """GET /devices?node=NODE; without a guard to everybody."""

    async def devices(request: web.Request) -> web.Response:
        name = request.query.get("node")
        try:
            if guard is not None:
                await guard(request, _rule)
            body = door.node(name) if name is not None else await door.all()
        except Refusal as refusal:
            return web.Response(status=HTTPStatus.SERVICE_UNAVAILABLE, text=f"{refusal}\n")
        except KeyError:
            return web.Response(
                status=HTTPStatus.NOT_FOUND,
                text=f"kvitej knows no node {name!r}: /devices lists all that have GPUs.\n",
            )
        return web.Response(body=body, content_type="application/json")

    app.router.add_get("/devices", devices)


async def _rule(_: web.Request, may: May) -> str:
    return "" if await may("get", "gpunodes", group="kvitej.io") else "get gpunodes.kvitej.io"


def _document(nodes: list[bytes]) -> bytes:
    return b'{"nodes":[' + b",".join(nodes) + b"]}"
