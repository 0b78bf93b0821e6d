"""Stands in for kube-scheduler: one scheduling cycle for one pod, over the HTTP verbs that the real one calls.

As there, the in-tree part goes first and by its own count, an extender is asked only about the nodes that pass, and
graded only when two or more are left; a score counts weight x 10. In-tree scores are left out: at the shipped weight
they decide only between nodes that kvitej finds equal, and here the name does.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import aiohttp
import msgspec

from extender.schedulerconfig import WEIGHT
from extender.simulate.cluster import EmbeddedCluster, Json, asks_of

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
    """`asked`: nodes that passed in-tree; `totals`: score by node that Filter kept, empty when it kept one."""

    node: str
    asked: int
    totals: Mapping[str, int]


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
        room = self._cluster.room()
        missing = {node: lacking(asks_of(pod), left) for node, left in room.items()}
        asked = [node for node, resources in missing.items() if not resources]
        in_tree = Counter(f"Insufficient {name}" for resources in missing.values() for name in resources)
        if not asked:
            return Unschedulable(len(room), in_tree, {})
        answer = await self._post("/filter", _args(pod, asked), _FilterResult)
        if answer.error:
            raise PlayError(f"/filter failed: {answer.error}")
        kept = answer.node_names or []
        if not kept:
            reasons = {**(answer.failed_nodes or {}), **(answer.failed_and_unresolvable_nodes or {})}
            return Unschedulable(len(room), in_tree, Counter(reasons.values()))
        totals: dict[str, int] = {}
        if len(kept) > 1:
            totals = dict.fromkeys(kept, 0)
            for grade in await self._post("/prioritize", _args(pod, kept), list[_HostPriority]):
                if grade.host in totals:
                    totals[grade.host] += grade.score * WEIGHT * _POINT
        node = min(kept, key=lambda name: (-totals.get(name, 0), name))
        await before_bind(node)
        metadata = pod["metadata"]
        binding = {
            "PodName": metadata["name"],
            "PodNamespace": metadata["namespace"],
            "PodUID": metadata["uid"],
            "Node": node,
        }
        bound = await self._post("/bind", binding, _BindingResult)
        return Vetoed(node, bound.error) if bound.error else Bound(node, len(asked), totals)

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
