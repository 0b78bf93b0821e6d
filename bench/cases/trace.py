"""`bench trace`: the GPU pods of a production trace, on its GPU nodes, by the real kube-scheduler.

It goes on until the cluster is full. Every node advertises its cards whole and, the same ones, in hundredths;
only kvitej knows that they are the same. At the end everything is counted anew from the API server's objects,
by code that shares nothing with the product.
"""

from __future__ import annotations

import asyncio
import urllib.request
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from bench import cluster, openb, programs
from bench.openb import NodeShape, PodShape
from bench.recount import DEVICES, MEMORY, recount
from bench.report import Measurement, measured
from tests.controlplane.api import Object, node, pod
from tests.controlplane.extender import grant, scheduler_config
from tests.controlplane.processes import ControlPlane

CASE = "trace"
SEED = 42
REPLICAS = 100
MIB_PER_MILLI = 48
"""Every card has 48,000 MiB here, so that a thousandth of a card is a whole number of MiB."""

QUIET_SECONDS = 12.0
SECONDS_PER_POD = 0.1


def run(
    say: Callable[[str], None], *, traces: Path | None = None, seed: int = SEED, limit: int | None = None
) -> list[Measurement]:
    """Play the GPU pods of the default list, shuffled by `seed` or, with `traces`, in creation order.

    `limit` plays only the first pods.
    """
    shapes = [shape for shape in (openb.pods_from(traces) if traces else openb.pods(seed)) if shape.num_gpu]
    with programs.directory(CASE) as at, cluster.control_plane(at) as plane:
        return asyncio.run(_play(say, plane, shapes[:limit]))


async def _play(
    say: Callable[[str], None], plane: ControlPlane, shapes: Sequence[PodShape]
) -> list[Measurement]:
    nodes = openb.nodes()
    units = {f"pod-{number:04}": shape.gpu_units for number, shape in enumerate(shapes)}
    async with cluster.admin(plane) as api:
        await grant(api)
        say(f"creating {len(nodes):,} nodes")
        await api.create_nodes(_node(number, shape) for number, shape in enumerate(nodes))
        with programs.kvitej(plane.directory, plane.kubeconfig("kvitej")) as kvitej:
            scheduler = plane.start_scheduler(scheduler_config(kvitej.port))
            async with cluster.Burst(api) as burst:
                telling = asyncio.create_task(_tell(say, burst, len(shapes)))
                await burst.create([_pod(number, shape) for number, shape in enumerate(shapes)])
                try:
                    await burst.settled(QUIET_SECONDS, 60 + len(shapes) * SECONDS_PER_POD)
                except TimeoutError as error:
                    say(str(error))
                telling.cancel()
            vetoes = await asyncio.to_thread(_vetoes, kvitej.http_port)
            scheduler.stop()
        stored = await api.list("/api/v1/pods")
        faults = recount(await api.list("/api/v1/nodes"), stored)
    for fault in faults:
        say(fault)
    for reason, count in Counter(burst.refused.values()).most_common():
        say(f"{count} refused: {reason}")
    bound = [each for each in stored if each["spec"].get("nodeName")]
    unrecorded = [each for each in bound if DEVICES not in (each["metadata"].get("annotations") or {})]
    undecided = len(shapes) - len(bound) - len(burst.refused)
    waited = np.array([at - burst.created[name] for name, at in burst.bound.items()])
    capacity = sum(shape.gpu for shape in nodes)
    allocated = sum(units[each["metadata"]["name"]] for each in bound)
    return [
        measured(CASE, "pods bound", len(bound)),
        measured(CASE, "pods refused with a reason", len(burst.refused)),
        measured(CASE, "pods neither bound nor refused", undecided, at_most=0),
        measured(CASE, "pods bound without a record", len(unrecorded), at_most=0),
        measured(CASE, "faults in the recount", len(faults), at_most=0),
        measured(CASE, "demand", 100 * sum(units.values()) / capacity, "% of the GPUs"),
        measured(CASE, "allocation reached", 100 * allocated / capacity, "% of the GPUs"),
        measured(CASE, "vetoes at Bind", vetoes),
        measured(CASE, "throughput", len(burst.bound) / burst.seconds, "pods/s"),
        measured(CASE, "time from create to bound, mean", float(waited.mean()), "s"),
        measured(CASE, "time from create to bound, p99", float(np.percentile(waited, 99)), "s"),
    ]


def _node(number: int, shape: NodeShape) -> Object:
    labels = {
        "nvidia.com/gpu.product": shape.model,
        "nvidia.com/gpu.memory": str(1000 * MIB_PER_MILLI),
        "nvidia.com/gpu.replicas": str(REPLICAS),
    }
    return node(
        f"openb-node-{number:04}",
        cpu=f"{shape.cpu_milli}m",
        memory=f"{shape.memory_mib}Mi",
        gpus=shape.gpu,
        labels=labels,
        extra={"nvidia.com/gpu.shared": str(REPLICAS * shape.gpu)},
    )


def _pod(number: int, shape: PodShape) -> Object:
    requests: dict[str, int | str] = {"cpu": f"{shape.cpu_milli}m", "memory": f"{shape.memory_mib}Mi"}
    annotations = {}
    if shape.shares:
        requests["nvidia.com/gpu.shared"] = 1
        annotations[MEMORY] = f"{MIB_PER_MILLI * shape.gpu_milli}Mi"
    else:
        requests["nvidia.com/gpu"] = shape.num_gpu
    return pod(f"pod-{number:04}", requests=requests, annotations=annotations)


async def _tell(say: Callable[[str], None], burst: cluster.Burst, count: int) -> None:
    while True:
        await asyncio.sleep(10)
        say(f"{len(burst.bound):,} of {count:,} pods bound, {len(burst.refused):,} refused")


def _vetoes(port: int) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return int(
        sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == "kvitej_decisions_total"
            and (sample.labels["verb"], sample.labels["outcome"]) == ("bind", "vetoed")
        )
    )
