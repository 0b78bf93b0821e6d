"""GPUNode, `kvitej.io/v1alpha1`: what the cards of one node are, and what is on them, as its agent reports it.

Cluster scope, named like the node. `spec` holds what stays the same for as long as the machine runs: models, MIG
profiles, links; it is written once per boot. `status` holds the rest. Memory is whole bytes. What a driver does not
tell is left out (None here), never 0; what it should have told and did not stands in `unreadable`.
"""

from collections.abc import Iterable
from functools import lru_cache

import msgspec

from extender.wire.objects import Slim
from extender.wire.topo import Link, LinkClass, LinkMatrix, TopoError

API_VERSION = "kvitej.io/v1alpha1"
KIND = "GPUNode"
PATH = "/apis/kvitej.io/v1alpha1/gpunodes"


class GPUNodeMeta(Slim, omit_defaults=True):
    name: str = ""
    uid: str = ""
    resource_version: str = ""


class Profile(Slim, omit_defaults=True):
    """One way to cut a MIG instance out of a card.

    `id` is the driver's (19 for 1g), unique on the card; `name` is such as 1g.10gb+me. An instance takes `size`
    placement units from one of `starts`, which are empty where the agent may not read them; at most `most` fit.
    `compute` counts slices, `memory` is bytes.
    """

    id: int
    name: str
    compute: int
    memory: int
    most: int
    size: int | None = None
    starts: list[int] | None = None


class NVLinks(Slim, omit_defaults=True):
    """`lanes` active NVLinks that end at the same thing: `remote` is gpu, switch, cpu or unknown.

    `pci` is the other card's address where it is one, also if this agent cannot see that card.
    """

    remote: str
    lanes: int
    pci: str | None = None


class GPU(Slim, omit_defaults=True):
    """A card. `uuid` is empty where the driver lost it before the agent could ask; then only `index` is known.

    `index` is the driver's and moves when a card vanishes. `numa` is None where it is not one node; `cpus` is a
    list such as 0-47,96-143. `clique` is its NVLink domain beyond this machine, `<cluster uuid>.<clique>`.
    `geometry` is the place of its MIG profiles in the node's `geometries`, None for a card that has none.
    """

    uuid: str
    index: int
    model: str = ""
    pci: str = ""
    numa: int | None = None
    cpus: str = ""
    clique: str | None = None
    geometry: int | None = None
    nvlinks: list[NVLinks] | None = None


class Links(Slim):
    """The matrix of `nvidia-smi topo -m`: `gpus` are indices, ascending; each row a text such as `X NV18 SYS`."""

    gpus: list[int]
    rows: list[str]


class GPUNodeSpec(Slim, omit_defaults=True):
    """`boot_id` is the kernel's; `links` is None where they could not all be read.

    `geometries`: each set of MIG profiles that cards of this node have, once.
    """

    boot_id: str = ""
    driver: str = ""
    gpus: list[GPU] = msgspec.field(default_factory=list)
    geometries: list[list[Profile]] = msgspec.field(default_factory=list)
    links: Links | None = None


class Memory(Slim, omit_defaults=True):
    """Bytes. `used` is by all processes, `reserved` what the driver keeps beside it.

    `reserved` is None where an old driver counts it in `used`. `used` can be up to `slack` higher than said here
    before the agent writes again.
    """

    total: int
    used: int
    reserved: int | None = None
    slack: int = 0


class Process(Slim, omit_defaults=True):
    """`used` is None where the driver does not say; `pod` is a uid, None for a process of no pod.

    `instance` is the id of the MIG instance that it runs on; `mps` says that it is a client of MPS, or its server.
    `hidden`: the agent sees no process with this pid, since it has just ended or the agent does not share the host's
    pids; then it is not known whose it is.
    """

    pid: int
    used: int | None = None
    pod: str | None = None
    instance: int | None = None
    mps: bool = False
    hidden: bool = False


class Instance(Slim, omit_defaults=True):
    """A MIG instance that exists. `profile` is the id of a `Profile`.

    `uuids` are of what a container can be given: one per compute instance, usually one, none if it has no compute
    instance. Where the agent may not read placements, `profile`, `start` and `size` are None.
    """

    id: int
    profile: int | None = None
    name: str = ""
    start: int | None = None
    size: int | None = None
    uuids: list[str] = msgspec.field(default_factory=list)
    memory: Memory | None = None


class Xid(Slim):
    """An error that the driver reported: `severity` is fatal or transient, `last` when it last came."""

    code: int
    severity: str
    count: int
    last: str


class ECC(Slim):
    """Memory errors since the driver was loaded."""

    corrected: int
    uncorrected: int


class RetiredPages(Slim):
    """`pending`: more are to be retired at the next reset."""

    single_bit: int
    double_bit: int
    pending: bool


class RemappedRows(Slim):
    """`pending`: more are to be remapped at the next reset. `failed`: there was no spare row left."""

    corrected: int
    uncorrected: int
    pending: bool
    failed: bool


