"""What the kubelet says about devices, over a real gRPC socket with the kubelet's own messages."""

from __future__ import annotations

import asyncio
import socket as sockets
import time
from pathlib import Path
from typing import Any

import grpc
import pytest

from extender.agent.podresources import LONGEST_ANSWER, Kubelet, KubeletError
from extender.wire.gpunode import Allocatable, Held
from tests.agent.kubelet import GPU, FakeKubelet


async def test_each_container_and_what_it_holds(kubelet: FakeKubelet, socket: Path) -> None:
    kubelet.pods = {
        ("training", "worker-0", "main"): ["GPU-a", "GPU-b"],
        ("research", "notebook", "jupyter"): ["MIG-c"],
    }
    async with Kubelet(socket) as asked:
        assert await asked.held("nvidia.com/") == [
            Held("training", "worker-0", "main", GPU, ["GPU-a", "GPU-b"]),
            Held("research", "notebook", "jupyter", GPU, ["MIG-c"]),
        ]
        assert Held("training", "worker-0", "main", "rdma/hca", ["mlx5_0"]) in await asked.held()


async def test_nobody_holds_anything(kubelet: FakeKubelet, socket: Path) -> None:
    async with Kubelet(socket) as asked:
        assert await asked.held() == []
        assert await asked.allocatable() == []


async def test_what_could_be_held(kubelet: FakeKubelet, socket: Path) -> None:
    kubelet.allocatable = ["GPU-a", "GPU-a::1"]
    async with Kubelet(socket) as asked:
        assert await asked.allocatable("nvidia.com/") == [
            Allocatable(GPU, ["GPU-a"]),
            Allocatable(GPU, ["GPU-a::1"]),
        ]
        assert await asked.allocatable("amd.com/") == []


async def test_without_a_socket_the_kubelet_is_said_to_be_missing_until_it_is_there(
    kubelet_api: Any, socket: Path
) -> None:
    async with Kubelet(socket) as asked:
        with pytest.raises(KubeletError, match=rf"no socket {socket}: the kubelet is not running"):
            await asked.held()
        with FakeKubelet(kubelet_api, socket, {("a", "b", "c"): ["GPU-a"]}):
            assert len(await asked.held("nvidia.com/")) == 1


async def test_a_kubelet_that_restarts_is_found_again_within_seconds(
    kubelet: FakeKubelet, socket: Path
) -> None:
    kubelet.pods = {("a", "b", "c"): ["GPU-a"]}
    async with Kubelet(socket) as asked:
        before = await asked.held()
        kubelet.stop()
        with pytest.raises(KubeletError):
            await asked.held()
        await asyncio.sleep(1.5)
        with pytest.raises(KubeletError):
            await asked.held()
        kubelet.start()
        begun = time.monotonic()
        while True:
            try:
                assert await asked.held() == before
                break
            except KubeletError:
                await asyncio.sleep(0.1)
        assert time.monotonic() - begun < 5


async def test_a_socket_that_a_dead_kubelet_left_is_refused_with_a_sentence(socket: Path) -> None:
    with sockets.socket(sockets.AF_UNIX) as left:
        left.bind(str(socket))
    async with Kubelet(socket) as asked:
        with pytest.raises(KubeletError, match=rf"did not answer at {socket}: UNAVAILABLE, .+\.$"):
            await asked.held()


async def test_a_kubelet_that_hangs_costs_no_more_than_the_timeout(
    kubelet: FakeKubelet, socket: Path
) -> None:
    kubelet.delay = 2.0
    begun = time.monotonic()
    async with Kubelet(socket, timeout=0.5) as asked:
        with pytest.raises(KubeletError, match="DEADLINE_EXCEEDED"):
            await asked.held()
    assert time.monotonic() - begun < 1.5


async def test_ten_thousand_entries_are_read_to_the_last_in_little_time(
    kubelet: FakeKubelet, socket: Path
) -> None:
    uuid = "GPU-01234567-89ab-cdef-0123-456789abcdef"
    kubelet.pods = {
        (f"namespace-{n:05}", f"pod-with-a-long-name-{n:05}", "main"): [f"{uuid}::{k}" for k in range(8)]
        for n in range(10_000)
    }
    async with Kubelet(socket) as asked:
        begun = time.process_time()
        held = await asked.held("nvidia.com/")
        assert time.process_time() - begun < 5
    assert {each.pod for each in held} == {pod for _, pod, _ in kubelet.pods}
    assert held[-1].devices[-1] == f"{uuid}::7"
    assert 4 * 2**20 < sum(len(id_) for each in held for id_ in each.devices) + 10_000 * 100 < LONGEST_ANSWER


async def test_an_answer_of_another_kind_is_unreadable_and_not_empty(socket: Path) -> None:
    reply: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(
        lambda request, context: b"\xff\xff\xff"
    )
    server = grpc.aio.server()
    handler = grpc.method_handlers_generic_handler("v1.PodResourcesLister", {"List": reply})
    server.add_generic_rpc_handlers((handler,))
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    try:
        async with Kubelet(socket) as asked:
            with pytest.raises(KubeletError, match="cannot be read"):
                await asked.held()
            with pytest.raises(KubeletError, match="UNIMPLEMENTED"):
                await asked.allocatable()
    finally:
        await server.stop(None)
