"""Stands between the scheduler and kvitej, and can keep bindings waiting."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

import aiohttp
from aiohttp import web


class Relay:
    """Hands every call on to kvitej at port `target`, which may change; an asynchronous context manager.

    Attributes
    ----------
    let_bind : asyncio.Event
        While it is not set, calls of the verb bind wait.
    binding : int
        How many of them wait now.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.let_bind = asyncio.Event()
        self.let_bind.set()
        self.binding = 0

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession()
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/{verb}", self._hand_on)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port: int = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._runner.cleanup()
        await self._session.close()

    async def _hand_on(self, request: web.Request) -> web.Response:
        body = await request.read()
        if request.match_info["verb"] == "bind":
            self.binding += 1
            await self.let_bind.wait()
            self.binding -= 1
        url = f"http://127.0.0.1:{self.target}{request.path}"
        try:
            async with self._session.post(
                url, data=body, headers={"Content-Type": "application/json"}
            ) as answer:
                said = await answer.read()
                return web.Response(status=answer.status, body=said, content_type=answer.content_type)
        except aiohttp.ClientError as error:
            return web.Response(status=502, text=str(error))