class Health(Slim, omit_defaults=True):
    """Whether a card may take new work; `why` not, in sentences.

    `hold_until` is when trouble that has passed is forgotten. `throttling` are hardware's reasons for slow clocks.
    `recovery` is what the driver asks for, or none; None where it can't say.
    """

    healthy: bool
    why: list[str] = msgspec.field(default_factory=list)
    hold_until: str | None = None
    xids: list[Xid] = msgspec.field(default_factory=list)
    ecc: ECC | None = None
    retired_pages: RetiredPages | None = None
    remapped_rows: RemappedRows | None = None
    throttling: list[str] = msgspec.field(default_factory=list)
    recovery: str | None = None


class Unreadable(Slim):
    """`what` was asked for, and `why` the driver did not tell."""

    what: str
    why: str


class GPUStatus(Slim, omit_defaults=True):
    """What is on the card with this `uuid` and `index`.

    `sharing` is none, time-slicing or mps. `processes` is None where the driver refuses the list: then nobody knows
    who uses the memory. `mig` is None for a card that knows no MIG.
    """

    uuid: str
    index: int
    health: Health
    memory: Memory | None = None
    processes: list[Process] | None = None
    mig: bool | None = None
    instances: list[Instance] = msgspec.field(default_factory=list)
    sharing: str = "none"
    unreadable: list[Unreadable] = msgspec.field(default_factory=list)


class Problem(Slim):
    """Why the driver tells nothing about this node: a word for programs, a sentence for people."""

    reason: str
    message: str


class Held(Slim):
    """The devices of one resource that one container holds; ids are the device plugin's.

    An id is a card's or an instance's uuid, with `::N` behind it for a shared replica.
    """

    namespace: str
    pod: str
    container: str
    resource: str
    devices: list[str]


class Allocatable(Slim):
    """The healthy devices of one resource that the kubelet could give, held or not."""

    resource: str
    devices: list[str]


def uuids(told: Iterable[Held | Allocatable]) -> set[str]:
    """Of the cards and instances that these devices are, or are replicas of."""
    return {device.partition("::")[0] for each in told for device in each.devices}


class Kubelet(Slim, omit_defaults=True):
    """What the kubelet says of NVIDIA's devices; None is unknown, and `problem` a sentence that says why."""

    held: list[Held] | None = None
    allocatable: list[Allocatable] | None = None
    problem: str = ""


class Summary(Slim):
    """For people. `free` are healthy cards that nobody holds or uses."""

    gpus: int
    free: int
    memory_used: str
    health: str


class GPUNodeStatus(Slim, omit_defaults=True):
    """`when` is the time of the sample, RFC 3339; `agent` its version; `kubelet` is None if it is not asked."""

    when: str = ""
    agent: str = ""
    gpus: list[GPUStatus] = msgspec.field(default_factory=list)
    problem: Problem | None = None
    kubelet: Kubelet | None = None
    summary: Summary | None = None


class GPUNode(Slim, omit_defaults=True):
    api_version: str = ""
    kind: str = ""
    metadata: GPUNodeMeta = msgspec.field(default_factory=GPUNodeMeta)
    spec: GPUNodeSpec = msgspec.field(default_factory=GPUNodeSpec)
    status: GPUNodeStatus | None = None


_KINDS = 256
_CELLS = {str(Link(kind)): Link(kind) for kind in LinkClass if kind is not LinkClass.NVLINK}


def matrix_of(spec: GPUNodeSpec) -> LinkMatrix | None:
    """The links as the rest of kvitej takes them; None where they are not known.

    Raises
    ------
    TopoError
        If the rows are no matrix.
    """
    if spec.links is None:
        return None
    cards = {gpu.index: gpu for gpu in spec.gpus}
    numbers = tuple(spec.links.gpus)
    return _matrix(
        numbers,
        tuple(spec.links.rows),
        tuple(cards[gpu].numa if gpu in cards else None for gpu in numbers),
        tuple(cards[gpu].cpus if gpu in cards else "" for gpu in numbers),
    )


# Machines of one kind have the same links, and each report tells them again.
@lru_cache(maxsize=_KINDS)
def _matrix(
    gpus: tuple[int, ...], rows: tuple[str, ...], numa: tuple[int | None, ...], cpus: tuple[str, ...]
) -> LinkMatrix:
    links = tuple(tuple(map(_link, row.split())) for row in rows)
    return LinkMatrix(gpus=gpus, links=links, numa=numa, cpus=cpus)


def _link(cell: str) -> Link:
    lanes = cell.removeprefix("NV")
    if lanes != cell and lanes.isascii() and lanes.isdecimal() and len(lanes) <= 3:
        return Link(LinkClass.NVLINK, int(lanes))
    if cell not in _CELLS:
        raise TopoError(
            f"{cell!r} is no link between GPUs; links are X, NV1 to NV64, PIX, PXB, PHB, NODE and SYS."
        )
    return _CELLS[cell]
