"""What is followed, and how the bytes of its watch become objects.

A batch of lines is decoded in one pass into slim structs. When something in it cannot be read, its events are
decoded one by one, and the unreadable ones stay raw, so that the reflector can say which object it is.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import msgspec

from extender.cluster.events import Event, NodeGone, NodeSeen, PodGone, PodSeen
from extender.wire.objects import ListMeta, Node, ObjectMeta, Pod, Slim, Status


class Named(Protocol):
    """What all objects of the API server have."""

    @property
    def metadata(self) -> ObjectMeta: ...


T = TypeVar("T", bound=Named)
E = TypeVar("E")
Object = TypeVar("Object")


class WatchEvent(msgspec.Struct, Generic[Object], gc=False):
    type: str
    object: Object


@dataclass(frozen=True, slots=True)
class Resource(Generic[T, E]):
    """A kind of object, and what its coming and going mean: events for the book, or for whom it is followed."""

    path: str
    kind: type[T]
    seen: Callable[[T], E]
    gone: Callable[[str, str], E]
    """(name, uid) → event."""
    over: Callable[[T], bool] = lambda _: False
    """The object still exists but counts as gone."""
    field_selector: str | None = None
    optional: bool = False
    """The API server may not know the kind (yet), which means that there are no objects of it."""


NODES: Resource[Node, Event] = Resource("/api/v1/nodes", Node, NodeSeen, lambda name, uid: NodeGone(name))
PODS: Resource[Pod, Event] = Resource(
    "/api/v1/pods",
    Pod,
    PodSeen,
    lambda name, uid: PodGone(uid),
    over=lambda pod: pod.status is not None and pod.status.phase in ("Succeeded", "Failed"),
    field_selector="status.phase!=Succeeded,status.phase!=Failed",
)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An object that exists but cannot be read: what it uses is unknown until it is gone or readable.

    Names are empty where even they cannot be read.
    """

    path: str
    """Of the resource, for instance /api/v1/nodes."""
    namespace: str
    name: str
    uid: str
    version: str
    """The object's resourceVersion."""
    node: str | None
    """The node whose use is unknown: the node itself, or where the pod sits; None when unbound or unknown."""
    reason: str


class Reader(Generic[T]):
    """Decodes watch lines and list pages of one resource."""

    def __init__(self, resource: Resource[T, E]) -> None:
        self._path = resource.path
        self._kind: type = resource.kind
        self._objects: msgspec.json.Decoder[T] = msgspec.json.Decoder(resource.kind)
        self._events: msgspec.json.Decoder[WatchEvent[T]] = msgspec.json.Decoder(
            WatchEvent[resource.kind]  # type: ignore[name-defined]
        )

    def lines(self, lines: bytes) -> Sequence[WatchEvent[T] | WatchEvent[msgspec.Raw]]:
        """The events of whole lines; an ERROR and what cannot be read stay raw.

        Raises
        ------
        msgspec.DecodeError
            A line is no event at all.
        """
        with contextlib.suppress(msgspec.DecodeError):
            return self._events.decode_lines(lines)
        return [self._decoded(event) for event in _RAW_EVENTS.decode_lines(lines)]

    def page(self, body: bytes) -> tuple[list[WatchEvent[T] | WatchEvent[msgspec.Raw]], ListMeta]:
        """The objects of one page of a list, as if they were added now, and the page's own metadata.

        Raises
        ------
        msgspec.DecodeError
            The body is no list.
        """
        page = _LIST.decode(body)
        return [self._decoded(WatchEvent("ADDED", raw)) for raw in page.items or ()], page.metadata

    def unreadable(self, raw: msgspec.Raw) -> Unreadable:
        """Which object it is that cannot be read, as far as its metadata tell."""
        reason = "its event cannot be read"
        try:
            self._objects.decode(raw)
        except msgspec.DecodeError as error:
            reason = str(error)
        try:
            envelope = _ENVELOPE.decode(raw)
        except msgspec.DecodeError:
            envelope = _Envelope(_Name())
        meta = envelope.metadata
        sits = envelope.spec.node_name if envelope.spec else None
        node = _text(sits if self._kind is Pod else meta.name if self._kind is Node else None)
        return Unreadable(
            path=self._path,
            namespace=_text(meta.namespace),
            name=_text(meta.name),
            uid=_text(meta.uid),
            version=_text(meta.resource_version),
            node=node or None,
            reason=reason,
        )

    def _decoded(self, event: WatchEvent[msgspec.Raw]) -> WatchEvent[T] | WatchEvent[msgspec.Raw]:
        if event.type == "ERROR":
            return event
        try:
            return WatchEvent(event.type, self._objects.decode(event.object))
        except msgspec.DecodeError:
            return event


def status_of(thing: object) -> Status:
    """The Status that an ERROR event carries; an empty one when it cannot be read."""
    if isinstance(thing, msgspec.Raw):
        with contextlib.suppress(msgspec.DecodeError):
            return msgspec.json.decode(thing, type=Status)
    return Status()


class _List(Slim):
    metadata: ListMeta
    items: list[msgspec.Raw] | None = None


class _Name(Slim):
    """Enough of an object to say which one it is; every field takes anything."""

    name: object = ""
    namespace: object = ""
    uid: object = ""
    resource_version: object = ""


class _NodeName(Slim):
    node_name: object = None


class _Envelope(Slim):
    metadata: _Name
    spec: _NodeName | None = None


_RAW_EVENTS = msgspec.json.Decoder(WatchEvent[msgspec.Raw])
_LIST = msgspec.json.Decoder(_List)
_ENVELOPE = msgspec.json.Decoder(_Envelope)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
