"""Where the doors are reached: the listeners, over TLS for the API server's reviews, and the signal to close them."""

import asyncio
import contextlib
import signal
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

from aiohttp import web

from extender.config import Config
from extender.serve.app import reviews
from extender.serve.sharing import SharesDoor
from extender.serve.tls import Certificate
from extender.serve.tokens import Guard
from extender.serve.webhook import WebhookDoor

GOODBYE_SECONDS = 0.2


@contextlib.asynccontextmanager
async def listening(
    app: web.Application, host: str, port: int, tls: ssl.SSLContext | None = None
) -> AsyncIterator[str]:
    """Serve `app`; gives its address. On leaving, running requests are finished first."""
    # kube-scheduler keeps idle connections for 90 s: closing them earlier would race with its next call.
    runner = web.AppRunner(app, access_log=None, keepalive_timeout=3600, shutdown_timeout=10)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port, ssl_context=tls).start()
        bound_to = runner.addresses[0]
        yield f"{'https' if tls else 'http'}://{bound_to[0]}:{bound_to[1]}"
    finally:
        await runner.cleanup()
        if tls is not None:
            # aiohttp does not wait until both sides have said goodbye, and no loop should end before.
            await asyncio.sleep(GOODBYE_SECONDS)


def stop_signal() -> asyncio.Event:
    """Set on SIGINT and SIGTERM."""
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    return stopped


class Webhook(NamedTuple):
    """Where the API server's reviews arrive, and the certificate that is shown to it."""

    host: str
    port: int
    cert: Path
    key: Path


@contextlib.asynccontextmanager
async def reviewing(
    door: WebhookDoor, config: Config, webhook: Webhook, shares: tuple[SharesDoor, Guard] | None = None
) -> AsyncIterator[str]:
    """Serve the reviews over TLS, with the certificate as its files are now; gives the address."""
    certificate = Certificate(webhook.cert, webhook.key)
    fresh = asyncio.create_task(certificate.keep_fresh(), name="certificate")
    try:
        async with listening(
            reviews(door, config, shares), webhook.host, webhook.port, certificate.context
        ) as address:
            yield address
    finally:
        fresh.cancel()
