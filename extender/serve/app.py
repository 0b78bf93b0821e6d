"""The HTTP listeners: the scheduler's verbs, the API server's reviews, and health and metrics for everybody else.

They are apart because whoever reaches the verbs can place pods, and reviews come over TLS. kube-scheduler takes only
status 200 for an answer and never reads the body of another, so what goes wrong in Filter and Bind travels as
200 + `Error`.
"""

from collections.abc import Awaitable, Callable
from http import HTTPStatus

import structlog
from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from extender import __version__
from extender.config import Config
from extender.serve import inspecting, sharing
from extender.serve.book import Book, Refusal
from extender.serve.explaining import ExplainDoor
from extender.serve.inspecting import DevicesDoor
from extender.serve.metrics import Metrics
from extender.serve.placing import PlaceDoor
from extender.serve.seating import SeatDoor
from extender.serve.sharing import SharesDoor
from extender.serve.tokens import Guard
from extender.serve.webhook import WebhookDoor
from extender.wire.extender import binding_result, filter_error

log = structlog.get_logger()

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def verbs(place: PlaceDoor, seat: SeatDoor, config: Config) -> web.Application:
    """POST /filter, /prioritize, /preempt and /bind."""
    app = web.Application(client_max_size=config.server.max_body)
    limit = _Limit(config.server.in_flight)

    async def bind(body: bytes) -> bytes:
        return await seat.bind(body)

    app.router.add_post("/filter", _verb(_at_once(place.filter), limit, filter_error))
    app.router.add_post("/prioritize", _verb(_at_once(place.prioritize), limit, None))
    app.router.add_post("/preempt", _verb(_at_once(place.preempt), limit, None))
    app.router.add_post("/bind", _verb(bind, limit, binding_result))
    return app


def reviews(
    door: WebhookDoor, config: Config, shares: tuple[SharesDoor, Guard] | None = None
) -> web.Application:
    """POST /mutate and /validate; GET /shares, /line and /devices for whom the guard lets in."""
    app = web.Application(client_max_size=config.server.max_body)
    limit = _Limit(config.server.in_flight)
    app.router.add_post("/mutate", _verb(_at_once(door.mutate), limit, None))
    app.router.add_post("/validate", _verb(_at_once(door.validate), limit, None))
    if shares is not None:
        sharing.add_routes(app, *shares)
        inspecting.add_routes(app, DevicesDoor(shares[0].book), shares[1])
    return app


class _Limit:
    """How many requests are in work, and how many may be."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.now = 0


def _at_once(door: Callable[[bytes], bytes]) -> Callable[[bytes], Awaitable[bytes]]:
    async def call(body: bytes) -> bytes:
        return door(body)

    return call


def _verb(
    door: Callable[[bytes], Awaitable[bytes]], limit: _Limit, as_error: Callable[[str], bytes] | None
) -> Handler:
    """A handler that always answers what the protocol allows; `as_error` makes a 200 of a sentence."""

    def refuse(status: HTTPStatus, sentence: str) -> web.Response:
        if as_error is not None:
            return _json(as_error(sentence))
        return web.Response(status=status, text=sentence + "\n")

    async def answer(verb: str, body: bytes) -> web.Response:
        try:
            return _json(await door(body))
        except Refusal as refusal:
            return refuse(HTTPStatus.BAD_REQUEST, str(refusal))
        except Exception:
            log.exception("a request failed: this is a bug in kvitej", verb=verb)
            return refuse(HTTPStatus.INTERNAL_SERVER_ERROR, "kvitej failed on this request (see its log)")

    async def handle(request: web.Request) -> web.StreamResponse:
        if limit.now >= limit.most:
            return refuse(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"kvitej has {limit.most} requests in work, as many as server.inFlight allows: try again",
            )
        limit.now += 1
        try:
            return await answer(request.path, await request.read())
        except web.HTTPRequestEntityTooLarge:
            return refuse(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                "the request body is longer than server.maxBody allows: set nodeCacheCapable: true in the "
                "scheduler's extender entry, or raise the limit",
            )
        except web.RequestPayloadError as error:
            unreadable = f"the request body can't be read: {' '.join(str(error).split())}"
            return await _last(request, refuse(HTTPStatus.BAD_REQUEST, unreadable))
        finally:
            limit.now -= 1

    return handle


async def _last(request: web.Request, response: web.Response) -> web.Response:
    """Send the response and close: aiohttp would read on for the rest of the body, and log that it can't."""
    await response.prepare(request)
    await response.write_eof()
    request.protocol.force_close()
    return response


def _json(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json")


def operations(book: Book, metrics: Metrics, shares: SharesDoor | None = None) -> web.Application:
    """GET /healthz, /readyz, /metrics, /version, /devices and /explain; POST /explain for a pod's manifest.

    With a planner to read there are /shares and /line, too.
    """
    app = web.Application()
    door = ExplainDoor(book, shares.planner) if shares is not None else ExplainDoor(book)

    async def explain(request: web.Request) -> web.Response:
        node = request.query.get("node")
        try:
            if request.method == "POST":
                return web.Response(text=door.manifest(await request.read(), node))
            return web.Response(text=door.named(request.query.get("pod", ""), node))
        except Refusal as refusal:
            return web.Response(status=HTTPStatus.BAD_REQUEST, text=f"{refusal}\n")

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        reason = book.unfit()
        return web.Response(status=503 if reason else 200, text=(reason or "ok") + "\n")

    async def exposition(_: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )

    async def version(_: web.Request) -> web.Response:
        return web.json_response({"version": __version__})

    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", exposition)
    app.router.add_get("/version", version)
    app.router.add_route("GET", "/explain", explain)
    app.router.add_route("POST", "/explain", explain)
    inspecting.add_routes(app, DevicesDoor(book))
    if shares is not None:
        sharing.add_routes(app, shares)
    return app
