"""The text of `nvidia-smi topo -m`: every capture as its index says, each way in which pasting breaks it, and noise."""

import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from extender.wire.topo import Link, LinkClass, LinkMatrix, TopoError, parse
from tests.topo import BROKEN, INDEX, READABLE, capture, text_of

NV12, SYS, SELF = Link(LinkClass.NVLINK, 12), Link(LinkClass.SYS), Link(LinkClass.SELF)
HEADER = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID"
ROWS = "GPU0\t X \tNV12\t0-7\t0\t\tN/A", "GPU1\tNV12\t X \t8-15\t1\t\tN/A"
PAIR = "\n".join([HEADER, *ROWS])


def words(matrix: LinkMatrix) -> list[list[str]]:
    return [list(map(str, row)) for row in matrix.links]


@pytest.mark.parametrize("entry", READABLE, ids=[Path(entry["file"]).stem for entry in READABLE])
def test_a_capture_is_read_as_its_index_says(entry: dict[str, Any]) -> None:
    expect, matrix = entry["expect"], parse(text_of(entry))
    count = len(matrix.gpus)
    assert matrix.gpus == tuple(range(expect["gpus"]))
    cells = [str(matrix.links[i][j]) for i in range(count) for j in range(i)]
    if "all_pairs" in expect:
        assert set(cells) == {expect["all_pairs"]}
    if "nvlink_pairs" in expect:
        seen = Counter(cells)
        assert {name: seen[name] for name in seen if name.startswith("NV")} == expect["nvlink_pairs"]
    if "numa" in expect:
        assert list(matrix.numa) == expect["numa"]
    if "islands" in expect:
        for i in range(count):
            near = [j for j in range(count) if j == i or matrix.links[i][j].kind >= LinkClass.PIX]
            assert near in expect["islands"]


@pytest.mark.parametrize("entry", BROKEN, ids=[Path(entry["file"]).stem for entry in BROKEN])
def test_a_broken_capture_is_refused_with_the_line(entry: dict[str, Any]) -> None:
    with pytest.raises(TopoError, match=r"^Line 1 \('GPU0 X NV18 .*no line above it names the columns"):
        parse(text_of(entry))


def test_the_index_names_every_capture() -> None:
    assert len(INDEX) == 28
    assert len(BROKEN) == 1


def test_a_broken_capture_stays_broken_under_a_header() -> None:
    rows = text_of(BROKEN[0]).splitlines()
    names = [*(f"GPU{i}" for i in range(7)), *(f"NIC{i}" for i in range(11))]
    head = "".join(name.ljust(8) for name in ("", *names)) + "CPU Affinity    NUMA Affinity   GPU NUMA ID"
    with pytest.raises(
        TopoError, match=r"^Line 2 \(.*CPU affinity '0-55,112-167' and no NUMA|NUMA affinity '0N/A'"
    ):
        parse("\n".join([head, *rows]))
    with pytest.raises(
        TopoError, match=r"^Line 2 \(.*'56-111,168-2231' and no NUMA affinity; .*grown together"
    ):
        parse("\n".join([head, *rows[4:]]))


def test_affinities_are_kept() -> None:
    matrix = parse(capture("h100_4gpu_nv6_4nic_cpulist"))
    assert matrix.numa == (3, 1, 7, 5)
    assert matrix.cpus[1] == "4,12,20,28"
    assert parse(capture("dgx1_v100_8gpu_cube_mesh")).numa == (None,) * 8


def pair(
    edit: Callable[[str], str] = str, numa: tuple[int | None, ...] = (0, 1)
) -> tuple[str, tuple[int | None, ...]]:
    return edit(PAIR), numa


BLANK = (None, None)


