"""What kvitej is measured against, each a process of its own on plain aiohttp and asyncio, as they come.

That kvitej runs on a faster loop is part of what it does about its own cost.

`floor` only reads a body and answers as many bytes as it was told: what any aiohttp handler costs. `extender` is a
trivial extender that accepts every node, knows nothing and binds: what any extender in Python costs the scheduler.
"""

from __future__ import annotations

import functools
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import click
import msgspec
import yaml
from aiohttp import web

ANSWER_BYTES = "Answer-Bytes"
"""The request header that tells the floor how long its answer is to be."""

MOST_BYTES = 2**26


class _Args(msgspec.Struct):
    names: list[str] = msgspec.field(name="NodeNames")


class _BindingArgs(msgspec.Struct, rename="pascal"):
    pod_name: str
    pod_namespace: str
    node: str
    uid: str = msgspec.field(name="PodUID")


@click.group()
def main() -> None:
    """Run one peer of a bench until it is stopped."""


@main.command()
@click.option("--port", type=int, required=True)
@click.option("--tls", nargs=2, type=click.Path(path_type=Path), metavar="CERT KEY", help="Speak TLS.")
def floor(port: int, tls: tuple[Path, Path] | None) -> None:
    """Read the body, and answer as many bytes as the header Answer-Bytes says."""

    @functools.lru_cache(maxsize=256)
    def blank(length: int) -> bytes:
        return b" " * length

    async def answer(request: web.Request) -> web.Response:
        await request.read()
        return _json(blank(int(request.headers[ANSWER_BYTES])))

    app = _application()
    app.router.add_post("/", answer)
    context = None
    if tls is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*tls)
    _serve(app, port, context)


@main.command()
@click.option("--port", type=int, required=True)
@click.option("--keep", type=int, help="How many names Filter keeps, the first ones; all without it.")
@click.option("--kubeconfig", type=click.Path(path_type=Path), required=True)
def extender(port: int, keep: int | None, kubeconfig: Path) -> None:
    """Accept every node, grade all 0, and bind."""
    session = web.AppKey("session", aiohttp.ClientSession)
    args, binding_args = msgspec.json.Decoder(_Args), msgspec.json.Decoder(_BindingArgs)

    async def connected(app: web.Application) -> AsyncIterator[None]:
        async with _api_server(kubeconfig) as app[session]:
            yield

    async def filter_verb(request: web.Request) -> web.Response:
        names = args.decode(await request.read()).names
        answer = {"NodeNames": names[:keep], "FailedNodes": {}, "FailedAndUnresolvableNodes": {}, "Error": ""}
        return _json(msgspec.json.encode(answer))

    async def prioritize(request: web.Request) -> web.Response:
        names = args.decode(await request.read()).names
        return _json(msgspec.json.encode([{"Host": name, "Score": 0} for name in names]))

    async def bind(request: web.Request) -> web.Response:
        asked = binding_args.decode(await request.read())
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": asked.pod_name, "namespace": asked.pod_namespace, "uid": asked.uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": asked.node},
        }
        path = f"/api/v1/namespaces/{asked.pod_namespace}/pods/{asked.pod_name}/binding"
        async with request.app[session].post(path, data=msgspec.json.encode(body)) as answer:
            error = "" if answer.ok else await answer.text()
        return _json(msgspec.json.encode({"Error": error}))

    app = _application()
    app.cleanup_ctx.append(connected)
    app.router.add_post("/filter", filter_verb)
    app.router.add_post("/prioritize", prioritize)
    app.router.add_post("/bind", bind)
    _serve(app, port)


def _application() -> web.Application:
    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    app = web.Application(client_max_size=MOST_BYTES)
    app.router.add_get("/healthz", healthz)
    return app


def _api_server(kubeconfig: Path) -> aiohttp.ClientSession:
    document: dict[str, Any] = yaml.safe_load(kubeconfig.read_text())
    cluster, user = document["clusters"][0]["cluster"], document["users"][0]["user"]
    context = ssl.create_default_context(cafile=cluster["certificate-authority"])
    return aiohttp.ClientSession(
        cluster["server"],
        connector=aiohttp.TCPConnector(ssl=context),
        headers={"Authorization": f"Bearer {user['token']}", "Content-Type": "application/json"},
    )


def _json(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json")


def _serve(app: web.Application, port: int, tls: ssl.SSLContext | None = None) -> None:
    web.run_app(
        app,
        host="127.0.0.1",
        port=port,
        ssl_context=tls,
        access_log=None,
        print=None,
        keepalive_timeout=3600,
    )


if __name__ == "__main__":
    main(prog_name="python -m bench.peers")
