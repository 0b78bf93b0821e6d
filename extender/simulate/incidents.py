"""What happens on the nodes beside the pods: kubelets and agents at work, and what a cluster file lets befall cards.

Processes that nobody scheduled come and go, cards fall ill and recover, agents fall silent. All that the book hears
of it are the agents' reports and beats.
"""

import math
from collections.abc import Awaitable, Callable
from functools import partial

from extender import duration
from extender.cluster.events import Event
from extender.simulate.clock import Clock
from extender.simulate.cluster import EmbeddedCluster
from extender.simulate.clusterfile import ClusterFile, Failure, Process, Silence, numbered
from extender.simulate.machine import Machine
from extender.simulate.story import Step, What
from extender.wire.quantity import whole

At = Callable[[float, Callable[[], Awaitable[None]]], None]


class Incidents:
    """`deliver` is the book's door, `at` lets something happen at a time, `show` is awaited with each step."""

    def __init__(
        self,
        file: ClusterFile,
        cluster: EmbeddedCluster,
        deliver: Callable[[Event], None],
        at: At,
        show: Callable[[Step], Awaitable[None]],
        clock: Clock,
    ) -> None:
        self._deliver = deliver
        self._at = at
        self._show = show
        self._clock = clock
        uses = {
            (kind.tenant, name): whole(kind.uses or kind.gpu_memory or 0)
            for kind in file.pods
            for name in numbered(kind.name, kind.count)
        }
        self._machines = {
            name: Machine(name, kind, cluster, uses)
            for kind in file.nodes
            if kind.agent is not None
            for name in numbered(kind.name, kind.count)
        }
        self._due = dict.fromkeys(self._machines, 0.0)
        for process in file.processes:
            at(process.at, partial(self._comes, process, process.node))
        for failure in file.failures:
            at(failure.at, partial(self._fails, failure))
        for silence in file.silences:
            at(silence.at, partial(self._falls_silent, silence))

    @property
    def due(self) -> float:
        """When an agent looks next; never where there is none."""
        return min(self._due.values(), default=math.inf)

    def look(self) -> None:
        """Every agent whose time has come looks, and what it has to tell is told."""
        for name, due in self._due.items():
            if due <= self._clock():
                self._look(self._machines[name])
                self._due[name] = due + self._machines[name].agent.sample

    async def between(self, process: Process, node: str) -> None:
        """The process comes while a pod is between Filter and Bind, and the agent sees it in time, if there is one."""
        machine = self._machines.get(node)
        if machine is not None and process.card < machine.cards:
            await self._comes(process, node)
            self._look(machine)

    def _look(self, machine: Machine) -> None:
        for event in machine.look(self._clock(), self._clock.wall()):
            self._deliver(event)

    async def _comes(self, process: Process, node: str) -> None:
        machine = self._machines[node]
        machine.processes.append(process)
        part = whole(process.takes) / whole(machine.agent.memory)
        why = f"nobody scheduled it, and it takes {part:.0%} of the card's memory"
        step = self._step(What.INTRUDES, node, process.name, str(process.takes), process.card, why)
        self._at(self._clock() + process.runs, partial(self._goes, process, machine))
        await self._show(step)

    async def _goes(self, process: Process, machine: Machine) -> None:
        machine.processes.remove(process)
        why = f"has run for {duration.text(process.runs)} and leaves the card"
        await self._show(
            self._step(What.ENDED, machine.name, process.name, str(process.takes), process.card, why)
        )

    async def _fails(self, failure: Failure) -> None:
        machine = self._machines[failure.node]
        machine.failures[failure.card] = failure.why
        self._at(self._clock() + failure.lasts, partial(self._recovers, failure))
        await self._show(self._step(What.ILL, failure.node, card=failure.card, why=failure.why))

    async def _recovers(self, failure: Failure) -> None:
        self._machines[failure.node].failures.pop(failure.card, None)
        await self._show(
            self._step(What.WELL, failure.node, card=failure.card, why="the card is healthy again")
        )

    async def _falls_silent(self, silence: Silence) -> None:
        self._machines[silence.node].silent = True
        self._at(self._clock() + silence.lasts, partial(self._speaks, silence))
        await self._show(self._step(What.SILENT, silence.node, why="the node's agent says nothing any more"))

    async def _speaks(self, silence: Silence) -> None:
        self._machines[silence.node].silent = False
        why = f"the node's agent is back after {duration.text(silence.lasts)}"
        await self._show(self._step(What.BACK, silence.node, why=why))

    def _step(
        self, what: What, node: str, name: str = "", takes: str = "", card: int | None = None, why: str = ""
    ) -> Step:
        cards = "" if card is None else str(card)
        return Step(self._clock(), what, "", name, takes, node, cards, why)
