"""A fake API server on which the agents of many nodes report and beat, each as often as an ordinary one.

What is stored and sent are a GPUNode and a Lease as a real API server has them, with another name for each node, and
one pod for each card. The Lease is renewed each 30 s. A report is written once a minute: if a card's pods stay for an
hour, and each is 8 reports long (what the kubelet says at both ends, and memory as it fills), then 8 cards have one a
minute. Events are spread evenly over time and at random over the nodes, and each reaches the watch on its own.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import msgspec

from bench.filled import node_name
from tests.fakes.apiserver import FakeApiServer

BEAT_SECONDS = 30.0
REPORT_SECONDS = 60.0
MOST_BEHIND_SECONDS = 2.0
SEED = 42
_GIB = 2**30

Json = dict[str, Any]


def events_per_second(nodes: int) -> float:
    return nodes / BEAT_SECONDS + nodes / REPORT_SECONDS


class Written(msgspec.Struct):
    """A node, and what its agent has written, as the API server sends them; `devices` of it are one pod's."""

    node: Json
    report: Json
    lease: Json
    devices: int = 1


class Agents:
    """The agents of `nodes` nodes like this one, on which each card has a pod."""

    def __init__(self, server: FakeApiServer, nodes: int, written: Written) -> None:
        self._server = server
        self._names = [node_name(number) for number in range(nodes)]
        self._report = msgspec.json.encode(written.report)
        self._lease = written.lease
        for number, name in enumerate(self._names):
            self._put("nodes", name, name, written.node)
            for pod in _pods(name, written):
                server.put("pods", f"training/{pod['metadata']['name']}", pod)
            self._tell(name, number)
            self._beat(name)

    async def run(self) -> None:
        """Report and beat until cancelled."""
        chance = random.Random(SEED)
        beating, reporting = ([*self._names], [*self._names])
        chance.shuffle(beating)
        chance.shuffle(reporting)
        beats, reports = itertools.cycle(beating), itertools.cycle(reporting)
        pause = 1 / events_per_second(len(self._names))
        each = round(REPORT_SECONDS / BEAT_SECONDS) + 1
        loop = asyncio.get_running_loop()
        begun = loop.time()
        for turn in itertools.count():
            ahead = begun + turn * pause - loop.time()
            if ahead < -MOST_BEHIND_SECONDS:
                raise click.ClickException(
                    f"This machine is too slow for the events of {len(self._names)} agents."
                )
            await asyncio.sleep(ahead)
            if turn % each:
                self._beat(next(beats))
            else:
                self._tell(next(reports), turn)

    def _beat(self, name: str) -> None:
        self._lease["spec"]["renewTime"] = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        self._lease["spec"]["holderIdentity"] = name
        self._put("leases", f"kvitej/{name}", name, self._lease)

    def _tell(self, name: str, turn: int) -> None:
        """The cards' pods, one of them with another use of memory."""
        report: Json = msgspec.json.decode(self._report)
        status = report["status"]
        for number, held in enumerate(status["kubelet"]["held"]):
            held["pod"] = _pod_name(name, number)
        for number, card in enumerate(status["gpus"]):
            for process in card["processes"]:
                process["pod"] = _uid(_pod_name(name, number))
        card = status["gpus"][turn % len(status["gpus"])]
        card["memory"]["used"] += turn % 8 * _GIB
        card["processes"][0]["used"] += turn % 8 * _GIB
        self._put("gpunodes", name, name, report)

    def _put(self, resource: str, key: str, name: str, like: Json) -> None:
        meta = {**like["metadata"], "name": name, "uid": _uid(f"{resource}-{name}")}
        self._server.put(resource, key, {**like, "metadata": meta})


def _pods(node: str, written: Written) -> Iterator[Json]:
    for number in range(len(written.report["status"]["gpus"])):
        yield _pod(_pod_name(node, number), node, number, written.devices)


def _pod(name: str, node: str, card: int, devices: int) -> Json:
    limits = {"nvidia.com/gpu": str(devices)}
    held = {"units": 1, "containers": {"main": {"gpu": [card]}}}
    return {
        "metadata": {
            "name": name,
            "namespace": "training",
            "uid": _uid(name),
            "annotations": {"kvitej.io/devices": json.dumps(held)} if devices == 1 else {},
        },
        "spec": {
            "nodeName": node,
            "containers": [
                {
                    "name": "main",
                    "resources": {"requests": {"cpu": "4", "memory": "32Gi", **limits}, "limits": limits},
                }
            ],
        },
        "status": {"phase": "Running"},
    }


def _pod_name(node: str, card: int) -> str:
    return f"train-{node}-{card}"


def _uid(name: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_OID, name))


async def _serve(nodes: int, written: Path, kubeconfig: Path, silent: bool) -> None:
    async with FakeApiServer() as server:
        agents = Agents(server, nodes, msgspec.json.decode(written.read_bytes(), type=Written))
        server.compact()
        server.write_kubeconfig(kubeconfig)
        click.echo(server.url)
        if not silent:
            await agents.run()
        await asyncio.Event().wait()


_FILE = click.Path(path_type=Path)


@click.command()
@click.option("--nodes", type=int, required=True)
@click.option("--written", type=_FILE, required=True)
@click.option("--kubeconfig", type=_FILE, required=True)
@click.option("--silent", is_flag=True)
def main(**options: Any) -> None:
    """Serve until stopped."""
    asyncio.run(_serve(**options))


if __name__ == "__main__":
    main(prog_name="python -m bench.reporting")
