"""Which pod holds which device, as the kubelet of this node says: its PodResources API, version 1.

The kubelet and its device plugins choose the cards, and this socket is the only place that tells which. Read are
the devices of device plugins (`nvidia.com/gpu`, MIG instances, replicas of shared cards), by the ids that the plugin
gave them.

The four messages are declared here, field by field with the kubelet's numbers, and decoded by protobuf's own
runtime: generated code would be a hundred times this and tied to one version of that runtime.
"""

from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias

import grpc
import grpc.aio
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.message import DecodeError

from extender.wire.gpunode import Allocatable, Held

SOCKET = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
LONGEST_ANSWER = 16 * 2**20
"""Bytes; what the kubelet's own clients allow. gRPC's default of 4 MiB is less than 10,000 devices may need."""

_LIST = "/v1.PodResourcesLister/List"
_ALLOCATABLE = "/v1.PodResourcesLister/GetAllocatableResources"
_RECONNECT_MS = 1000
_EMPTY = b""
_Call: TypeAlias = "grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]"


class KubeletError(ConnectionError):
    """The kubelet has not answered; the message is a sentence that names the socket."""


class Kubelet:
    """Asks one kubelet; an async context manager. A kubelet that restarts is found again within a second.

    Parameters
    ----------
    socket
        The kubelet's unix socket.
    timeout
        Seconds for each call.
    """

    def __init__(self, socket: Path = SOCKET, *, timeout: float = 5.0) -> None:
        self._socket = socket
        self._timeout = timeout

    async def __aenter__(self) -> Self:
        options = (
            ("grpc.max_receive_message_length", LONGEST_ANSWER),
            # Its own backoff goes up to two minutes, in which a kubelet that is back would count as gone.
            ("grpc.initial_reconnect_backoff_ms", _RECONNECT_MS // 10),
            # Also the least time that a connection may take to come up, so not less than a busy node needs.
            ("grpc.min_reconnect_backoff_ms", _RECONNECT_MS),
            ("grpc.max_reconnect_backoff_ms", _RECONNECT_MS),
            # As grpc-go sends it; some servers refuse the escaped path that is the default.
            ("grpc.default_authority", "localhost"),
        )
        self._channel = grpc.aio.insecure_channel(f"unix:{self._socket}", options=options)
        self._list: _Call = self._channel.unary_unary(_LIST)
        self._allocatable: _Call = self._channel.unary_unary(_ALLOCATABLE)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._channel.close()

    async def held(self, prefix: str = "") -> list[Held]:
        """Who holds what, of the resources whose names begin with `prefix`.

        Kubelets before 1.34 tell of pods that have ended, too.

        Raises
        ------
        KubeletError
            There is no usable answer.
        """
        answer = await self._ask(self._list, _ListAnswer)
        return [
            Held(pod.namespace, pod.name, container.name, each.resource_name, list(each.device_ids))
            for pod in answer.pod_resources
            for container in pod.containers
            for each in container.devices
            if each.resource_name.startswith(prefix)
        ]

    async def allocatable(self, prefix: str = "") -> list[Allocatable]:
        """What could be held, of the resources whose names begin with `prefix`; raises as `held`.

        A resource comes several times where its devices are near to different NUMA nodes.
        """
        answer = await self._ask(self._allocatable, _AllocatableAnswer)
        return [
            Allocatable(each.resource_name, list(each.device_ids))
            for each in answer.devices
            if each.resource_name.startswith(prefix)
        ]

    async def _ask(self, call: _Call, kind: Any) -> Any:
        if not self._socket.exists():
            raise KubeletError(
                f"There is no socket {self._socket}: the kubelet is not running, or its directory is not mounted."
            )
        try:
            return kind.FromString(await call(_EMPTY, timeout=self._timeout))
        except grpc.aio.AioRpcError as error:
            said = " ".join((error.details() or "").split()).rstrip(".")
            raise KubeletError(
                f"The kubelet did not answer at {self._socket}: {error.code().name}, {said or 'no message'}."
            ) from error
        except DecodeError as error:
            raise KubeletError(f"The kubelet's answer at {self._socket} cannot be read: {error}.") from error


# Name of message → its fields with their numbers, all of them repeated or texts. What is not named here, the runtime
# skips.
_MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "ListPodResourcesResponse": {"pod_resources": (1, "PodResources")},
    "PodResources": {"name": (1, ""), "namespace": (2, ""), "containers": (3, "ContainerResources")},
    "ContainerResources": {"name": (1, ""), "devices": (2, "ContainerDevices")},
    "ContainerDevices": {"resource_name": (1, ""), "device_ids": (2, "[]")},
    "AllocatableResourcesResponse": {"devices": (1, "ContainerDevices")},
}


def _declared() -> FileDescriptorProto:
    """The messages as a .proto file would say it."""
    file = FileDescriptorProto(name="kvitej/podresources.proto", package="v1", syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            one = FieldDescriptorProto.LABEL_OPTIONAL if kind == "" else FieldDescriptorProto.LABEL_REPEATED
            if kind in ("", "[]"):
                message.field.add(name=field, number=number, label=one, type=FieldDescriptorProto.TYPE_STRING)
            else:
                message.field.add(
                    name=field,
                    number=number,
                    label=one,
                    type=FieldDescriptorProto.TYPE_MESSAGE,
                    type_name=f".v1.{kind}",
                )
    return file


# A pool of its own: another library in the process may have the kubelet's file in the default one.
_pool = descriptor_pool.DescriptorPool()
_pool.AddSerializedFile(_declared().SerializeToString())
_ListAnswer = message_factory.GetMessageClass(_pool.FindMessageTypeByName("v1.ListPodResourcesResponse"))
_AllocatableAnswer = message_factory.GetMessageClass(
    _pool.FindMessageTypeByName("v1.AllocatableResourcesResponse")
)
