"""Raw, authenticated calls to the API server: the only module that knows the `kubernetes` package.

The official client reads the kubeconfig or the service account and prepares TLS, tokens and exec plugins; the
calls themselves go straight to aiohttp with bytes in and bytes out, since a typed call costs more than all of
our work on a pod. Statuses come back as they are; what never came back is told apart by what it means for a
write: `NotSentError` (certainly not handled) or `AnswerLostError` (perhaps handled).
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import msgspec
import structlog
from kubernetes.aio.client import Configuration
from kubernetes.aio.client.rest import RESTClientObject
from kubernetes.aio.config import load_incluster_config, load_kube_config
from yarl import URL

from extender.wire.objects import Status

log = structlog.get_logger(__name__)

MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"
CREDENTIALS_SECONDS = 60.0
"""How old credentials may get: a rotated token file or an expired exec token is picked up after this time."""

_READ_BUFFER = 2**18
_CONNECTIONS = 100
_FAILED_BEFORE_SENDING = (
    aiohttp.ClientConnectorError,
    aiohttp.ConnectionTimeoutError,
    aiohttp.ClientHttpProxyError,
    aiohttp.InvalidURL,
)


class KubeConfigError(ValueError):
    """The cluster cannot be reached as configured; the message is a sentence for the user."""


class ApiError(ConnectionError):
    """A call without a usable answer; the message is a sentence."""


class NotSentError(ApiError):
    """The API server certainly did not handle the call."""


class AnswerLostError(ApiError):
    """The call left, but no answer came: the API server may have handled it."""


class Answer(NamedTuple):
    status: int
    body: bytes


class StatusError(ApiError):
    """An answer, but not the one that was asked for."""

    def __init__(self, answer: Answer) -> None:
        self.status = answer.status
        try:
            message = msgspec.json.decode(answer.body, type=Status).message
        except msgspec.DecodeError:
            message = answer.body[:300].decode(errors="replace")
        said = (message or "no message").strip().rstrip(".")
        super().__init__(f"The API server answered {answer.status}: {said}.")


async def connect(kubeconfig: Path | None, *, impersonate: str | None = None) -> "Client":
    """Read the credentials and return a client that is ready to be entered.

    Parameters
    ----------
    kubeconfig
        Path of a kubeconfig, whose current context is used; None for the service account of the pod.
    impersonate
        The API user to act as, which the user of the credentials must be allowed to.

    Raises
    ------
    KubeConfigError
        The file or the service account is missing or unusable.
    """
    configuration = Configuration()
    # kubectl does not ask for it either, and the certificates of many clusters lack the key identifiers.
    configuration.disable_strict_ssl_verification = True
    where = f"The kubeconfig {kubeconfig}" if kubeconfig else "The service account of this pod"
    if kubeconfig is not None and not kubeconfig.is_file():
        raise KubeConfigError(f"{where} does not exist.")
    try:
        if kubeconfig is None:

            async def reload() -> None:
                load_incluster_config(configuration)  # type: ignore[no-untyped-call]

            await reload()
        else:
            loader = await load_kube_config(  # type: ignore[no-untyped-call]
                str(kubeconfig), client_configuration=configuration, persist_config=False
            )

            async def reload() -> None:
                await loader.load_and_set(configuration)

        return Client(configuration, reload, impersonate)
    except Exception as error:  # the library lets KeyError, TypeError and yaml's errors through
        reason = " ".join(str(error).split()).rstrip(".")
        advice = "" if kubeconfig else " Outside a cluster, name a kubeconfig."
        raise KubeConfigError(f"{where} cannot be used: {reason}.{advice}") from error


class Client:
    """Calls to one API server with fresh credentials; an async context manager, used by one event loop.

    Paths start with `/api`; parts that come from outside must be quoted by the caller.
    """

    def __init__(
        self,
        configuration: Configuration,
        reload: Callable[[], Awaitable[None]],
        impersonate: str | None = None,
    ) -> None:
        transport = RESTClientObject(configuration)
        self.server: str = configuration.host
        self._configuration = configuration
        self._reload = reload
        self._tls = transport.ssl_context
        self._routing: dict[str, Any] = {
            "proxy": transport.proxy or _proxy_from_environment(self.server),
            "proxy_headers": transport.proxy_headers,
            "server_hostname": configuration.tls_server_name,
        }
        # Otherwise the API server compresses long answers, which costs both sides more than it saves.
        self._headers = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "kvitej"}
        if impersonate is not None:
            self._headers["Impersonate-User"] = impersonate
        self._session: aiohttp.ClientSession | None = None
        self._refresher: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self._tls, limit=_CONNECTIONS),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=self._headers,
            read_bufsize=_READ_BUFFER,
        )
        self._refresher = asyncio.create_task(self._keep_credentials_fresh(), name="credentials")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._session is not None
        assert self._refresher is not None
        self._refresher.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._refresher
        await self._session.close()

    async def get(
        self, path: str, query: Mapping[str, str] | None = None, *, timeout: float = 30.0
    ) -> Answer:
        """Read `path`; `timeout` in seconds is for the whole call, here and below."""
        return await self._call("GET", path, query, None, None, timeout)

    async def post(self, path: str, body: bytes, *, timeout: float = 30.0) -> Answer:
        """Create with a JSON body."""
        return await self._call("POST", path, None, body, "application/json", timeout)

    async def patch(self, path: str, body: bytes, content_type: str, *, timeout: float = 30.0) -> Answer:
        """Change; `content_type` names the kind of patch, for instance `MERGE_PATCH`."""
        return await self._call("PATCH", path, None, body, content_type, timeout)

    @contextlib.asynccontextmanager
    async def stream(
        self, path: str, query: Mapping[str, str], *, timeout: float, silence: float
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Open a long answer: entered once the status is there, and closed on leaving.

        Reads end with AnswerLostError after `timeout` seconds in all or `silence` seconds without a byte.
        """
        limits = aiohttp.ClientTimeout(total=timeout, sock_connect=30.0, sock_read=silence)
        with _by_meaning(f"GET {path}"):
            async with self._open("GET", path, query, None, None, limits) as response:
                yield response

    async def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: bytes | None,
        content_type: str | None,
        timeout: float,
    ) -> Answer:
        limits = aiohttp.ClientTimeout(total=timeout)
        with _by_meaning(f"{method} {path}"):
            async with self._open(method, path, query, body, content_type, limits) as response:
                return Answer(response.status, await response.read())

    def _open(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: bytes | None,
        content_type: str | None,
        limits: aiohttp.ClientTimeout,
    ) -> "aiohttp.client._RequestContextManager":
        assert self._session is not None, "the client is used outside its context"
        url = f"{self.server}{path}?{urlencode(query)}" if query else self.server + path
        headers = {"Content-Type": content_type} if content_type else {}
        credentials: str | None = self._configuration.api_key.get("BearerToken")
        if credentials:
            headers["Authorization"] = credentials.strip()
        return self._session.request(
            method,
            URL(url, encoded=True),
            data=body,
            headers=headers,
            timeout=limits,
            allow_redirects=False,
            **self._routing,
        )

    async def _keep_credentials_fresh(self) -> None:
        while True:
            await asyncio.sleep(CREDENTIALS_SECONDS)
            try:
                await self._reload()
            except Exception as error:  # whatever it is, the credentials at hand may still be good
                log.warning("credentials were not refreshed", reason=str(error), server=self.server)


@contextlib.contextmanager
def _by_meaning(call: str) -> Iterator[None]:
    """Turn aiohttp's failures into ours."""
    begun = time.monotonic()
    try:
        yield
    except ApiError:
        raise
    except _FAILED_BEFORE_SENDING as error:
        raise NotSentError(f"The API server was not reached for {call}: {error}.") from error
    except TimeoutError as error:
        seconds = time.monotonic() - begun
        raise AnswerLostError(f"The API server left {call} without an answer for {seconds:.1f} s.") from error
    except (aiohttp.ClientError, OSError) as error:
        reason = str(error) or type(error).__name__
        raise AnswerLostError(f"The connection broke during {call}: {reason}.") from error


def _proxy_from_environment(server: str) -> str | None:
    """HTTPS_PROXY and NO_PROXY, read once: aiohttp's trust_env opens ~/.netrc in a thread on each call."""
    address = urlsplit(server)
    if address.hostname is None or proxy_bypass(address.hostname):
        return None
    return getproxies().get(address.scheme)