@pytest.mark.parametrize(
    ("text", "numa"),
    [
        pytest.param(*pair(), id="as printed"),
        pytest.param(*pair(str.lstrip), id="the header has lost its tab"),
        pytest.param(*pair(lambda text: text.replace("\n", "\r\n")), id="lines end as on Windows"),
        pytest.param(*pair(str.expandtabs), id="tabs became blanks"),
        pytest.param(
            *pair(lambda text: text.expandtabs().lstrip()), id="blanks, and the header has lost some"
        ),
        pytest.param(
            *pair(lambda text: "$ nvidia-smi topo -m\n```\n" + text + "\n```"), id="a prompt and a fence"
        ),
        pytest.param("\n".join([HEADER, *ROWS[::-1]]), (0, 1), id="rows in another order"),
        pytest.param(*pair(lambda text: f"\x1b[4m{text}\x1b[0m"), id="underlined"),
        pytest.param(
            *pair(lambda text: re.sub(r"[0-9]+-[0-9]+\t[01]", "\t", text), BLANK), id="affinities are blank"
        ),
        pytest.param(
            *pair(lambda text: re.sub(r"[0-9]+-[0-9]+\t[01]", "\t", text).expandtabs(), BLANK),
            id="affinities are blank, and tabs became blanks",
        ),
        pytest.param(*pair(lambda text: re.sub(r"\t[01]\t", "\tN/A\t", text), BLANK), id="NUMA is N/A"),
        pytest.param(*pair(lambda text: re.sub(r"\t[01]\t", "\t0-7\t", text), BLANK), id="NUMA is a range"),
        pytest.param(*pair(lambda text: re.sub(r"\t[01]\t", "\t0,2\t", text), BLANK), id="NUMA is a list"),
        pytest.param("\tGPU0\tGPU1\nGPU0\tX\tNV12\nGPU1\tNV12\tX", BLANK, id="no affinity columns"),
        pytest.param(
            "GPU0 mlx5_0 GPU1 CPU Affinity\nGPU0 X SYS NV12 0\nmlx5_0 SYS X\nGPU1 NV12 SYS X 1",
            BLANK,
            id="NIC between",
        ),
    ],
)
def test_what_people_do_to_the_text_changes_nothing(text: str, numa: tuple[int | None, ...]) -> None:
    matrix = parse(text)
    assert matrix.links == ((SELF, NV12), (NV12, SELF))
    assert matrix.numa == numa


def test_gpus_keep_the_numbers_in_their_names() -> None:
    matrix = parse("GPU7 GPU12 GPU3\nGPU7 X PIX SYS\nGPU12 PIX X SOC\nGPU3 SYS SYS X")
    assert matrix.gpus == (3, 7, 12)
    assert words(matrix) == [["X", "SYS", "SYS"], ["SYS", "X", "PIX"], ["SYS", "PIX", "X"]]


REFUSED = [
    ("", "No line names GPU columns"),
    ("Segmentation fault", "No line names GPU columns"),
    ("\n".join([HEADER, ROWS[0]]), r"Line 1 \(.*\) names GPU1, which no row describes"),
    ("\n".join(ROWS), r"Line 1 \(.*no line above it names the columns"),
    (PAIR[:-16], r"Line 3 \('GPU1 NV12'\) has 1 cells for 2 devices in the header \(line 1\); it was cut"),
    (PAIR.replace("GPU1\tNV12", "GPU1\tNV11"), r"Line 3 .*NV11 for GPU0, but line 2 has NV12 for GPU1"),
    (PAIR.replace("NV12", "NV0"), r"Line 2 .*'NV0' for GPU1, which is no link"),
    (PAIR.replace("NV12", "NV999"), r"Line 2 .*'NV999'"),
    (PAIR.replace("NV12", "OK"), r"Line 2 .*'OK' for GPU1, which is no link"),
    (PAIR.replace("NV12", " X "), r"Line 2 .*has X for GPU1; a GPU is X to itself"),
    (PAIR.replace(" X ", "SYS", 1), r"Line 2 .*has SYS for GPU0; a GPU is X to itself"),
    (
        PAIR.replace("GPU0\t X ", "GPU0 X", 1).replace("\tNV12\t0-7", "NV12\t0-7"),
        r"Line 2 .*'XNV12' for GPU0",
    ),
    (
        PAIR.replace("\t0-7\t0", "\t0-70"),
        r"Line 2 .*'0-70' and no NUMA affinity; columns have grown together",
    ),
    (PAIR.replace("0-7", "7-0"), r"Line 2 .*CPU affinity '7-0', which is no list"),
    (PAIR.replace("\t0\t", "\t0N/A\t"), r"Line 2 .*NUMA affinity '0N/A'"),
    (f"{PAIR}\n{PAIR}", r"Line 4 .*comes after the row of GPU0 \(line 2\)"),
    (PAIR.replace("GPU1\tNV12", "GPU2\tNV12"), r"Line 3 .*'GPU2', which the header \(line 1\) does not name"),
    (PAIR.replace("GPU0\tGPU1", "GPU0\tGPU0"), r"Line 1 .*names GPU0 twice"),
    (PAIR.replace("GPU0\tGPU1", "GPU0GPU1"), r"Line 1 .*'GPU0GPU1', which is no GPU column"),
    (PAIR.replace("GPU0\tGPU1", "GPU0\tGPU1NIC0"), r"Line 1 .*'GPU1NIC0', which is no GPU"),
    (PAIR.replace("\tNV12\t0-7", "\n        NV12\t0-7"), r"Line 2 .*has 1 cells"),
    (f"{HEADER}\n{ROWS[0]}\nN/A\n{ROWS[1]}", r"Line 3 \('N/A'\) stands among the rows"),
    (
        HEADER.replace("GPU1", "\t".join(f"GPU{i}" for i in range(1, 80))),
        "names 80 GPUs; a machine has 1 to 64",
    ),
    ("GPU0 " * 100_000, "names 100000 columns"),
]


