"""`bench latency`: what Filter and Prioritize cost beyond what any aiohttp handler costs.

The book is filled from a fake API server. Every call carries another pod, and the names in an order as the scheduler
sends it; after each call the floor gets the same body and answers the same number of bytes, on a connection of its own.
"""

from __future__ import annotations

import gc
import itertools
import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterator

import msgspec
import numpy as np

from bench import openb, programs
from bench.caller import Caller
from bench.filled import CARD_MIB, node_name
from bench.openb import PodShape
from bench.report import Measurement, measured
from tests.controlplane.api import Object, pod

CASE = "latency"
STEPS = ((5_000, 5_000, 1_000), (500, 5_000, 1_000), (50_000, 50_000, 300))
"""Names in a call, nodes in the book, calls; all of a book are asked about first."""

WARM_UP = 20
FIRST = "filter, first of its shape"
"""kvitej keeps what it found for a shape of pod; the first pod of a shape pays for all nodes."""

RATIO = 3.0
LINEAR = 1.1
"""A step is linear when the cost per name grows by no more than this: a larger book leaves the processor's caches."""

Samples = dict[str, list[tuple[float, float]]]
"""By verb, seconds of kvitej and of the floor, call by call."""


class _Kept(msgspec.Struct):
    names: list[str] = msgspec.field(name="NodeNames")


def run(say: Callable[[str], None]) -> list[Measurement]:
    """Measure every step."""
    medians: dict[str, dict[int, float]] = defaultdict(dict)
    results: list[Measurement] = []
    with programs.directory(CASE) as at, programs.peer(at, "floor") as floor:
        for nodes in sorted({nodes for _, nodes, _ in STEPS}):
            say(f"filling the book with {nodes:,} nodes")
            with (
                programs.fake_api_server(at, "bench.filled", "--nodes", str(nodes)) as kubeconfig,
                programs.kvitej(at, kubeconfig) as kvitej,
            ):
                for names, calls in ((names, calls) for names, of, calls in STEPS if of == nodes):
                    say(f"{calls:,} calls with {names:,} of {nodes:,} nodes")
                    for verb, pairs in _measure(
                        kvitej.port, floor, names, calls, first=names == nodes
                    ).items():
                        results += _point(verb, names, np.array(pairs))
                        medians[verb][names] = float(np.median([ours for ours, _ in pairs]))
    return results + [growth for verb in ("filter", "prioritize") for growth in _growth(verb, medians[verb])]


def _measure(verbs: int, floor: int, count: int, calls: int, *, first: bool) -> Samples:
    """Filter, Prioritize with the names that Filter kept, and with all names, each beside the floor.

    With `first`, the first call for each shape is told apart.
    """
    chance = random.Random(count)
    samples: Samples = defaultdict(list)
    filtering, prioritizing, floored = (
        Caller(verbs, "/filter"),
        Caller(verbs, "/prioritize"),
        Caller(floor, "/"),
    )
    ordered = [node_name(number) for number in range(count)]
    gc.disable()
    try:
        for number, shape in enumerate(_kinds() if first else ()):
            asking = msgspec.json.encode(_pod(shape, f"{count}-first-{number}"))
            everything = _body(asking, _as_sent(ordered, chance))
            _pair(samples[FIRST], filtering, floored, everything, floor_first=False)
        for number, shape in enumerate(_shapes(calls + WARM_UP)):
            asking = msgspec.json.encode(_pod(shape, f"{count}-{number}"))
            everything = _body(asking, _as_sent(ordered, chance))
            floor_first = bool(number % 2)
            kept = _pair(samples["filter"], filtering, floored, everything, floor_first)
            best = _body(asking, msgspec.json.decode(kept, type=_Kept).names)
            _pair(samples["prioritize the kept"], prioritizing, floored, best, floor_first)
            _pair(samples["prioritize"], prioritizing, floored, everything, floor_first)
    finally:
        gc.enable()
        for caller in (filtering, prioritizing, floored):
            caller.close()
    return {verb: pairs if verb == FIRST else pairs[WARM_UP:] for verb, pairs in samples.items()}


