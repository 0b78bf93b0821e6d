"""`kvitej agent --once` as a program, with pynvml unchanged: the library comes by the loader's path."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
import yaml

from extender.wire.gpunode import GPUNode
from tests.fakes import nvml
from tests.fakes.nvml import machines


def python(library: Path, scenario: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "LD_LIBRARY_PATH": str(library.parent), nvml.VARIABLE: str(scenario)}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=60
    )


def run(library: Path, scenario: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return python(library, scenario, "-m", "extender", "agent", "--node", "node-7", *arguments)


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    file = tmp_path / "scenario.txt"
    nvml.write(file, machines.h100_mig())
    return file


def test_yaml_and_json_say_the_same(library: Path, scenario: Path) -> None:
    as_yaml, as_json = (run(library, scenario, "--once", "-o", output) for output in ("yaml", "json"))
    assert (as_yaml.returncode, as_yaml.stderr, as_json.returncode) == (0, "", 0)
    one, other = yaml.safe_load(as_yaml.stdout), json.loads(as_json.stdout)
    for report in (one, other):
        del report["status"]["when"]
    assert one == other
    report = msgspec.json.decode(as_json.stdout, type=GPUNode)
    assert (report.kind, report.api_version, report.metadata.name) == (
        "GPUNode",
        "kvitej.io/v1alpha1",
        "node-7",
    )
    assert len(report.spec.gpus) == 8


def test_no_driver_and_no_gpu_are_a_sentence_and_a_status_of_their_own(library: Path, scenario: Path) -> None:
    for lines, words in (
        ("fault nvmlInitWithFlags driver-not-loaded\n", "The NVIDIA driver is not loaded."),
        ("driver 1\n", "The NVIDIA driver sees no GPU."),
    ):
        nvml.write(scenario, lines)
        ended = run(library, scenario, "--once")
        assert (ended.returncode, ended.stdout) == (3, "")
        assert ended.stderr == f"kvitej: {words} There is no GPU to report on node-7.\n"


def test_without_the_library_it_says_so(tmp_path: Path) -> None:
    # A loader that looks for the library finds this, which is none.
    (tmp_path / nvml.LIBRARY).write_text("")
    ended = run(tmp_path / nvml.LIBRARY, tmp_path / "none", "--once")
    assert (ended.returncode, ended.stdout) == (3, "")
    assert "There is no NVIDIA driver here" in ended.stderr


def test_a_driver_that_does_not_tell_has_another_status(library: Path, scenario: Path) -> None:
    nvml.write(scenario, "fault nvmlInitWithFlags version-mismatch\n")
    ended = run(library, scenario, "--once")
    assert ended.returncode == 4
    assert "different versions" in ended.stderr
    assert yaml.safe_load(ended.stdout)["status"]["problem"]["reason"] == "VersionMismatch"


def test_a_program_ends_although_a_call_into_the_driver_does_not(library: Path, scenario: Path) -> None:
    nvml.write(scenario, machines.gb200_tray() + "fault nvmlDeviceGetMemoryInfo_v2 hang 1\n")
    code = (
        "from extender.agent.sampler import Sampler; s = Sampler('n', patience=1, opening=1); r = s.sample();"
    )
    code += " s.close(); print(*(card.health.healthy for card in r.status.gpus))"
    began = time.monotonic()
    ended = python(library, scenario, "-c", code)
    assert (ended.returncode, ended.stdout) == (0, "True False True True\n")
    assert time.monotonic() - began < 10