@pytest.mark.parametrize(("text", "why"), REFUSED, ids=[why for _, why in REFUSED])
def test_what_cannot_be_understood_is_a_sentence_with_the_line(text: str, why: str) -> None:
    with pytest.raises(TopoError, match=why) as refused:
        parse(text)
    assert str(refused.value).endswith(".")
    assert len(str(refused.value)) < 300


def test_a_matrix_that_cannot_be_is_refused() -> None:
    good = parse(PAIR)
    odd = Link(LinkClass.PIX, 3), Link(LinkClass.NVLINK, 0), Link(LinkClass.NVLINK, -1), SELF
    for link in odd:
        with pytest.raises(TopoError, match="GPU0 and GPU1"):
            replace(good, links=((SELF, link), (link, SELF)))
    with pytest.raises(TopoError, match="disagree"):
        replace(good, links=((SELF, NV12), (SYS, SELF)))
    with pytest.raises(TopoError, match="must each be given for all 2"):
        replace(good, numa=(0,))
    with pytest.raises(TopoError, match="ascending"):
        replace(good, gpus=(1, 0))
    with pytest.raises(TopoError, match="0 GPUs"):
        LinkMatrix((), (), ())


NOISE = [
    "GPU1",
    "GPU99",
    "X",
    "NV18",
    "NV",
    "SYS",
    "N/A",
    "\t",
    "\n",
    "\r",
    "\x00",
    "\x1b[4m",
    "　",
    "٣",
    "-",
    ",",
    "NIC0",
]


def mutated(lots: random.Random, text: str) -> str:
    """A few edits: lines lost, doubled, swapped, cut; runs of characters lost or doubled; noise; columns glued."""
    for _ in range(lots.randint(1, 4)):
        at = lots.randrange(len(text) + 1)
        end = min(len(text), at + lots.choice([1, 1, 2, 8, 80]))
        lines = text.split("\n")
        line = lots.randrange(len(lines))
        other = lots.randrange(len(lines))
        match lots.randrange(8):
            case 0:
                text = text[:at] + text[end:]
            case 1:
                text = text[:end] + text[at:]
            case 2:
                text = text[:at] + lots.choice(NOISE) + text[at:]
            case 3:
                text = text[:at]
            case 4:
                text = "\n".join(lines[:line] + lines[line + 1 :])
            case 5:
                lines[line], lines[other] = lines[other], lines[line]
                text = "\n".join(lines)
            case 6:
                text = re.sub(r"[ \t]+", lambda gap: "" if lots.random() < 0.02 else gap.group(), text)
            case 7:
                text = re.sub(r"[0-9]", lambda digit: "7" if lots.random() < 0.01 else digit.group(), text)
    return text


def read_or_refused(text: str) -> LinkMatrix | str:
    try:
        return parse(text)
    except TopoError as refused:
        return str(refused)


def test_ten_thousand_broken_texts_give_a_matrix_or_a_sentence() -> None:
    lots = random.Random(1)
    texts = [text_of(entry) for entry in INDEX]
    read = 0
    for _ in range(10_000):
        matrix = read_or_refused(mutated(lots, lots.choice(texts)))
        if isinstance(matrix, LinkMatrix):
            assert 0 < len(matrix.gpus) == len(matrix.links) == len(matrix.numa)
            read += 1
        else:
            assert re.match(r"(Line [0-9]+ \(|No line names GPU columns).*\.$", matrix)
    assert 1_000 < read < 9_000


def test_a_text_that_has_lost_something_is_refused_or_read_with_the_same_links() -> None:
    lots = random.Random(2)
    texts = [(text_of(entry), parse(text_of(entry))) for entry in READABLE]
    read = 0
    for _ in range(3_000):
        text, whole = lots.choice(texts)
        at = lots.randrange(len(text))
        matrix = read_or_refused(text[:at] + text[at + lots.choice([1, 2, 5, 40, 400]) :])
        if isinstance(matrix, LinkMatrix):
            assert matrix.links == whole.links
            read += 1
    assert read > 300
