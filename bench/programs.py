"""Everything a bench runs in a process of its own: kvitej, its peers and the fake API server.

Each is started on a free loopback port, waited for, and stopped when its context ends; its log lies in the directory
of the case, and its end is in the error when the program dies.
"""

from __future__ import annotations

import contextlib
import http.client
import ssl
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from tests.controlplane.processes import free_ports
from tests.controlplane.program import ControlPlaneError, Process

ROOT = Path(__file__).parent.parent
"""Where `bench` and `tests` are, which are not installed."""

READY_SECONDS = 300.0
POLL_SECONDS = 0.01


@dataclass(frozen=True)
class Kvitej:
    """A running `kvitej serve`: ports of its verbs and of its metrics, and seconds from start to /readyz 200."""

    process: Process
    port: int
    http_port: int
    seconds_to_ready: float


@contextlib.contextmanager
def directory(case: str) -> Iterator[Path]:
    """A temporary directory for logs and credentials; programs that fail end the case with a sentence."""
    with tempfile.TemporaryDirectory(prefix=f"kvitej-bench-{case}-") as path:
        try:
            yield Path(path)
        except ControlPlaneError as error:
            raise click.ClickException(str(error)) from error


@contextlib.contextmanager
def kvitej(at: Path, kubeconfig: Path, *options: str | Path) -> Iterator[Kvitej]:
    """Run `kvitej serve` with its default configuration and these options; entered once it is ready."""
    port, http_port = free_ports(2)
    arguments: list[str | Path] = [
        *("-m", "extender", "serve", "--kubeconfig", kubeconfig),
        *("--port", str(port), "--http", f"127.0.0.1:{http_port}"),
        *options,
    ]
    begun = time.monotonic()
    with _running("kvitej", arguments, at) as process:
        _wait_ready(process, http_port, "/readyz")
        seconds = time.monotonic() - begun
        yield Kvitej(process, port, http_port, seconds)


@contextlib.contextmanager
def peer(at: Path, *arguments: str | Path, tls: ssl.SSLContext | None = None) -> Iterator[int]:
    """Run `python -m bench.peers` with `arguments`; gives its port, which `tls` is needed for if it speaks TLS."""
    (port,) = free_ports(1)
    with _running("peer", ["-m", "bench.peers", *arguments, "--port", str(port)], at) as process:
        _wait_ready(process, port, "/healthz", tls)
        yield port


@contextlib.contextmanager
def fake_api_server(at: Path, module: str, *arguments: str) -> Iterator[Path]:
    """Run a module that serves a fake API server; gives the path of its kubeconfig.

    The module takes `--kubeconfig FILE`, and prints a line once the server is up and the file is there.
    """
    kubeconfig = at / "kubeconfig"
    with _running("api-server", ["-m", module, *arguments, "--kubeconfig", kubeconfig], at) as process:
        deadline = time.monotonic() + READY_SECONDS
        while not process.log.read_bytes().endswith(b"\n"):
            _still_waits(process, deadline)
        yield kubeconfig


def megabytes(process: Process) -> tuple[float, float]:
    """Resident memory of a process in MB (10^6 bytes): now, and at its peak."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{process.pid}/status").read_text().splitlines())
    now, peak = (int(status[name].removesuffix("kB")) * 1024 / 1e6 for name in ("VmRSS", "VmHWM"))
    return now, peak


@contextlib.contextmanager
def _running(name: str, arguments: Sequence[str | Path], at: Path) -> Iterator[Process]:
    command = ["env", f"PYTHONPATH={ROOT}", sys.executable, *arguments]
    log = at / f"{name}.log"
    log.unlink(missing_ok=True)
    process = Process(name, command, log)
    try:
        yield process
    finally:
        process.stop()


def _wait_ready(process: Process, port: int, path: str, tls: ssl.SSLContext | None = None) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while not _answers(port, path, tls):
        _still_waits(process, deadline)


def _answers(port: int, path: str, tls: ssl.SSLContext | None) -> bool:
    if tls is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    else:
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=5, context=tls)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _still_waits(process: Process, deadline: float) -> None:
    if not process.running:
        raise process.error("ended before it was ready")
    if time.monotonic() > deadline:
        raise process.error(f"was not ready after {READY_SECONDS:.0f} s")
    time.sleep(POLL_SECONDS)
