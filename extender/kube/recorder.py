"""Tells the owners of pods what was decided and why, as Kubernetes Events on the pod.

Events are a courtesy: recording never blocks a decision, and what does not fit or does not arrive is counted.
"""

import asyncio
import itertools
import time
from datetime import UTC, datetime
from urllib.parse import quote

import msgspec
import structlog

from extender.kube.client import ApiError, Client, StatusError

log = structlog.get_logger(__name__)

COMPONENT = "kvitej"
WAITING = 1000
REPEAT_SECONDS = 600.0
LONGEST_MESSAGE = 1024
"""The API server's limit."""

_Key = tuple[str, str, str]


class Recorder:
    """Writes Events one after the other while `run` runs.

    Attributes
    ----------
    written, repeated, dropped, failed : int
        Events created, left out because the pod got the same one within 10 minutes, left out because
        `WAITING` others were waiting, and not accepted by the API server.
    """

    def __init__(self, client: Client) -> None:
        self.written = self.repeated = self.dropped = self.failed = 0
        self._client = client
        self._waiting: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue(WAITING)
        self._told: dict[_Key, float] = {}
        self._serial = itertools.count(time.time_ns())

    def record(
        self,
        *,
        namespace: str,
        name: str,
        uid: str,
        reason: str,
        message: str,
        type: str = "Warning",  # noqa: A002
    ) -> None:
        """Queue an Event on the pod; `reason` is one CamelCase word, `type` is Normal or Warning."""
        if self._told_lately((uid, reason, message)):
            self.repeated += 1
            return
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"namespace": namespace, "name": f"{name[:230]}.{next(self._serial):x}"},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "namespace": namespace,
                "name": name,
                "uid": uid,
            },
            "reason": reason,
            "message": _shortened(message),
            "type": type,
            "source": {"component": COMPONENT},
            "reportingComponent": COMPONENT,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        try:
            self._waiting.put_nowait((namespace, msgspec.json.encode(event)))
        except asyncio.QueueFull:
            self.dropped += 1

    async def run(self) -> None:
        """Write what is queued until cancelled."""
        while True:
            namespace, body = await self._waiting.get()
            try:
                path = f"/api/v1/namespaces/{quote(namespace, safe='')}/events"
                answer = await self._client.post(path, body, timeout=10.0)
                if answer.status != 201:
                    raise StatusError(answer)
                self.written += 1
            except ApiError as failure:
                self.failed += 1
                log.warning("event not written", namespace=namespace, reason=str(failure))

    def _told_lately(self, key: _Key) -> bool:
        now = time.monotonic()
        # Insertion order is time order, so the old ones stand in front.
        while self._told:
            oldest = next(iter(self._told))
            if now - self._told[oldest] < REPEAT_SECONDS and len(self._told) <= 10 * WAITING:
                break
            del self._told[oldest]
        if key in self._told:
            return True
        self._told[key] = now
        return False


def _shortened(message: str) -> str:
    """Cut to what the API server takes, counted in bytes."""
    encoded = message.encode()
    if len(encoded) <= LONGEST_MESSAGE:
        return message
    return encoded[: LONGEST_MESSAGE - 3].decode(errors="ignore") + "…"
