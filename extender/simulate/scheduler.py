"""Stands in for kube-scheduler: one scheduling cycle for one pod, over the HTTP verbs that the real one calls.

As there, the in-tree part goes first and by its own count, an extender is asked only about the nodes that pass, and
graded only when two or more are left; a score counts weight x 10. A nominated node is tried alone before all others.
In-tree scores are left out: at the shipped weight they decide only between nodes that kvitej finds equal, and here the
name does.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import aiohttp
import msgspec

from extender.schedulerconfig import WEIGHT
from extender.simulate.cluster import EmbeddedCluster, Json, asks_of, nomination

NAME = "fair-quota"
"""The profile's name, which the pods carry as their schedulerName."""

_POINT = 10
_TIMEOUT = aiohttp.ClientTimeout(total=5)


class _FilterResult(msgspec.Struct, rename="pascal"):
    node_names: list[str] | None = None
    failed_nodes: dict[str, str] | None = None
    failed_and_unresolvable_nodes: dict[str, str] | None = None
    error: str = ""


class _HostPriority(msgspec.Struct, rename="pascal"):
    host: str
    score: int


class _BindingResult(msgspec.Struct, rename="pascal"):
    error: str = ""


_Answer = TypeVar("_Answer")


class PlayError(Exception):
    """A verb did not answer as the protocol says; the text is a sentence."""


@dataclass(frozen=True, slots=True)
class Bound:
    """`asked`: nodes that passed in-tree; `totals`: score by node that Filter kept, empty when it kept one.

    `nominated`: it went where its nomination said, and no other node was asked about.
    """

    node: str
    asked: int
    totals: Mapping[str, int]
    nominated: bool = False


@dataclass(frozen=True, slots=True)
class Unschedulable:
    """How many of the `nodes` were refused for which reason: by the in-tree part, and by the extender."""

    nodes: int
    in_tree: Mapping[str, int]
    extender: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Vetoed:
    """Bind said no."""

    node: str
    reason: str


class Scheduler:
    """`session` has the extender's address as its base."""

    def __init__(self, session: aiohttp.ClientSession, cluster: EmbeddedCluster) -> None:
        self._session = session
        self._cluster = cluster

    async def schedule(
        self, pod: Json, before_bind: Callable[[str], Awaitable[None]]
    ) -> Bound | Unschedulable | Vetoed:
        """One cycle; `before_bind` is awaited with the chosen node, between Prioritize and Bind.

        Raises
        ------
        PlayError
            The extender failed, where the real scheduler would end the cycle with SchedulerError.
        """
        nominated = nomination(pod)
        room = self._cluster.room()
        missing = {node: lacking(asks_of(pod), left) for node, left in room.items()}
        asked = [node for node, resources in missing.items() if not resources]
        in_tree = Counter(f"Insufficient {name}" for resources in missing.values() for name in resources)
        if nominated in asked and await self._keeps(pod, nominated):
            return await self._bind(pod, Bound(nominated, 1, {}, True), before_bind)
        if not asked:
            self._cluster.unschedulable(pod)
            return Unschedulable(len(room), in_tree, {})
        answer = await self._post("/filter", _args(pod, asked), _FilterResult)
        if answer.error:
            raise PlayError(f"/filter failed: {answer.error}")
        kept = answer.node_names or []
        if not kept:
            self._cluster.unschedulable(pod)
            reasons = {**(answer.failed_nodes or {}), **(answer.failed_and_unresolvable_nodes or {})}
            return Unschedulable(len(room), in_tree, Counter(reasons.values()))
        totals: dict[str, int] = {}
        if len(kept) > 1:
            totals = dict.fromkeys(kept, 0)
            for grade in await self._post("/prioritize", _args(pod, kept), list[_HostPriority]):
                if grade.host in totals:
                    totals[grade.host] += grade.score * WEIGHT * _POINT
        node = min(kept, key=lambda name: (-totals.get(name, 0), name))
        return await self._bind(pod, Bound(node, len(asked), totals), before_bind)

    async def _keeps(self, pod: Json, node: str) -> bool:
        answer = await self._post("/filter", _args(pod, [node]), _FilterResult)
        return not answer.error and node in (answer.node_names or ())

    async def _bind(
        self, pod: Json, chosen: Bound, before_bind: Callable[[str], Awaitable[None]]
    ) -> Bound | Vetoed:
        await before_bind(chosen.node)
        metadata = pod["metadata"]
        binding = {
            "PodName": metadata["name"],
            "PodNamespace": metadata["namespace"],
            "PodUID": metadata["uid"],
            "Node": chosen.node,
        }
        bound = await self._post("/bind", binding, _BindingResult)
        return Vetoed(chosen.node, bound.error) if bound.error else chosen

    async def _post(self, verb: str, body: Json, kind: type[_Answer]) -> _Answer:
        try:
            async with self._session.post(
                verb,
                data=msgspec.json.encode(body),
                headers={"Content-Type": "application/json"},
                timeout=_TIMEOUT,
                allow_redirects=False,
            ) as response:
                if response.status != 200:
                    raise PlayError(f"{verb} answered with status {response.status}.")
                return msgspec.json.decode(await response.read(), type=kind)
        except (aiohttp.ClientError, TimeoutError, msgspec.MsgspecError) as error:
            raise PlayError(
                f"{verb} did not answer as it should: {error or type(error).__name__}."
            ) from error


def lacking(asks: Iterable[tuple[str, int]], left: Mapping[str, int]) -> list[str]:
    """The resources of which a node has too little left."""
    return [resource for resource, amount in asks if amount > left.get(resource, 0)]


def _args(pod: Json, nodes: list[str]) -> Json:
    return {"Pod": pod, "Nodes": None, "NodeNames": nodes}
