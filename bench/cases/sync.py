"""`bench sync`: how long a start takes in a large cluster, and how much memory the book holds then."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from bench import programs
from bench.report import Measurement, measured

CASE = "sync"
IMPORTS = "import extender.serve.run, extender.kube.feed, extender.kube.recorder, extender.kube.writer"
NODES = 5_000
PODS = 50_000
SECONDS = 5.0
MEGABYTES = 400.0


def run(say: Callable[[str], None]) -> list[Measurement]:
    """Start kvitej once against a fake API server that is a process of its own."""
    with programs.directory(CASE) as at:
        say(f"filling a fake API server with {NODES:,} nodes and {PODS:,} pods")
        arguments = ("--nodes", str(NODES), "--pods", str(PODS))
        with programs.fake_api_server(at, "tests.fakes.apiserver", *arguments) as kubeconfig:
            imports = _import_seconds()
            with programs.kvitej(at, kubeconfig) as kvitej:
                now, peak = programs.megabytes(kvitej.process)
                seconds = kvitej.seconds_to_ready
    return [
        measured(CASE, "start to ready", seconds, "s", at_most=SECONDS),
        measured(CASE, "start to ready, without interpreter and imports", seconds - imports, "s"),
        measured(CASE, "resident memory", now, "MB", at_most=MEGABYTES),
        measured(CASE, "peak resident memory", peak, "MB", at_most=MEGABYTES),
    ]


def _import_seconds() -> float:
    """Median time that an interpreter takes to import what `kvitej serve` imports, and nothing else."""
    command = [sys.executable, "-c", IMPORTS]
    times = []
    for _ in range(3):
        begun = time.monotonic()
        subprocess.run(command, check=True)
        times.append(time.monotonic() - begun)
    return statistics.median(times)
