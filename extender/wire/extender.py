"""The extender/v1 protocol: what kube-scheduler asks and what it accepts as an answer.

A request is split at its top level only: the pod is decoded into the slim struct, the node names stay raw
bytes for the native scanner. Keys of the protocol's own types are read in any case, as Go reads them (its
types carry no JSON tags), and the last of several spellings wins; answers are PascalCase. The two large
answers, Filter's maps and Prioritize's list, are built natively; Filter's are framed here.

Source: k8s.io/kube-scheduler `extender/v1/types.go`, read by k/k `pkg/scheduler/extender.go`.
"""

from collections.abc import Mapping
from typing import Annotated, TypeVar

import msgspec

from extender.wire.objects import Pod

_T = TypeVar("_T")


class WireError(ValueError):
    """A body that the protocol does not allow; the text says which key, what was found, what is expected."""


class ExtenderArgs(msgspec.Struct, frozen=True, gc=False):
    """Request of Filter and Prioritize."""

    pod: Pod
    node_names: memoryview
    """The JSON array of node names as it was sent; its elements are not looked at here."""


class BindingArgs(msgspec.Struct, frozen=True, gc=False):
    """Request of Bind."""

    name: str
    namespace: str
    uid: str
    node: str


class Victims(msgspec.Struct, frozen=True, gc=False):
    """Pods to evict from one node, and how many of them a PodDisruptionBudget protects."""

    uids: tuple[str, ...] = ()
    pdb_violations: int = 0


class PreemptionArgs(msgspec.Struct, frozen=True, gc=False):
    """Request of Preempt: the victims that the scheduler proposes, by node name."""

    pod: Pod
    victims: dict[str, Victims]


