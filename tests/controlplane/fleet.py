"""Nodes with everything on them that tells kvitej what their cards are: drivers, processes, kubelets, agents.

Each node has a fake driver whose cards the test fills and empties, a fake kubelet that gives the devices of bound pods
out as it likes, and a real agent (`forks`) with a token that is bound to a pod on that node. The shipped rights and the
admission policy are in force.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import shutil
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

from extender.wire.gpunode import PATH
from tests.agent.kubelet import FakeKubelet
from tests.controlplane.agent import LEASES, install, limited, token
from tests.controlplane.api import GPU, Api, ApiError, Object, node, wait_until
from tests.controlplane.forks import Forks, Spec
from tests.controlplane.processes import ControlPlane
from tests.fakes import nvml

GIB = 2**30
TOTAL = 81559 * 2**20
RESERVED = 480 * 2**20
MODEL = "NVIDIA H100 80GB HBM3"
POD_ENDS = ("Succeeded", "Failed")
SETTINGS: dict[str, Any] = {"sample": 1.0, "heartbeat": 5.0, "kubelet_grace": 5.0}

_pids = itertools.count(5_000_000)  # larger than any of this machine

Chooser = Callable[["Machine", list[str], int], Sequence[str]]
"""The kubelet's choice: so many of the free devices of a machine."""


def fullest(machine: Machine, free: list[str], count: int) -> Sequence[str]:
    """What harms most: the devices of the cards with the most memory in use."""
    return sorted(free, key=lambda device: -machine.used(machine.card_of(device)))[:count]


