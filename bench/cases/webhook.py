"""`bench webhook`: what an admission review costs beyond what any aiohttp handler behind TLS costs.

The reviews are those that the API server sends for a pod: mutating, then validating, each pod another. After each the
floor gets the same body and answers as many bytes. The book is full, so that kvitej has its watches and memory to
look after as in a large cluster.
"""

from __future__ import annotations

import gc
import ssl
from collections.abc import Callable, Iterator
from contextlib import closing

import msgspec
import numpy as np

from bench import programs
from bench.caller import Caller
from bench.report import Measurement, measured
from extender import certs
from tests.controlplane.api import Object, pod
from tests.controlplane.processes import free_ports

CASE = "webhook"
NODES = 5_000
CALLS = 2_000
WARM_UP = 50
MILLISECONDS = 3.0

Samples = list[tuple[float, float]]
"""Seconds of kvitej and of the floor, call by call."""


def run(say: Callable[[str], None]) -> list[Measurement]:
    """Measure both reviews."""
    with programs.directory(CASE) as at:
        ca, cert, key = certs.make(at / "certs", ("127.0.0.1",)).files
        trusting = ssl.create_default_context(cafile=ca)
        (port,) = free_ports(1)
        options = ("--webhook", f"127.0.0.1:{port}", "--webhook-cert", cert, "--webhook-key", key)
        say(f"filling the book with {NODES:,} nodes")
        with (
            programs.peer(at, "floor", "--tls", cert, key, tls=trusting) as floor,
            programs.fake_api_server(at, "bench.filled", "--nodes", str(NODES)) as kubeconfig,
            programs.kvitej(at, kubeconfig, *options),
        ):
            say(f"{CALLS:,} mutating and validating reviews")
            samples = _measure(port, floor, trusting)
    return [each for verb, pairs in samples.items() for each in _point(verb, np.array(pairs))]


def _measure(webhook: int, floor: int, tls: ssl.SSLContext) -> dict[str, Samples]:
    samples: dict[str, Samples] = {"mutate": [], "validate": []}
    with closing(Caller(floor, "/", tls)) as floored:
        callers = {verb: Caller(webhook, f"/{verb}", tls) for verb in samples}
        gc.disable()
        try:
            for number in range(CALLS + WARM_UP):
                for verb, caller in callers.items():
                    body = msgspec.json.encode(_review(number, stored=verb == "validate"))
                    seconds, _ = caller.call(body)
                    theirs, _ = floored.call(body, caller.answered)
                    if number >= WARM_UP:
                        samples[verb].append((seconds, theirs))
        finally:
            gc.enable()
            for caller in callers.values():
                caller.close()
    return samples


def _point(verb: str, pairs: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> Iterator[Measurement]:
    (p50, floor_p50), (p99, floor_p99) = np.percentile(pairs, (50, 99), axis=0)
    yield measured(CASE, f"{verb}: p50", p50 * 1000, "ms")
    yield measured(CASE, f"{verb}: p99", p99 * 1000, "ms", at_most=MILLISECONDS)
    yield measured(CASE, f"{verb}: p99 of the floor", floor_p99 * 1000, "ms")
    yield measured(CASE, f"{verb}: p50 ÷ p50 of the floor", p50 / floor_p50)
    yield measured(CASE, f"{verb}: p99 ÷ p99 of the floor", p99 / floor_p99)


def _review(number: int, *, stored: bool) -> Object:
    """A create as the API server sends it; a mutating one knows no uid yet."""
    asking = pod(
        f"train-{number}",
        namespace="training",
        requests={"cpu": 8, "memory": "64Gi", "nvidia.com/gpu": 1 + number % 8},
        annotations={"kvitej.io/checkpoint-interval": "30m", "kvitej.io/devices": "{}"} if not stored else {},
        labels={"app": "train"},
        scheduler="fair-quota",
        gates=("kvitej.io/turn",) if stored else (),
    )
    if stored:
        asking["metadata"]["uid"] = f"00000000-0000-4000-8000-{number:012}"
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    resource = {"group": "", "version": "v1", "resource": "pods"}
    return {
        "kind": "AdmissionReview",
        "apiVersion": "admission.k8s.io/v1",
        "request": {
            "uid": f"00000000-0000-4000-9000-{number:012}",
            "kind": kind,
            "resource": resource,
            "requestKind": kind,
            "requestResource": resource,
            "name": asking["metadata"]["name"],
            "namespace": "training",
            "operation": "CREATE",
            "userInfo": {"username": "system:serviceaccount:kube-system:job-controller"},
            "object": asking,
            "oldObject": None,
            "dryRun": False,
            "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
        },
    }
