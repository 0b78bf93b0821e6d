"""A fake API server with a cluster in use: nodes of 8 GPUs of which some are taken whole and some are shared.

All kernels have work: the GPUs are linked by NVSwitches, and every eighth node has 8 more cards that are cut on demand.

Every node has at least one free card, so that a pod of one GPU fits everywhere and every node is scored: the worst case
for an extender. `python -m bench.filled --nodes 5000 --kubeconfig F` prints the URL once it is up.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from tests.fakes.apiserver import FakeApiServer

GPUS = 8
REPLICAS = 10
CARD_MIB = 81920
SEED = 42
SLICED_EACH = 8
MIG = {"1g.10gb": 7, "2g.20gb": 3, "3g.40gb": 2, "4g.40gb": 1, "7g.80gb": 1}
"""Profiles of an A100 80GB, and how many of each a card can hold."""
NAMES = [f"GPU{gpu}" for gpu in range(GPUS)]
LINKS = "\n".join(
    "\t".join(row)
    for row in [
        ["", *NAMES],
        *([name, *("X" if name == other else "NV12" for other in NAMES)] for name in NAMES),
    ]
)
"""What `nvidia-smi topo -m` says of 8 GPUs behind NVSwitches."""


def node_name(number: int) -> str:
    return f"gpu-{number:05}"


def node(number: int) -> dict[str, Any]:
    """A node that advertises its cards whole and, the same ones, in tenths."""
    resources = {
        "cpu": "96",
        "memory": "1007Gi",
        "pods": "110",
        "nvidia.com/gpu": str(GPUS),
        "nvidia.com/gpu.shared": str(GPUS * REPLICAS),
    }
    labels = {
        "kubernetes.io/hostname": node_name(number),
        "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB",
        "nvidia.com/gpu.memory": str(CARD_MIB),
        "nvidia.com/gpu.count": str(GPUS),
        "nvidia.com/gpu.replicas": str(REPLICAS),
    }
    if number % SLICED_EACH == 0:
        labels |= {"kvitej.io/mig": "dynamic", "nvidia.com/gpu.count": str(2 * GPUS)}
        resources |= {f"nvidia.com/mig-{profile}": str(GPUS * most) for profile, most in MIG.items()}
    return {
        "metadata": {"name": node_name(number), "labels": labels, "annotations": {"kvitej.io/links": LINKS}},
        "spec": {},
        "status": {"capacity": resources, "allocatable": resources},
    }


def seated(number: int, chance: random.Random) -> Iterator[dict[str, Any]]:
    """The pods of a node: a fifth of the nodes is idle, the others have 1 to 7 cards in use."""
    card = 0
    in_use = 0 if chance.random() < 0.2 else chance.randint(1, GPUS - 1)
    while card < in_use:
        count = max(size for size in (1, 2, 4) if size <= in_use - card and size <= chance.choice((1, 2, 4)))
        if count == 1 and chance.random() < 0.3:
            for sharer in range(chance.randint(1, 3)):
                memory = chance.choice((8192, 16384, 24576))
                units = max(1 / REPLICAS, memory / CARD_MIB)
                asks = {"nvidia.com/gpu.shared": "1"}
                yield _pod(f"share-{number}-{card}-{sharer}", number, asks, units, {"shared": [card]}, memory)
        else:
            asks = {"nvidia.com/gpu": str(count)}
            yield _pod(f"train-{number}-{card}", number, asks, count, {"gpu": [*range(card, card + count)]})
        card += count


def _pod(
    name: str, number: int, asks: dict[str, str], units: float, held: dict[str, list[int]], memory: int = 0
) -> dict[str, Any]:
    annotations = {"kvitej.io/devices": json.dumps({"units": units, "containers": {"main": held}})}
    if memory:
        annotations["kvitej.io/gpu-memory"] = f"{memory}Mi"
    requests = {"cpu": "4", "memory": "32Gi", **asks}
    return {
        "metadata": {"name": name, "namespace": "default", "annotations": annotations},
        "spec": {
            "nodeName": node_name(number),
            "containers": [{"name": "main", "resources": {"requests": requests, "limits": asks}}],
        },
        "status": {"phase": "Running"},
    }


async def _serve(nodes: int, kubeconfig: Path) -> None:
    server = FakeApiServer()
    chance = random.Random(SEED)
    for number in range(nodes):
        server.put("nodes", node_name(number), node(number))
        for pod in seated(number, chance):
            server.put("pods", f"default/{pod['metadata']['name']}", pod)
    server.compact()
    async with server:
        server.write_kubeconfig(kubeconfig)
        click.echo(server.url)
        await asyncio.Event().wait()


@click.command()
@click.option("--nodes", type=int, required=True)
@click.option("--kubeconfig", type=click.Path(path_type=Path), required=True)
def main(nodes: int, kubeconfig: Path) -> None:
    """Serve the cluster until stopped."""
    asyncio.run(_serve(nodes, kubeconfig))


if __name__ == "__main__":
    main(prog_name="python -m bench.filled")
