"""A kubelet's PodResources socket: a real gRPC server that answers with the kubelet's own messages.

Its code is generated from `api.proto` of the module k8s.io/kubelet, which comes from the Go module proxy like the
control plane's binaries: so the numbers of the fields are the kubelet's, not ours twice.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc

from tests.controlplane.binaries import sources

API = Path("pkg/apis/podresources/v1/api.proto")
GPU = "nvidia.com/gpu"
Pods = Mapping[tuple[str, str, str], Iterable[str]]
"""(namespace, pod, container) → the cards that it holds."""


def messages(folder: Path) -> Any:
    """The kubelet's messages as a module, generated into `folder`."""
    proto = folder / "kubelet_podresources.proto"
    proto.write_bytes((sources("k8s.io/kubelet") / API).read_bytes())
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}", f"--python_out={folder}", str(proto)]
    subprocess.run(command, check=True)
    spec = importlib.util.spec_from_file_location(proto.stem, folder / f"{proto.stem}_pb2.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class FakeKubelet:
    """Answers List and GetAllocatableResources at `socket`.

    What holds what, what is allocatable and how many seconds List takes may be changed while it runs.
    """

    def __init__(self, api: Any, socket: Path, pods: Pods | None = None) -> None:
        self.pods: Pods = pods or {}
        self.allocatable: Iterable[str] = ()
        self.calls = 0
        self.delay = 0.0
        self._api = api
        self._socket = socket

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """As a kubelet does: what an earlier one left at the socket goes first."""
        self._socket.unlink(missing_ok=True)
        options = (("grpc.so_reuseport", 0),)
        self._server = grpc.server(ThreadPoolExecutor(2), options=options)
        calls = {
            "List": grpc.unary_unary_rpc_method_handler(
                lambda request, context: self._list(),
                request_deserializer=self._api.ListPodResourcesRequest.FromString,
                response_serializer=self._api.ListPodResourcesResponse.SerializeToString,
            ),
            "GetAllocatableResources": grpc.unary_unary_rpc_method_handler(
                lambda request, context: self._allocatable(),
                request_deserializer=self._api.AllocatableResourcesRequest.FromString,
                response_serializer=self._api.AllocatableResourcesResponse.SerializeToString,
            ),
        }
        handler = grpc.method_handlers_generic_handler("v1.PodResourcesLister", calls)
        self._server.add_generic_rpc_handlers((handler,))
        self._server.add_insecure_port(f"unix:{self._socket}")
        self._server.start()

    def stop(self) -> None:
        self._server.stop(None).wait()

    def _list(self) -> Any:
        """With all else that a kubelet tells of a container, which is not for us."""
        self.calls += 1
        time.sleep(self.delay)
        api = self._api
        answer = api.ListPodResourcesResponse()
        for (namespace, name, container), devices in self.pods.items():
            pod = answer.pod_resources.add(name=name, namespace=namespace)
            one = pod.containers.add(name=container, cpu_ids=[3, 4])
            one.memory.add(memory_type="memory", size=2**33)
            held = one.devices.add(resource_name=GPU, device_ids=devices)
            held.topology.nodes.add(ID=1)
            one.devices.add(resource_name="rdma/hca", device_ids=["mlx5_0"])
            claim = one.dynamic_resources.add(claim_name="claim", claim_namespace=namespace)
            claim.claim_resources.add(driver_name="gpu.nvidia.com", device_name="gpu-0")
        return answer

    def _allocatable(self) -> Any:
        answer = self._api.AllocatableResourcesResponse(cpu_ids=[0, 1])
        for number, device in enumerate(self.allocatable):
            near = answer.devices.add(resource_name=GPU, device_ids=[device])
            near.topology.nodes.add(ID=number % 2)
        return answer
