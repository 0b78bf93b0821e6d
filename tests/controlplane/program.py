"""One program of the control plane: its log, its CPU time, when it is ready and how it ends.

`processes` decides which programs run with which flags; here they are children of this process, and every
error carries the end of the program's log.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

READY_SECONDS = 60.0
STOP_SECONDS = 30.0
POLL_SECONDS = 0.05


class ControlPlaneError(Exception):
    """A program of the control plane did not start, stop or answer; the message ends with its log's tail."""


class Process:
    """One program of the control plane, with its log file and the CPU time it has used."""

    def __init__(self, name: str, arguments: Sequence[str | Path], log: Path) -> None:
        self.name = name
        self.log = log
        self._cpu_seconds = 0.0
        with open(log, "ab") as output:
            self._child = subprocess.Popen(
                [str(argument) for argument in arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=log.parent,
            )

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def running(self) -> bool:
        return self._child.poll() is None

    def cpu_seconds(self) -> float:
        """User plus system time so far, in seconds; once ended, what it was when `stop` or `kill` began."""
        if self.running:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                # The program's name, in parentheses, may hold blanks: fields are counted after it.
                fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
                self._cpu_seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return self._cpu_seconds

    def stop(self) -> None:
        """Ask it to end (SIGTERM) and wait.

        Raises
        ------
        ControlPlaneError
            It is still running after 30 s; it is killed then.
        """
        self.cpu_seconds()
        self._child.terminate()
        try:
            self._child.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise self.error(f"did not end within {STOP_SECONDS:.0f} s of SIGTERM and was killed") from None

    def kill(self) -> None:
        """End it at once (SIGKILL)."""
        self.cpu_seconds()
        self._child.kill()
        self._child.wait()

    def tail(self, lines: int = 20) -> str:
        """The last lines of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def error(self, what: str) -> ControlPlaneError:
        return ControlPlaneError(f"{self.name} {what}. The end of {self.log}:\n{self.tail()}")

    def wait_ready(self, opener: urllib.request.OpenerDirector, request: urllib.request.Request) -> None:
        """Wait until `request` answers 200; ControlPlaneError when the program ends or 60 s have passed."""
        deadline = time.monotonic() + READY_SECONDS
        reason = ""
        while self.running:
            try:
                opener.open(request, timeout=5).close()
                return
            except urllib.error.HTTPError as error:
                with error:
                    reason = f"{error.code} {error.read().decode(errors='replace')}"
            except OSError as error:
                reason = str(error)
            if time.monotonic() > deadline:
                raise self.error(f"was not ready after {READY_SECONDS:.0f} s at {request.full_url}: {reason}")
            time.sleep(POLL_SECONDS)
        raise self.error(f"ended with status {self._child.returncode} before it was ready")


class Scheduler(Process):
    """A running kube-scheduler; `url` serves /healthz and /metrics with the control plane's certificate."""

    url: str
