"""The openb trace: the GPU nodes and the pods of Alibaba's production cluster, as the benches play them.

`bench/data` holds shapes with counts; expanded and shuffled by a seed they are the same multiset as the published
lists. `pods_from` reads a published list itself, for the order in which the pods really came.
"""

from __future__ import annotations

import contextlib
import csv
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

DATA = Path(__file__).with_name("data")


@dataclass(frozen=True, slots=True)
class NodeShape:
    """A kind of node: thousandths of a core, MiB of memory, number of GPUs and their model."""

    cpu_milli: int
    memory_mib: int
    gpu: int
    model: str


@dataclass(frozen=True, slots=True)
class PodShape:
    """What a pod asks for: `num_gpu` cards, thousandths of it if that is one, of these `models` if not any."""

    cpu_milli: int
    memory_mib: int
    num_gpu: int
    gpu_milli: int
    qos: str = ""
    models: frozenset[str] = frozenset()

    @property
    def shares(self) -> bool:
        """Whether it asks for less than one card."""
        return self.num_gpu == 1 and self.gpu_milli < 1000

    @property
    def gpu_units(self) -> float:
        return self.gpu_milli / 1000 if self.shares else float(self.num_gpu)


def nodes() -> list[NodeShape]:
    """The 1,213 GPU nodes with their 6,212 GPUs, kind by kind."""
    return [
        NodeShape(int(row["cpu_milli"]), int(row["memory_mib"]), int(row["gpu"]), row["model"])
        for row in _rows(DATA / "openb_nodes.csv")
        for _ in range(int(row["count"]))
    ]


def nodes_from(traces: Path) -> list[NodeShape]:
    """The same nodes in the order of their names, from `openb_node_list_gpu_node.csv` in the folder `traces`."""
    with _reading(path := traces / "openb_node_list_gpu_node.csv", "node"):
        return [
            NodeShape(int(row["cpu_milli"]), int(row["memory_mib"]), int(row["gpu"]), row["model"])
            for row in _rows(path)
        ]


def pods(seed: int) -> list[PodShape]:
    """The 8,152 pods of the default list, shuffled by `seed`."""
    expanded = [_pod(row) for row in _rows(DATA / "openb_pods_default.csv") for _ in range(int(row["count"]))]
    random.Random(seed).shuffle(expanded)
    return expanded


def pods_from(traces: Path, trace: str = "default") -> list[PodShape]:
    """The pods of `openb_pod_list_<trace>.csv` in the folder `traces`, in the order of their creation.

    Raises
    ------
    click.ClickException
        The folder holds no such list, or the list lacks a column.
    """
    with _reading(path := traces / f"openb_pod_list_{trace}.csv", "pod"):
        listed = list(_rows(path))
        listed.sort(key=lambda row: int(row.get("creation_time") or 0))
        return [_pod(row) for row in listed]


def traces_in(traces: Path) -> list[str]:
    """The names of the pod lists in the folder, the default one first."""
    names = (path.stem.removeprefix("openb_pod_list_") for path in traces.glob("openb_pod_list_*.csv"))
    return sorted(names, key=lambda name: (name != "default", name))


@contextlib.contextmanager
def _reading(path: Path, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise click.ClickException(f"{path} cannot be read: {error.strerror}.") from error
    except (KeyError, TypeError, ValueError) as error:
        raise click.ClickException(f"{path} is no {what} list of openb: {error}.") from error


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with open(path, newline="") as file:
        yield from csv.DictReader(file)


def _pod(row: dict[str, str]) -> PodShape:
    return PodShape(
        cpu_milli=int(row["cpu_milli"]),
        memory_mib=int(row["memory_mib"]),
        num_gpu=int(row["num_gpu"]),
        gpu_milli=int(row["gpu_milli"]),
        qos=row.get("qos", ""),
        models=frozenset(filter(None, (row.get("gpu_spec") or "").split("|"))),
    )
