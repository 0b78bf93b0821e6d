"""`kvitej topo`: what it prints of a text, and how it refuses one."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from extender.__main__ import main
from tests.topo import BROKEN, READABLE, capture, text_of


def topo(text: str | bytes, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["topo", "-", *arguments], input=text, prog_name="kvitej")


def test_a_file_and_standard_input_give_links_and_the_best_sets(tmp_path: Path) -> None:
    text = capture("dgx1_v100_8gpu_cube_mesh")
    (tmp_path / "topo.txt").write_text(text)
    result = topo(text, "--product", "Tesla-V100-SXM2-16GB")
    named = ["topo", str(tmp_path / "topo.txt"), "--product", "Tesla-V100-SXM2-16GB"]
    assert CliRunner().invoke(main, named).output == result.output
    lines = [line.split() for line in result.output.splitlines()]
    assert result.exit_code == 0
    assert "8 GPUs, NUMA nodes not known." in result.output
    assert "NVLink pair by pair, 50 GB/s a link." in result.output
    assert ["GPU0", "X", "NV1", "NV1", "NV2", "NV2", "SYS", "SYS", "SYS", "?", "0-11,24-35"] in lines
    assert ["2", "0,3", "100", "100", "NVLink", "0,3", "100"] in lines
    assert ["4", "0,1,2,3", "50", "450", "NVLink", "0,1,2,3", "50"] in lines
    assert ["8", "0,1,2,3,4,5,6,7", "14.72", "1,377", "PCIe", "0,1,2,3,4,5,6,7", "14.72"] in lines


def test_what_is_assumed_is_said() -> None:
    assert "all pairs through NVSwitch, 50 GB/s a link at least" in topo(capture("gb200_4gpu_tray")).output
    assert "--product names it" in topo(capture("gb200_4gpu_tray")).output
    named = topo(capture("gb200_4gpu_tray"), "--product", "NVIDIA GB200").output
    assert "100 GB/s a link.\n" in named
    assert "--product" not in named


@pytest.mark.parametrize("entry", READABLE, ids=[Path(entry["file"]).stem for entry in READABLE])
def test_every_capture_is_shown_on_lines_of_its_own(entry: dict[str, str]) -> None:
    result = topo(text_of(entry))
    assert result.exit_code == 0
    assert sum(line.split()[:2] == ["GPU0", "X"] for line in result.output.splitlines()) == 1
    assert "\x1b" not in result.output


def test_one_gpu_has_no_sets() -> None:
    result = topo("\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t0-7\t0")
    assert result.exit_code == 0
    assert "1 GPU, 1 NUMA node." in result.output
    assert "best set" not in result.output


@pytest.mark.parametrize(
    ("text", "arguments", "sentence"),
    [
        (text_of(BROKEN[0]), (), "kvitej: Line 1 ('GPU0 X NV18"),
        ("", (), "kvitej: No line names GPU columns"),
        (b"\tGPU0\n\xff\xfe", (), "kvitej: Line 2 is not UTF-8 text"),
        (
            capture("gb200_4gpu_tray"),
            ("--product", "L40S"),
            "kvitej: The links show NV18, but 'L40S' has no NVLink",
        ),
    ],
)
def test_a_text_that_cannot_be_understood_ends_in_a_sentence(
    text: str | bytes, arguments: tuple[str, ...], sentence: str
) -> None:
    result = topo(text, *arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith(sentence)
    assert result.stderr.count("\n") == 1


def test_a_file_that_is_not_there_ends_in_a_sentence() -> None:
    result = CliRunner().invoke(main, ["topo", "/nowhere/topo.txt"])
    assert result.exit_code == 2
    assert "No such file or directory" in result.stderr