def _pair(
    pairs: list[tuple[float, float]], ours: Caller, floor: Caller, body: bytes, floor_first: bool
) -> bytes:
    """Call both with the same body; the floor answers as many bytes as we did last."""
    if floor_first:
        theirs, _ = floor.call(body, ours.answered)
    seconds, answer = ours.call(body)
    if not floor_first:
        theirs, _ = floor.call(body, ours.answered)
    pairs.append((seconds, theirs))
    return answer


def _point(
    verb: str, names: int, pairs: np.ndarray[tuple[int, int], np.dtype[np.float64]]
) -> Iterator[Measurement]:
    what = f"{verb}, {names:,} names"
    (p50, floor_p50), (p99, floor_p99) = np.percentile(pairs, (50, 99), axis=0)
    bound = RATIO if names == 5_000 and verb in ("filter", "prioritize") else None
    yield measured(CASE, f"{what}: p50", p50 * 1000, "ms")
    yield measured(CASE, f"{what}: p99", p99 * 1000, "ms")
    yield measured(CASE, f"{what}: p50 of the floor", floor_p50 * 1000, "ms")
    yield measured(CASE, f"{what}: p99 of the floor", floor_p99 * 1000, "ms")
    yield measured(CASE, f"{what}: p50 ÷ p50 of the floor", p50 / floor_p50, at_most=bound)
    yield measured(CASE, f"{what}: p99 ÷ p99 of the floor", p99 / floor_p99, at_most=bound)


def _growth(verb: str, medians: dict[int, float]) -> Iterator[Measurement]:
    for (fewer, few), (more, many) in itertools.pairwise(sorted(medians.items())):
        what = f"{verb}, {fewer:,} → {more:,} names: growth of the p50 per name"
        yield measured(CASE, what, (many / more) / (few / fewer), at_most=LINEAR)


def _shapes(count: int) -> Iterator[PodShape]:
    """GPU pods of openb, again and again."""
    shapes = [shape for shape in openb.pods(seed=1) if shape.num_gpu]
    for number in range(count):
        yield shapes[number % len(shapes)]


def _kinds() -> list[PodShape]:
    """One pod for each different ask for GPUs and cores."""
    shapes = _shapes(10_000)
    return list({(shape.num_gpu, shape.gpu_milli, shape.cpu_milli): shape for shape in shapes}.values())


def _pod(shape: PodShape, name: str) -> Object:
    """A pod as the scheduler sends it: stored, with defaults and without managed fields."""
    requests = {"cpu": f"{shape.cpu_milli}m", "memory": f"{shape.memory_mib}Mi"}
    annotations = {}
    if shape.shares:
        requests["nvidia.com/gpu.shared"] = "1"
        annotations["kvitej.io/gpu-memory"] = f"{CARD_MIB * shape.gpu_milli // 1000}Mi"
    else:
        requests["nvidia.com/gpu"] = str(shape.num_gpu)
    made = pod(f"worker-{name}", requests=requests, annotations=annotations, labels={"app": "train"})
    made["metadata"] |= {
        "uid": f"uid-{name}",
        "resourceVersion": "1000000",
        "creationTimestamp": "2026-11-30T12:00:00Z",
    }
    made["spec"] |= {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "serviceAccountName": "default",
        "securityContext": {},
        "schedulerName": "default-scheduler",
        "tolerations": [
            {
                "key": f"node.kubernetes.io/{key}",
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": 300,
            }
            for key in ("not-ready", "unreachable")
        ],
        "priority": 0,
        "enableServiceLinks": True,
        "preemptionPolicy": "PreemptLowerPriority",
    }
    made["status"] = {"phase": "Pending", "qosClass": "Burstable"}
    return {key: made[key] for key in ("metadata", "spec", "status")}


def _body(pod_json: bytes, names: list[str]) -> bytes:
    return b'{"Pod":%s,"Nodes":null,"NodeNames":%s}' % (pod_json, msgspec.json.encode(names))


def _as_sent(names: list[str], chance: random.Random) -> list[str]:
    """The order in which the scheduler's workers finish: chunks of √n names, neighbours swapped."""
    size = max(1, math.isqrt(len(names)))
    chunks = [names[start : start + size] for start in range(0, len(names), size)]
    places = sorted(range(len(chunks)), key=lambda place: place + chance.uniform(0, 2))
    return [name for place in places for name in chunks[place]]
