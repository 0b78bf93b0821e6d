"""GPUNodes on a real API server: nothing of a report is lost, and an agent writes no node's but its own."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from extender.agent.writer import JSON_PATCH, NodeWriter, Report
from extender.cluster.reports import AgentEvent, Beat, ReportSeen
from extender.kube.agents import Agents
from extender.kube.client import Client, StatusError, connect
from extender.wire.gpunode import API_VERSION, KIND, PATH, GPUNode, GPUNodeStatus, Held
from tests.agent.builders import card, full_parts, spec, status
from tests.agent.kubelet import FakeKubelet, messages
from tests.controlplane.agent import LEASES, Agent, install, limited, token
from tests.controlplane.api import Api, ApiError, Object, node, wait_until
from tests.controlplane.processes import ControlPlane
from tests.fakes.nvml import CannotBuild, build, write
from tests.fakes.nvml.machines import h100_mig

pytestmark = pytest.mark.controlplane


@pytest.fixture
async def server(api: Api) -> AsyncIterator[Api]:
    """An API server with everything of the agent that is shipped, and two nodes."""
    await install(api)
    for name in ("gpu-a", "gpu-b"):
        await api.apply(node(name))
    yield api
    for each in await api.list(PATH):
        await api.delete(f"{PATH}/{each['metadata']['name']}")
    for each in await api.list(LEASES):
        await api.delete(f"{LEASES}/{each['metadata']['name']}")
    for name in ("gpu-a", "gpu-b"):
        await api.delete(f"/api/v1/nodes/{name}")


@pytest.fixture
async def agent(server: Api, control_plane: ControlPlane) -> AsyncIterator[Api]:
    """The API as the agent on node gpu-a sees it, once the shipped rights hold."""
    control_plane.add_user("agent-gpu-a", await token(server, on="gpu-a"))
    async with Api(control_plane, "agent-gpu-a") as own:
        await limited(own)
        yield own


@pytest.fixture
async def client(agent: Api, control_plane: ControlPlane) -> AsyncIterator[Client]:
    async with await connect(control_plane.kubeconfig("agent-gpu-a")) as client:
        yield client


@pytest.fixture
def nvml(tmp_path: Path) -> Path:
    try:
        return build(tmp_path)
    except CannotBuild as reason:
        pytest.skip(str(reason))


@pytest.fixture
def socket() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="kubelet-") as folder:
        yield Path(folder) / "kubelet.sock"


@pytest.fixture
def kubelet(tmp_path: Path, socket: Path) -> Iterator[FakeKubelet]:
    with FakeKubelet(messages(tmp_path), socket) as running:
        yield running


async def refusal(call: Awaitable[Any]) -> str:
    """Why the API server refuses; empty when it does not."""
    try:
        await call
    except ApiError as error:
        return str(error) if error.status in (403, 422) else ""
    return ""


def report(name: str, **parts: Any) -> Object:
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, **parts}


def lease(name: str) -> Object:
    meta = {"name": name, "namespace": "kvitej"}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": {}}


def patch(part: str, value: Any) -> Any:
    return [{"op": "add", "path": part, "value": value}]


def parts(used: int = 0) -> Report:
    made = status(card(used=used))
    return Report(msgspec.to_builtins(spec()), msgspec.to_builtins(made))


async def test_a_report_with_every_field_is_stored_as_it_is(server: Api) -> None:
    about, said = full_parts()
    strict = {"fieldValidation": "Strict"}
    stored = await server.post(PATH, report("gpu-a", spec=about, status=said), strict)
    assert stored["spec"] == about
    assert "status" not in stored
    stored = await server.put(f"{PATH}/gpu-a/status", {**stored, "status": said}, strict)
    assert (stored["spec"], stored["status"]) == (about, said)
    read = msgspec.convert(await server.get(f"{PATH}/gpu-a"), GPUNode)
    assert msgspec.to_builtins(read.spec) == about
    assert msgspec.to_builtins(read.status) == said


async def test_kubectl_get_shows_cards_free_memory_and_health(server: Api) -> None:
    _, said = full_parts()
    said["summary"] = {"gpus": 8, "free": 5, "memoryUsed": "201 of 640 GiB", "health": "1 of 8 unhealthy"}
    await server.post(PATH, report("gpu-a"))
    await server.patch(f"{PATH}/gpu-a/status", {"status": said})
    table = await server.get(PATH, headers={"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"})
    shown = [each["name"] for each in table["columnDefinitions"] if each["priority"] == 0]
    assert shown == ["Name", "GPUs", "Free", "Memory used", "Health", "Age"]
    (row,) = table["rows"]
    assert row["cells"][:5] == ["gpu-a", 8, 5, "201 of 640 GiB", "1 of 8 unhealthy"]


async def test_an_agent_writes_its_own_node_and_no_other(server: Api, agent: Api) -> None:
    await server.post(PATH, report("gpu-b"))
    await server.post(LEASES, lease("gpu-b"))
    await agent.post(PATH, report("gpu-a"))
    await agent.post(LEASES, lease("gpu-a"))
    said = {"gpus": [], "agent": "1"}
    told = "an agent may write only what is named as its own node, which is gpu-a, not gpu-b"
    for name, allowed in (("gpu-a", True), ("gpu-b", False)):
        for path, body in (
            (f"{PATH}/{name}", patch("/spec", {"driver": "1"})),
            (f"{PATH}/{name}/status", patch("/status", said)),
            (f"{LEASES}/{name}", patch("/spec/holderIdentity", "gpu-a")),
        ):
            refused = await refusal(agent.patch(path, body, JSON_PATCH))
            assert refused == "" if allowed else told in refused, path
    assert (await server.get(f"{PATH}/gpu-a"))["status"] == said
    assert "status" not in await server.get(f"{PATH}/gpu-b")
    await server.delete(f"{PATH}/gpu-b")
    await server.delete(f"{LEASES}/gpu-b")
    assert told in await refusal(agent.post(PATH, report("gpu-b")))
    assert told in await refusal(agent.post(LEASES, lease("gpu-b")))
    generated = {**report(""), "metadata": {"generateName": "gpu-a"}}
    assert "as its own node" in await refusal(agent.post(PATH, generated))


async def test_an_agent_may_do_nothing_else(server: Api, agent: Api) -> None:
    await server.post(PATH, report("gpu-a"))
    await server.post(LEASES, lease("gpu-a"))
    elsewhere = LEASES.replace("kvitej", "kube-node-lease")
    for call in (
        agent.delete(f"{PATH}/gpu-a"),
        agent.delete(f"{LEASES}/gpu-a"),
        agent.get(PATH),
        agent.get(LEASES),
        agent.get("/api/v1/pods"),
        agent.get("/api/v1/nodes"),
        agent.patch("/api/v1/nodes/gpu-a", {"metadata": {"labels": {"x": "y"}}}),
        agent.post(elsewhere, {**lease("gpu-a"), "metadata": {"name": "gpu-a"}}),
    ):
        assert "403" in await refusal(call)


async def test_a_token_that_is_bound_to_no_pod_writes_nothing(
    server: Api, agent: Api, control_plane: ControlPlane
) -> None:
    control_plane.add_user("unbound", await token(server, on=None))
    async with Api(control_plane, "unbound") as unbound:
        for name in ("gpu-a", "gpu-b"):
            told = f"its own node, which is not in its token, not {name}"
            assert told in await refusal(unbound.post(PATH, report(name)))
            assert told in await refusal(unbound.post(LEASES, lease(name)))


async def test_the_policy_is_for_agents_alone(server: Api, agent: Api) -> None:
    await server.post(LEASES, lease("kvitej"))
    await server.post(PATH, report("gpu-b"))


async def test_a_writer_makes_what_is_missing_and_then_writes_what_differs(
    server: Api, client: Client
) -> None:
    writer = NodeWriter(client, "gpu-a")
    first, second = parts(used=1), parts(used=2)
    await writer.report(first)
    await writer.beat(datetime(2026, 11, 30, 12, 0, 0, 5, UTC))
    stored = await server.get(f"{PATH}/gpu-a")
    assert (stored["spec"], stored["status"]) == first
    (owner,) = stored["metadata"]["ownerReferences"]
    assert owner["uid"] == (await server.get("/api/v1/nodes/gpu-a"))["metadata"]["uid"]
    beat = await server.get(f"{LEASES}/gpu-a")
    assert beat["metadata"]["ownerReferences"][0]["uid"] == stored["metadata"]["uid"]
    assert beat["spec"]["renewTime"] == "2026-11-30T12:00:00.000005Z"
    assert (beat["spec"]["holderIdentity"], beat["spec"]["leaseDurationSeconds"]) == ("gpu-a", 90)

    await writer.report(second)
    await writer.report(second)
    after = await server.get(f"{PATH}/gpu-a")
    assert (after["spec"], after["status"]) == second
    assert after["metadata"]["generation"] == stored["metadata"]["generation"]
    await writer.beat(datetime(2026, 11, 30, 12, 0, 30, tzinfo=UTC))
    assert (await server.get(f"{LEASES}/gpu-a"))["spec"]["renewTime"] == "2026-11-30T12:00:30.000000Z"


async def test_a_restarted_agent_leaves_nothing_of_what_was_said_before(server: Api, client: Client) -> None:
    about, said = full_parts()
    await NodeWriter(client, "gpu-a").report(Report(about, said))
    await NodeWriter(client, "gpu-a").report(parts())
    stored = await server.get(f"{PATH}/gpu-a")
    assert (stored["spec"], stored["status"]) == parts()


async def test_what_was_deleted_under_an_agent_is_made_anew(server: Api, client: Client) -> None:
    writer = NodeWriter(client, "gpu-a")
    await writer.report(parts(used=1))
    await writer.beat(datetime.now(UTC))
    await server.delete(f"{PATH}/gpu-a")
    await writer.report(parts(used=2))
    assert (await server.get(f"{PATH}/gpu-a"))["status"] == parts(used=2).status
    # The garbage collector takes the Lease along with the GPUNode.
    await server.delete(f"{PATH}/gpu-a")
    await server.delete(f"{LEASES}/gpu-a")
    await writer.beat(datetime.now(UTC))
    stored = await server.get(f"{PATH}/gpu-a")
    assert stored["status"] == parts(used=2).status
    beat = await server.get(f"{LEASES}/gpu-a")
    assert beat["metadata"]["ownerReferences"][0]["uid"] == stored["metadata"]["uid"]


async def test_a_writer_for_another_node_is_told_why_it_may_not(server: Api, client: Client) -> None:
    writer = NodeWriter(client, "gpu-b")
    with pytest.raises(StatusError, match="which is gpu-a, not gpu-b"):
        await writer.report(parts())
    assert writer.written is None


async def test_an_agent_tells_what_its_cards_and_kubelet_do_and_nothing_at_rest(
    server: Api,
    agent: Api,
    control_plane: ControlPlane,
    nvml: Path,
    kubelet: FakeKubelet,
    socket: Path,
    tmp_path: Path,
) -> None:
    cards, machine = tmp_path / "cards.txt", h100_mig()
    write(cards, machine)
    told: list[AgentEvent] = []
    config = {"sample": "1s", "heartbeat": "1s", "kubeletSocket": str(socket), "kubeletGrace": "1s"}
    process = Agent(control_plane, "gpu-a", "agent-gpu-a", library=nvml, cards=cards, config=config)
    async with await connect(control_plane.kubeconfig("kvitej")) as reader:
        following = asyncio.create_task(Agents(reader, told.append).run())
        try:
            await story(server, process, kubelet, cards, machine, told)
        finally:
            process.kill()
            following.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await following


async def story(
    server: Api, process: Agent, kubelet: FakeKubelet, cards: Path, machine: str, told: list[AgentEvent]
) -> None:
    def last() -> GPUNodeStatus | None:
        reports = [each for each in told if isinstance(each, ReportSeen) and each.node == "gpu-a"]
        return reports[-1].status if reports else None

    async def until(holds: Callable[[GPUNodeStatus], bool], what: str) -> None:
        await wait_until(
            lambda: (said := last()) is not None and holds(said), 20, lambda: f"{what}: {last()}"
        )

    def beats() -> list[Beat]:
        return [each for each in told if isinstance(each, Beat)]

    await until(lambda said: len(said.gpus) == 8, "the first report")
    first = await server.get(f"{PATH}/gpu-a")
    assert first["spec"]["gpus"][0]["model"] == "NVIDIA H100 80GB HBM3"
    assert first["status"]["summary"]["health"] == "healthy"
    stored, sent = first["metadata"]["resourceVersion"], len(beats())
    await wait_until(lambda: len(beats()) >= sent + 4, 20, "beats at rest")
    assert (await server.get(f"{PATH}/gpu-a"))["metadata"]["resourceVersion"] == stored

    write(
        cards,
        machine + f"\ngpu 1\nmemory {81559 * 2**20} {480 * 2**20} {48 * 2**30}\nprocess 77 {48 * 2**30}\n",
    )
    await until(
        lambda said: said.gpus[1].memory is not None and said.gpus[1].memory.used == 48 * 2**30, "use"
    )
    kubelet.pods = {("team", "train", "main"): ["GPU-2"]}
    held = Held("team", "train", "main", "nvidia.com/gpu", ["GPU-2"])
    await until(lambda said: said.kubelet is not None and said.kubelet.held == [held], "who holds what")
    kubelet.stop()
    await until(lambda said: said.kubelet is not None and said.kubelet.held is None, "no kubelet")
    kubelet.start()
    await until(lambda said: said.kubelet is not None and said.kubelet.held == [held], "the kubelet again")
    write(cards, machine)
    await until(
        lambda said: said.gpus[1].memory is not None and said.gpus[1].memory.used < 2**30, "memory back"
    )
    assert process.running
    assert process.resident() < 100e6
    process.stop()
    assert "Traceback" not in process.log.read_text()