_Text = Annotated[str, msgspec.Meta(min_length=1)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_LIST = msgspec.json.Decoder(list[msgspec.Raw])
_TEXT: msgspec.json.Decoder[str] = msgspec.json.Decoder(_Text)
_COUNT: msgspec.json.Decoder[int] = msgspec.json.Decoder(_Count)
_POD = msgspec.json.Decoder(Pod)

_NULL = msgspec.Raw(b"null")
_SHOWN = 80  # characters of one key or value that an error may quote


def decode_args(body: bytes) -> ExtenderArgs:
    """Request of Filter or Prioritize.

    Raises
    ------
    WireError
        If `body` is no such request, or carries whole nodes instead of their names.
    """
    fields = _body(body)
    names = fields.get("nodenames")
    if names is None:
        raise WireError(
            "NodeNames is missing or null, and a list of names is expected: "
            "kvitej needs `nodeCacheCapable: true` in the scheduler's extender entry"
        )
    node_names = memoryview(names)
    if node_names[:1].tobytes() != b"[":
        raise WireError(f"NodeNames: expected a list of names, got {_shown(bytes(node_names))}")
    return ExtenderArgs(pod=_pod(fields), node_names=node_names)


def decode_binding(body: bytes) -> BindingArgs:
    """Request of Bind.

    Raises
    ------
    WireError
        If `body` is no such request, or one of its four texts is missing or empty.
    """
    fields = _body(body)
    return BindingArgs(
        name=_required(fields, "PodName", _TEXT),
        namespace=_required(fields, "PodNamespace", _TEXT),
        uid=_required(fields, "PodUID", _TEXT),
        node=_required(fields, "Node", _TEXT),
    )


def decode_preemption(body: bytes) -> PreemptionArgs:
    """Request of Preempt, with victims by UID (`nodeCacheCapable: true`) or as whole pods.

    Raises
    ------
    WireError
        If `body` is no such request, or a victim has no UID.
    """
    fields = _body(body)
    uid_path: tuple[str, ...]
    if "nodenametometavictims" in fields:
        key, uid_path = "NodeNameToMetaVictims", ("UID",)
    elif "nodenametovictims" in fields:
        key, uid_path = "NodeNameToVictims", ("metadata", "uid")
    else:
        raise WireError(
            "NodeNameToMetaVictims is missing or null, and a map from node to victims is expected"
        )
    proposed = _decode(_OBJECT, fields[key.lower()], key)
    return PreemptionArgs(
        pod=_pod(fields),
        victims={node: _victims(raw, f"{key}[{_shown(node)}]", uid_path) for node, raw in proposed.items()},
    )


def filter_result(node_names_json: bytes | memoryview, failed_json: bytes, unresolvable_json: bytes) -> bytes:
    """Answer of Filter from a JSON array of names and two JSON objects of reasons by node name."""
    return _filter_result(node_names_json, failed_json, unresolvable_json, b'""')


def filter_error(text: str) -> bytes:
    """Answer of Filter that fails the call; the scheduler shows `text` in the pod's event."""
    return _filter_result(b"null", b"null", b"null", _json_text(text))


def binding_result(error: str) -> bytes:
    """Answer of Bind: an empty `error` says that the pod is bound."""
    return b'{"Error":' + _json_text(error) + b"}"


def preemption_result(victims: Mapping[str, Victims]) -> bytes:
    """Answer of Preempt; a node that is left out is vetoed."""
    return msgspec.json.encode(
        {
            "NodeNameToMetaVictims": {
                node: {
                    "Pods": [{"UID": uid} for uid in chosen.uids],
                    "NumPDBViolations": chosen.pdb_violations,
                }
                for node, chosen in victims.items()
            }
        }
    )


def _filter_result(node_names: bytes | memoryview, failed: bytes, unresolvable: bytes, error: bytes) -> bytes:
    return b"".join(
        (
            b'{"Nodes":null,"NodeNames":',
            node_names,
            b',"FailedNodes":',
            failed,
            b',"FailedAndUnresolvableNodes":',
            unresolvable,
            b',"Error":',
            error,
            b"}",
        )
    )


def _body(body: bytes) -> dict[str, msgspec.Raw]:
    if not body:
        raise WireError("the body is empty, and a JSON object is expected")
    if not body.isascii():
        try:
            body.decode()  # msgspec checks no text inside a Raw
        except UnicodeDecodeError as error:
            raise WireError(f"the body is not UTF-8: {error.reason} at byte {error.start}") from None
    return _fields(body, "the body")


def _fields(raw: bytes, where: str) -> dict[str, msgspec.Raw]:
    """Fields of an object of the protocol by lower-case key; null counts as absent, as in Go."""
    fields = {key.lower(): value for key, value in _decode(_OBJECT, raw, where).items()}
    return {key: value for key, value in fields.items() if value != _NULL}


def _decode(decoder: msgspec.json.Decoder[_T], raw: bytes, where: str) -> _T:
    try:
        return decoder.decode(raw)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise WireError(f"{where}: {_shown(str(error))}") from None


def _required(fields: Mapping[str, msgspec.Raw], key: str, decoder: msgspec.json.Decoder[_T]) -> _T:
    raw = fields.get(key.lower())
    if raw is None:
        raise WireError(f"{key} is missing or null, and is required")
    return _decode(decoder, raw, key)


def _pod(fields: Mapping[str, msgspec.Raw]) -> Pod:
    pod = _required(fields, "Pod", _POD)
    if not pod.metadata.name:
        raise WireError("Pod: metadata.name is missing or empty, and is required")
    return pod


def _victims(raw: bytes, where: str, uid_path: tuple[str, ...]) -> Victims:
    fields = _fields(raw, where)
    pods = _decode(_LIST, fields["pods"], f"{where}.Pods") if "pods" in fields else []
    violations = fields.get("numpdbviolations")
    return Victims(
        uids=tuple(_uid(pod, f"{where}.Pods", uid_path) for pod in pods),
        pdb_violations=0 if violations is None else _decode(_COUNT, violations, f"{where}.NumPDBViolations"),
    )


def _uid(pod: bytes, where: str, path: tuple[str, ...]) -> str:
    for key in path:
        found = _fields(pod, where).get(key.lower())
        if found is None:
            raise WireError(f"{where}: {key} is missing or null, and is required")
        pod, where = found, f"{where}.{key}"
    return _decode(_TEXT, pod, where)


def _json_text(text: str) -> bytes:
    """JSON string; what UTF-8 cannot carry becomes "?", since an answer must always leave."""
    return msgspec.json.encode(text.encode("utf-8", "replace").decode())


def _shown(found: bytes | str) -> str:
    text = found[:_SHOWN].decode("utf-8", "replace") if isinstance(found, bytes) else found[:_SHOWN]
    return text if len(found) <= _SHOWN else f"{text}..."
