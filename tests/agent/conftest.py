"""The fake NVML, built once, with a scenario that a test may change while the agent looks; and a kubelet."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from extender.agent.sampler import Sampler
from extender.wire.gpunode import GPUNode
from tests.agent.kubelet import FakeKubelet, messages
from tests.controlplane.binaries import Unavailable
from tests.fakes import nvml

SECOND = 1_800_000_000.0


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return nvml.build(tmp_path_factory.mktemp("nvml"))
    except nvml.CannotBuild as error:
        pytest.skip(str(error))


class Node:
    """A node with a fake driver; `clock` is its time."""

    def __init__(self, scenario: Path) -> None:
        self._scenario = scenario
        self._machine = ""
        self._samplers: list[Sampler] = []
        self.clock = SECOND
        self.proc = scenario.parent
        self.boot("boot-1")

    def boot(self, boot_id: str) -> None:
        folder = self.proc / "sys/kernel/random"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "boot_id").write_text(f"{boot_id}\n")

    def is_a(self, machine: Callable[[], str]) -> None:
        self._machine = machine()
        self.say()

    def say(self, *lines: str) -> None:
        """From now on the machine with these lines besides, and without those said before."""
        nvml.write(self._scenario, self._machine + "\n".join([*lines, ""]))

    def ends(self, pid: int) -> None:
        shutil.rmtree(self.proc / str(pid))

    def process(self, pid: int, cgroup: str, command: str = "python") -> None:
        folder = self.proc / str(pid)
        folder.mkdir(exist_ok=True)
        (folder / "cgroup").write_text(cgroup)
        (folder / "comm").write_text(f"{command}\n")

    def agent(self, before: GPUNode | None = None, patience: float = 5.0) -> Sampler:
        sampler = Sampler(
            "node-1", before, patience=patience, opening=patience, proc=self.proc, clock=lambda: self.clock
        )
        self._samplers.append(sampler)
        return sampler

    def close(self) -> None:
        self.say()
        for sampler in self._samplers:
            sampler.close()


@pytest.fixture
def node(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    nvml.load(library)
    scenario = tmp_path / "scenario.txt"
    scenario.write_text("")
    monkeypatch.setenv(nvml.VARIABLE, str(scenario))
    node = Node(scenario)
    yield node
    node.close()


@pytest.fixture(scope="session")
def kubelet_api(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The kubelet's own messages."""
    try:
        return messages(tmp_path_factory.mktemp("kubelet"))
    except Unavailable as reason:
        pytest.skip(f"no sources of the kubelet's API: {reason}")


@pytest.fixture
def socket() -> Iterator[Path]:
    """Where no kubelet listens yet; short, since the path of a unix socket has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="kubelet-") as folder:
        yield Path(folder) / "kubelet.sock"


@pytest.fixture
def kubelet(kubelet_api: Any, socket: Path) -> Iterator[FakeKubelet]:
    with FakeKubelet(kubelet_api, socket) as running:
        yield running
