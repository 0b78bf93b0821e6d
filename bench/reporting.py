"""A fake API server on which the agents of many nodes report and beat, each as often as an ordinary one.

What is stored and sent are a GPUNode and a Lease as a real API server has them, from two files, with another name for
each node. The Lease is renewed each 30 s. A report is written once a minute: if a card's pods stay for an hour, and
each is 8 reports long (what the kubelet says at both ends, and memory as it fills), then 8 cards have one a minute.
Events are spread evenly over time and at random over the nodes, and each reaches the watch on its own.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import msgspec

from bench.filled import node_name
from tests.fakes.apiserver import FakeApiServer

BEAT_SECONDS = 30.0
REPORT_SECONDS = 60.0
SEED = 42
_GIB = 2**30

Json = dict[str, Any]


def events_per_second(nodes: int) -> float:
    return nodes / BEAT_SECONDS + nodes / REPORT_SECONDS


class Agents:
    """The agents of `nodes` nodes; `report` and `lease` are what each has written."""

    def __init__(self, server: FakeApiServer, nodes: int, report: bytes, lease: bytes) -> None:
        self._server = server
        self._names = [node_name(number) for number in range(nodes)]
        self._report = report
        self._lease: Json = msgspec.json.decode(lease)
        for turn, name in enumerate(self._names):
            self._tell(name, turn)
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
            await asyncio.sleep(begun + turn * pause - loop.time())
            if turn % each:
                self._beat(next(beats))
            else:
                self._tell(next(reports), turn)

    def _beat(self, name: str) -> None:
        self._lease["metadata"] = {**self._lease["metadata"], "name": name, "uid": f"lease-{name}"}
        self._lease["spec"]["renewTime"] = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        self._lease["spec"]["holderIdentity"] = name
        self._server.put("leases", f"kvitej/{name}", self._lease)

    def _tell(self, name: str, turn: int) -> None:
        """Another pod on one of the cards, with another use of memory."""
        report: Json = msgspec.json.decode(self._report)
        report["metadata"] |= {"name": name, "uid": f"report-{name}"}
        status = report["status"]
        card = status["gpus"][turn % len(status["gpus"])]
        card["memory"]["used"] += turn % 8 * _GIB
        card["processes"][0]["used"] += turn % 8 * _GIB
        held = status["kubelet"]["held"]
        held[turn % len(held)]["pod"] = f"train-{turn}"
        self._server.put("gpunodes", name, report)


async def _serve(nodes: int, report: Path, lease: Path, kubeconfig: Path) -> None:
    async with FakeApiServer() as server:
        agents = Agents(server, nodes, report.read_bytes(), lease.read_bytes())
        server.compact()
        server.write_kubeconfig(kubeconfig)
        click.echo(server.url)
        await agents.run()


_FILE = click.Path(path_type=Path)


@click.command()
@click.option("--nodes", type=int, required=True)
@click.option("--report", type=_FILE, required=True)
@click.option("--lease", type=_FILE, required=True)
@click.option("--kubeconfig", type=_FILE, required=True)
def main(**options: Any) -> None:
    """Serve until stopped."""
    asyncio.run(_serve(**options))


if __name__ == "__main__":
    main(prog_name="python -m bench.reporting")
