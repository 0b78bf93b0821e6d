"""The same on a real card, in a process of its own: this one may have the fake library loaded."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from extender.agent.once import NO_GPU_HERE
from extender.wire.gpunode import GPUNode, matrix_of


def test_a_real_card_is_reported_whole() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "extender", "agent", "--once", "-o", "json"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    if ended.returncode == NO_GPU_HERE:
        pytest.skip(f"This test is for a machine with a GPU. {ended.stderr.strip()}")
    assert ended.returncode == 0, ended.stderr
    report = msgspec.json.decode(ended.stdout, type=GPUNode)
    assert report.spec.driver
    assert report.spec.boot_id
    assert report.status is not None
    for gpu, card in zip(report.spec.gpus, report.status.gpus, strict=True):
        assert gpu.uuid.startswith("GPU-")
        assert gpu.model
        assert gpu.pci
        assert card.uuid == gpu.uuid
        assert card.memory is not None
        assert 0 <= card.memory.used + (card.memory.reserved or 0) <= card.memory.total
        assert card.memory.total > 1024**3
        for instance in card.instances:
            assert instance.name
    matrix = matrix_of(report.spec)
    assert matrix is not None
    assert len(matrix.gpus) == len(report.spec.gpus)
