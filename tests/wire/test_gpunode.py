"""Links in a GPUNode are those of a link matrix."""

from __future__ import annotations

from pathlib import Path

import pytest

from extender.wire.gpunode import GPU, GPUNodeSpec, Links, matrix_of
from extender.wire.topo import TopoError, parse

TEXTS = sorted((Path(__file__).parents[1] / "data/topo").glob("[!m]*.txt"))


@pytest.mark.parametrize(
    "text", [text for text in TEXTS if "truncated" not in text.name], ids=lambda text: text.stem
)
def test_a_matrix_comes_back_as_it_was(text: Path) -> None:
    matrix = parse(text.read_text())
    gpus = [
        GPU(f"GPU-{number}", number, numa=numa, cpus=cpus)
        for number, numa, cpus in zip(matrix.gpus, matrix.numa, matrix.cpus, strict=True)
    ]
    links = Links(list(matrix.gpus), [" ".join(map(str, row)) for row in matrix.links])
    assert matrix_of(GPUNodeSpec(gpus=gpus, links=links)) == matrix


def test_links_that_are_none_are_refused() -> None:
    assert matrix_of(GPUNodeSpec()) is None
    for rows in (
        ["X SYS", "SYS"],
        ["X NV99", "NV99 X"],
        ["X NVx", "NVx X"],
        ["X SYS", "PIX X"],
        ["SYS X", "X SYS"],
    ):
        with pytest.raises(TopoError):
            matrix_of(GPUNodeSpec(links=Links([0, 1], rows)))