class Machine:
    """One node.

    Attributes
    ----------
    held
        By uid of a pod, the devices that the kubelet gave it.
    """

    def __init__(
        self,
        name: str,
        number: int,
        cards: int,
        replicas: int,
        directory: Path,
        kubelet_api: Any,
        socket: Path,
    ) -> None:
        self.name = name
        self.uuids = [f"GPU-{number:08x}-{card:04x}-2222-3333-444444444444" for card in range(cards)]
        self.replicas = replicas
        self.held: dict[str, Sequence[str]] = {}
        self.kubelet = FakeKubelet(kubelet_api, socket)
        self.kubelet.allocatable = self.devices
        self.proc = directory / "proc"
        self.cards = directory / "cards.txt"
        self.socket = socket
        self.pid: int | None = None
        self._uses: list[dict[int, int]] = [{} for _ in self.uuids]
        self._lines: tuple[str, ...] = ()
        self.boot("boot-1")
        self.say()

    @property
    def devices(self) -> list[str]:
        """All that the device plugin offers."""
        if self.replicas < 2:
            return self.uuids
        return [f"{uuid}::{replica}" for uuid in self.uuids for replica in range(self.replicas)]

    def card_of(self, device: str) -> int:
        return self.uuids.index(device.partition("::")[0])

    def used(self, card: int) -> int:
        """Bytes of a card that processes use."""
        return sum(self._uses[card].values())

    def occupy(self, card: int, used: int, *, pod: str | None = None) -> int:
        """A process uses memory of a card: one of the pod with this uid, or of nobody that was scheduled; its pid."""
        pid = next(_pids)
        folder = self.proc / str(pid)
        folder.mkdir()
        group = "system.slice/jupyter.service"
        if pod is not None:
            group = f"kubepods.slice/kubepods-pod{pod.replace('-', '_')}.slice/cri-containerd-0.scope"
        (folder / "cgroup").write_text(f"0::/{group}\n")
        (folder / "comm").write_text("python\n")
        self._uses[card][pid] = used
        self.say(*self._lines)
        return pid

    def leave(self, pid: int) -> None:
        """The process ends."""
        for uses in self._uses:
            uses.pop(pid, None)
        self.say(*self._lines)
        shutil.rmtree(self.proc / str(pid), ignore_errors=True)

    def say(self, *lines: str) -> None:
        """Have the driver say this besides (see tests/fakes/nvml), and nothing of what was said so before."""
        self._lines = lines
        text = ["driver 570.124.06"]
        for card, (uuid, uses) in enumerate(zip(self.uuids, self._uses, strict=True)):
            path = ("X" if other == card else "NODE" for other in range(len(self.uuids)))
            text += [
                *(f"gpu {card}", f"uuid {uuid}", f"name {MODEL}", f"pci 00000000:{0x10 + card:02X}:00.0"),
                *("numa 0", "cpus 0-95", f"path {' '.join(path)}", "ecc 0 0", "throttle 0x0", "recovery 0"),
                f"memory {TOTAL} {RESERVED} {sum(uses.values())}",
                *(f"process {pid} {used}" for pid, used in uses.items()),
            ]
        nvml.write(self.cards, "\n".join([*text, *lines, ""]))

    def boot(self, boot_id: str) -> None:
        """The machine is started (again): nothing runs on it."""
        shutil.rmtree(self.proc, ignore_errors=True)
        folder = self.proc / "sys/kernel/random"
        folder.mkdir(parents=True)
        (folder / "boot_id").write_text(f"{boot_id}\n")
        for uses in self._uses:
            uses.clear()
        self.say(*self._lines)

    def object(self) -> Object:
        """The Node, as feature discovery labels it."""
        labels = {
            f"{GPU}.product": MODEL.replace(" ", "-") + ("-SHARED" if self.replicas > 1 else ""),
            f"{GPU}.memory": str(TOTAL // 2**20),
            f"{GPU}.count": str(len(self.uuids)),
            f"{GPU}.replicas": str(self.replicas),
            **({f"{GPU}.sharing-strategy": "time-slicing"} if self.replicas > 1 else {}),
        }
        return node(self.name, gpus=len(self.devices), labels=labels)


class Fleet:
    """The machines by name, whose kubelets follow the pods that are bound to them; see `fleet`."""

    def __init__(
        self, plane: ControlPlane, api: Api, forks: Forks, library: Path, machines: Sequence[Machine]
    ) -> None:
        self.machines = {machine.name: machine for machine in machines}
        self.choose: Chooser = fullest
        self._plane = plane
        self._api = api
        self._forks = forks
        self._library = library
        self._pods: dict[str, tuple[Machine, Object]] = {}

    def start(self, machine: Machine, **settings: Any) -> None:
        """Start the machine's agent; `settings` are those of its configuration that differ from `SETTINGS`."""
        user = f"agent-{machine.name}"
        machine.pid = self._forks.start(
            Spec(
                node=machine.name,
                kubeconfig=str(self._plane.kubeconfig(user)),
                library=str(self._library),
                cards=str(machine.cards),
                proc=str(machine.proc),
                log=str(self._plane.directory / f"{user}.log"),
                settings={**SETTINGS, "kubelet_socket": str(machine.socket), **settings},
            )
        )

    def kill(self, machine: Machine) -> None:
        """End the machine's agent at once."""
        if machine.pid is not None:
            self._forks.kill(machine.pid)
            machine.pid = None

    async def reported(self, machine: Machine, holds: Callable[[Object], bool], what: str) -> Object:
        """The GPUNode of a machine once its status `holds`."""
        found: Object = {}

        async def there() -> bool:
            nonlocal found
            found = await self._api.get(f"{PATH}/{machine.name}")
            return "status" in found and holds(found["status"])

        await wait_until(there, 20, lambda: f"{machine.name} reports {what}: {found}")
        return found

    async def all_reported(self) -> None:
        """Wait until each machine has a report that says what its kubelet does."""
        waiting: set[str] = set()

        async def there() -> bool:
            told = {
                each["metadata"]["name"]
                for each in await self._api.list(PATH)
                if each.get("status", {}).get("kubelet", {}).get("allocatable")
            }
            waiting.clear()
            waiting.update(self.machines.keys() - told)
            return not waiting

        await wait_until(there, 60, lambda: f"reports of {sorted(waiting)}", interval=0.2)

    async def follow(self) -> None:
        """Be all kubelets until cancelled: give devices to what is bound and take them from what is gone."""
        while True:
            async with contextlib.aclosing(self._api.watch("/api/v1/namespaces/default/pods")) as events:
                async for kind, seen in events:
                    await self._look(kind, seen)

    async def _look(self, kind: str, seen: Object) -> None:
        uid, name = seen["metadata"]["uid"], seen["spec"].get("nodeName")
        machine = self.machines.get(name)
        if machine is None:
            return
        if kind == "DELETED" or seen.get("status", {}).get("phase") in POD_ENDS:
            self._pods.pop(uid, None)
            machine.held.pop(uid, None)
        elif uid not in self._pods:
            self._pods[uid] = machine, seen
            if not self._give(machine, uid, seen):
                await self._say_phase(seen, "Failed", "UnexpectedAdmissionError")
                return
            await self._say_phase(seen, "Running")
        self._tell(machine)

    def _give(self, machine: Machine, uid: str, seen: Object) -> bool:
        """Whether there were devices enough."""
        count = sum(
            int(container["resources"].get("limits", {}).get(GPU, 0))
            for container in seen["spec"]["containers"]
        )
        taken = {device for devices in machine.held.values() for device in devices}
        free = [device for device in machine.devices if device not in taken]
        if count > len(free):
            return False
        machine.held[uid] = self.choose(machine, free, count)
        return True

    def _tell(self, machine: Machine) -> None:
        found: dict[tuple[str, str, str], Sequence[str]] = defaultdict(list)
        for uid, devices in machine.held.items():
            meta = self._pods[uid][1]["metadata"]
            found[meta["namespace"], meta["name"], "main"] = devices
        machine.kubelet.pods = found

    async def _say_phase(self, seen: Object, phase: str, reason: str = "") -> None:
        meta = seen["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/status"
        with contextlib.suppress(ApiError):
            await self._api.patch(
                path, {"status": {"phase": phase, **({"reason": reason} if reason else {})}}
            )


@contextlib.asynccontextmanager
async def fleet(
    plane: ControlPlane,
    api: Api,
    names: Sequence[str],
    *,
    library: Path,
    kubelet_api: Any,
    cards: int = 2,
    replicas: int = 1,
) -> AsyncIterator[Fleet]:
    """Nodes of these names, each with so many cards, divided into so many replicas; entered once all have reported.

    `library` is the fake NVML (`tests.fakes.nvml.build`), `kubelet_api` the kubelet's messages
    (`tests.agent.kubelet.messages`).
    """
    async with contextlib.AsyncExitStack() as stack:
        # The path of a unix socket is short.
        sockets = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kubelets-")))
        machines = [
            Machine(
                name, number, cards, replicas, _folder(plane, name), kubelet_api, sockets / f"{number}.sock"
            )
            for number, name in enumerate(names)
        ]
        await install(api)
        await api.create_nodes(machine.object() for machine in machines)
        await asyncio.gather(*(_admit(plane, api, machine.name) for machine in machines))
        async with Api(plane, f"agent-{names[0]}") as own:
            await limited(own)
        for machine in machines:
            stack.enter_context(machine.kubelet)
        made = Fleet(plane, api, stack.enter_context(Forks()), library, machines)
        kubelets = asyncio.create_task(made.follow(), name="kubelets")
        try:
            for machine in machines:
                made.start(machine)
            await made.all_reported()
            yield made
        finally:
            kubelets.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await kubelets
            for machine in machines:
                made.kill(machine)
            for path in (PATH, LEASES, "/api/v1/namespaces/kvitej/pods", "/api/v1/nodes"):
                await api.delete(path, {"gracePeriodSeconds": 0})


def _folder(plane: ControlPlane, name: str) -> Path:
    folder = plane.directory / "machines" / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


async def _admit(plane: ControlPlane, api: Api, name: str) -> None:
    plane.add_user(f"agent-{name}", await token(api, on=name))
