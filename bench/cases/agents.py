"""`bench agents`: what the agents cost: each on its node, all of them in `kvitej serve`, and at the API server.

On the node: `kvitej agent` as it is shipped, with a fake driver's library, a fake kubelet and a real API server, on 8
cards of 7 MIG instances, each with a process of its own; beside it a Python that imports the libraries alone.

In `kvitej serve`: 5,000 nodes whose agents report and beat at the pace of an ordinary minute (`bench.reporting`), in
the bytes of the real API server, with a pod on each card; beside it the same cluster while nobody reports.

At the API server: what a beat costs is the difference between a stretch in which 50 more agents beat once a second and
one in which they do not; 5,000 agents at rest beat 5,000 / 30 s = 167 times a second and write nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import msgspec

from bench import cluster, programs, reporting
from bench.report import Measurement, measured
from extender.agent.writer import NodeWriter, Report
from extender.kube.client import connect
from extender.wire.gpunode import PATH
from tests.agent.kubelet import FakeKubelet, messages
from tests.controlplane.agent import LEASES, Agent, install, limited, token
from tests.controlplane.api import Api, Object, node, wait_until
from tests.controlplane.binaries import KUBERNETES, Unavailable
from tests.controlplane.processes import ControlPlane
from tests.fakes import nvml
from tests.fakes.nvml.machines import GIB, MIB, h100_mig, h100_sevenths, mig_uuid, uuid

CASE = "agents"
NODES = 5_000
AGENT_MEGABYTES = 90.0
AGENT_PERCENT = 1.0
SERVE_PERCENT = 5.0

CARDS, INSTANCES = 8, 7
WHOLE = f"{CARDS} cards"
"""The kind of node that has a goal: on one with MIG instances a report is three times as long."""
SAMPLE_SECONDS = 5.0
QUIET_SECONDS = 20.0
BEATING_SECONDS = 40.0
BEATING = 50
SEEN_SECONDS = 30.0
WARM_UP_SECONDS = 10.0

_LIBRARIES = """
import aiohttp, grpc.aio, pynvml
from kubernetes.aio.client import Configuration
from kubernetes.aio.client.rest import RESTClientObject
from kubernetes.aio.config import load_incluster_config, load_kube_config
print(open("/proc/self/status").read().partition("VmRSS:")[2].split()[0])
"""


def run(say: Callable[[str], None], *, kubernetes: str = KUBERNETES) -> list[Measurement]:
    """Measure one agent, then all of them at the API server and in `kvitej serve`."""
    with programs.directory(CASE) as at, _processes(CARDS * INSTANCES) as pids:
        try:
            library, kubelet = nvml.build(at), messages(at)
        except (nvml.CannotBuild, Unavailable) as reason:
            raise click.ClickException(str(reason)) from reason
        with cluster.control_plane(at, kubernetes) as plane:
            found, written = asyncio.run(_on_nodes(say, plane, library, kubelet, pids))
        for kind, what in written.items():
            file = at / "written.json"
            file.write_bytes(msgspec.json.encode(what))
            for silent in (True, False):
                found += _in_serve(say, at, kind, file, silent=silent)
            size = len(msgspec.json.encode(what.report)) / 1000
            found.append(measured(CASE, f"serve, {NODES:,} nodes of {kind}: a report", size, "kB"))
    return found


async def _on_nodes(
    say: Callable[[str], None], plane: ControlPlane, library: Path, kubelet: Any, pids: Sequence[int]
) -> tuple[list[Measurement], dict[str, reporting.Written]]:
    """Two agents, one of them measured while others beat beside it; and what they write, by kind of node."""
    names = [f"gpu-{number:02}" for number in range(BEATING)]
    async with contextlib.AsyncExitStack() as stack:
        api = await stack.enter_async_context(cluster.admin(plane))
        await install(api)
        machines = {"sevenths": h100_sevenths(pids), "whole": _whole(pids)}
        await api.create_nodes((_cut_node(), *(node(name) for name in ("whole", *names))))
        for name in (*machines, *names):
            plane.add_user(f"agent-{name}", await token(api, on=name))
        async with Api(plane, f"agent-{names[0]}") as own:
            await limited(own)
        agents = {
            name: stack.enter_context(_agent(plane, name, machine, library, kubelet))
            for name, machine in machines.items()
        }
        written = {
            WHOLE: await _written(api, "whole"),
            f"{CARDS} × {INSTANCES} instances": await _written(api, "sevenths"),
        }
        like = written[f"{CARDS} cards"].report
        report = Report(like["spec"], like["status"])
        writers = []
        for name in names:
            client = await connect(plane.kubeconfig(f"agent-{name}"))
            writers.append(NodeWriter(await stack.enter_async_context(client), name))
            await writers[-1].report(report)
            await writers[-1].beat(datetime.now(UTC))
        await asyncio.sleep(2 * SAMPLE_SECONDS)
        agent = agents["sevenths"]
        say(f"one agent for {QUIET_SECONDS + BEATING_SECONDS:.0f} s")
        used, begun = agent.cpu_seconds(), time.monotonic()
        at_rest = await _at_rest(plane, api, writers)
        seconds, used = time.monotonic() - begun, agent.cpu_seconds() - used
        if not agent.running:
            raise agent.error("ended")
        now, _ = programs.megabytes(agent)
    samples = seconds / SAMPLE_SECONDS
    return [
        measured(CASE, "agent: memory", now, "MB", at_most=AGENT_MEGABYTES),
        measured(CASE, "floor: memory of a Python that imports its libraries alone", _floor(), "MB"),
        measured(CASE, "agent: CPU", 100 * used / seconds, "% of a core", at_most=AGENT_PERCENT),
        measured(CASE, "agent: CPU per sample", 1000 * used / samples, "ms"),
        *at_rest,
    ], written


async def _at_rest(plane: ControlPlane, api: Api, writers: Sequence[NodeWriter]) -> list[Measurement]:
    """What the API server and etcd have to do for 5,000 agents that only beat."""
    quiet_from = await _spent(plane, api)
    await asyncio.sleep(QUIET_SECONDS)
    beating_from = await _spent(plane, api)
    begun = time.monotonic()
    beats = 0
    while time.monotonic() - begun < BEATING_SECONDS:
        started = time.monotonic()
        await asyncio.gather(*(writer.beat(datetime.now(UTC)) for writer in writers))
        beats += len(writers)
        await asyncio.sleep(max(started + 1.0 - time.monotonic(), 0.0))
    seconds = time.monotonic() - begun
    after = await _spent(plane, api)
    # By second, of all 5,000: what a beat costs by their beats in a second.
    cost = {
        name: (
            (after[name] - beating_from[name])
            - (beating_from[name] - quiet_from[name]) * seconds / QUIET_SECONDS
        )
        / beats
        * (NODES / reporting.BEAT_SECONDS)
        for name in after
    }
    where = f"at rest, {NODES:,} agents"
    return [
        measured(CASE, f"{where}: writes at the API server", cost["writes"], "/s"),
        measured(CASE, f"{where}: CPU of the API server", 100 * cost["apiserver"], "% of a core"),
        measured(CASE, f"{where}: CPU of etcd", 100 * cost["etcd"], "% of a core"),
        measured(CASE, f"{where}: etcd's log", 60 * cost["log"] / 1e6, "MB/min"),
        measured(
            CASE, f"{where}: etcd's database until it is compacted", 60 * cost["database"] / 1e6, "MB/min"
        ),
    ]


async def _spent(plane: ControlPlane, api: Api) -> dict[str, float]:
    """What the control plane has counted so far: writes, seconds of CPU, and bytes in etcd."""
    writes = 0.0
    for line in (await api.text("/metrics")).splitlines():
        if line.startswith("apiserver_request_total{") and re.search('verb="(POST|PUT|PATCH|DELETE)"', line):
            writes += float(line.rpartition(" ")[2])
    return {
        "writes": writes,
        "apiserver": plane.apiserver.cpu_seconds(),
        "etcd": plane.etcd.cpu_seconds(),
        "log": plane.etcd_metric("etcd_disk_wal_write_bytes_total"),
        "database": plane.etcd_metric("etcd_debugging_mvcc_total_put_size_in_bytes"),
    }


def _in_serve(
    say: Callable[[str], None], at: Path, kind: str, written: Path, *, silent: bool
) -> list[Measurement]:
    """The CPU of a `kvitej serve` that has 5,000 nodes and their pods in its book, and nothing else to do."""
    options = ["--nodes", str(NODES), "--written", str(written), *(["--silent"] if silent else [])]
    with (
        programs.fake_api_server(at, "bench.reporting", *options) as kubeconfig,
        programs.kvitej(at, kubeconfig) as kvitej,
    ):
        what = "nobody reports" if silent else "all report"
        say(f"{NODES:,} nodes of {kind}, {what}, for {SEEN_SECONDS:.0f} s")
        time.sleep(WARM_UP_SECONDS)
        used, begun = kvitej.process.cpu_seconds(), time.monotonic()
        time.sleep(SEEN_SECONDS)
        seconds, used = time.monotonic() - begun, kvitej.process.cpu_seconds() - used
        _check_known(kvitej)
    metric = f"serve, {NODES:,} nodes of {kind}: CPU while {what}"
    goal = SERVE_PERCENT if kind == WHOLE and not silent else None
    return [measured(CASE, metric, 100 * used / seconds, "% of a core", at_most=goal)]


def _check_known(kvitej: programs.Kvitej) -> None:
    """Whether it has a report of each node that is not stale, or else it has not done the work."""
    with urllib.request.urlopen(f"http://127.0.0.1:{kvitej.http_port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    for name, wanted in (("kvitej_reports", NODES), ("kvitej_reports_stale", 0)):
        found = re.search(rf"^{name} (\S+)$", text, re.MULTILINE)
        if found is None or float(found[1]) != wanted:
            raise click.ClickException(f"kvitej should say {name} {wanted}, and says {found and found[1]}.")


@contextlib.contextmanager
def _agent(plane: ControlPlane, name: str, machine: str, library: Path, api: Any) -> Iterator[Agent]:
    """An agent as it is configured by default, and the kubelet that it asks."""
    cards = plane.directory / f"{name}.txt"
    nvml.write(cards, machine)
    with tempfile.TemporaryDirectory(prefix="kubelet-") as folder:
        socket = Path(folder) / "kubelet.sock"
        with FakeKubelet(api, socket) as kubelet:
            devices = [
                [mig_uuid(card, 7 + at) for at in range(INSTANCES)] if name == "sevenths" else [uuid(card)]
                for card in range(CARDS)
            ]
            kubelet.allocatable = [device for of_card in devices for device in of_card]
            kubelet.pods = {
                ("training", f"train-{card}", "main"): of_card for card, of_card in enumerate(devices)
            }
            agent = Agent(
                plane,
                name,
                f"agent-{name}",
                library=library,
                cards=cards,
                config={"sample": f"{SAMPLE_SECONDS:.0f}s", "kubeletSocket": str(socket)},
            )
            try:
                yield agent
            finally:
                agent.kill()


async def _written(api: Api, name: str) -> reporting.Written:
    """What the agent of a node has written, once it has."""

    async def there() -> bool:
        found = [each for each in await api.list(PATH) if each["metadata"]["name"] == name]
        beaten = [each for each in await api.list(LEASES) if each["metadata"]["name"] == name]
        return bool(found and beaten and found[0].get("status", {}).get("kubelet", {}).get("held"))

    await wait_until(there, 60, f"the agent of {name} has reported")
    return reporting.Written(
        await api.get(f"/api/v1/nodes/{name}"),
        await api.get(f"{PATH}/{name}"),
        await api.get(f"{LEASES}/{name}"),
        INSTANCES if name == "sevenths" else 1,
    )


def _cut_node() -> Object:
    """As feature discovery labels it where every card is cut alike."""
    labels = {
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb",
        "nvidia.com/gpu.memory": "9984",
        "nvidia.com/gpu.count": str(CARDS * INSTANCES),
        "nvidia.com/mig.strategy": "single",
    }
    return node("sevenths", gpus=CARDS * INSTANCES, labels=labels)


def _whole(pids: Sequence[int]) -> str:
    """Eight H100 without MIG, each with one process."""
    used = 60 * GIB
    return h100_mig() + "".join(
        f"gpu {card}\nmig off\nno-instances\nno-processes\nmemory {81559 * MIB} {480 * MIB} {used}\n"
        f"process {pids[card]} {used}\n"
        for card in range(CARDS)
    )


def _floor() -> float:
    """Megabytes."""
    ended = subprocess.run([sys.executable, "-c", _LIBRARIES], capture_output=True, text=True, check=True)
    return int(ended.stdout) * 1024 / 1e6


@contextlib.contextmanager
def _processes(count: int) -> Iterator[list[int]]:
    """The pids of processes that do nothing, for the cards to have some that can be looked at."""
    with contextlib.ExitStack() as stack:
        children = []
        for _ in range(count):
            child = subprocess.Popen(["sleep", "infinity"])
            stack.callback(child.wait)
            stack.callback(child.kill)
            children.append(child)
        yield [child.pid for child in children]
