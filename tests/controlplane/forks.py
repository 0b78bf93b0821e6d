"""Many `kvitej agent` at the price of one: forks of a process that has imported everything already.

Each is the agent's own loop on its own fake driver, in a process of its own that shares the code's memory with the
others: 50 of them start in seconds and take a tenth of what as many programs would. `Forks` is the parent's side;
`python -m tests.controlplane.forks` takes one `Spec` a line, forks, and answers with the pid.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from extender import log
from extender.agent.run import run
from extender.config import Agent as Settings
from tests.fakes import nvml

ROOT = Path(__file__).parents[2]
_PR_SET_PDEATHSIG = 1


class Spec(msgspec.Struct):
    """An agent: the files of its kubeconfig, its driver's library and cards, its log, and the host's processes."""

    node: str
    kubeconfig: str
    library: str
    cards: str
    proc: str
    log: str
    settings: dict[str, Any]


class Forks:
    """Starts agents and ends them; a context manager, at whose end none is left."""

    def __enter__(self) -> Self:
        self._parent = subprocess.Popen(
            [sys.executable, "-m", "tests.controlplane.forks"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._parent.kill()
        self._parent.communicate()

    def start(self, spec: Spec) -> int:
        """Start an agent; gives its pid."""
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        self._parent.stdin.write(msgspec.json.encode(spec) + b"\n")
        self._parent.stdin.flush()
        return int(self._parent.stdout.readline())

    def kill(self, pid: int) -> None:
        """End an agent at once (SIGKILL), as a node's crash does."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _be(spec: Spec) -> None:
    """An agent, until it is killed; it does not outlive its parent."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for descriptor, name in ((0, os.devnull), (1, spec.log), (2, spec.log)):
        opened = os.open(name, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        os.dup2(opened, descriptor)
        os.close(opened)
    random.seed()
    os.environ[nvml.VARIABLE] = spec.cards
    nvml.load(Path(spec.library))
    log.setup("info", "text")
    run(spec.node, Path(spec.kubeconfig), Settings(**spec.settings), proc=Path(spec.proc))


def main() -> None:
    # Whoever ends is forgotten at once.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        spec = msgspec.json.decode(line, type=Spec)
        pid = os.fork()
        if pid == 0:
            try:
                _be(spec)
            finally:
                os._exit(1)
        print(pid, flush=True)


if __name__ == "__main__":
    main()
