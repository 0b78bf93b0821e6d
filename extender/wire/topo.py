"""The text of `nvidia-smi topo -m`, as people paste it, to the link matrix of a node's GPUs.

People lose the leading tab of the header, keep the colours of the terminal, cut the text, or sort its lines.
Cells are therefore found by the names in the header; columns and rows of NICs, the affinity columns and the
legend may be there or not. What cannot be read for sure is refused with the line: a wrong matrix would steer jobs
for as long as the node lives.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, NoReturn

MOST_GPUS = 64
"""More than any machine shows; a text that names more is not believed."""
MOST_LANES = 64
"""More NVLinks than any pair of cards has."""

_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_GPU = re.compile(r"GPU([0-9]{1,4})")
_AFFINITY = re.compile(r"CPU\s+Affinity|NUMA\s+Affinity|GPU\s+NUMA\s+ID")
_WORD = re.compile(r"\S+")
_SPAN = r"[0-9]{1,5}(?:-[0-9]{1,5})?"
_SPANS = re.compile(rf"{_SPAN}(?:,{_SPAN})*")
_LANES = re.compile(r"NV([0-9]{1,3})")
_SHOWN = 60
_MOST_DEVICES = 4 * MOST_GPUS
_UNKNOWN = ("", "N/A")


class TopoError(ValueError):
    """A text, or a matrix, that is not one node's links; the message names the line where there is one."""


class LinkClass(IntEnum):
    """What lies between two GPUs, worst first, in the words of nvidia-smi's legend."""

    SELF = 0
    SYS = 1
    """The link between CPU sockets."""
    NODE = 2
    """Several host bridges of one NUMA node."""
    PHB = 3
    """One PCIe host bridge, usually the CPU's."""
    PXB = 4
    """Several PCIe switches."""
    PIX = 5
    """One PCIe switch."""
    NVLINK = 6


class Link(NamedTuple):
    """One cell: the class, and how many NVLinks the pair has (0 for any other class)."""

    kind: LinkClass
    lanes: int = 0

    def __str__(self) -> str:
        if self.kind is LinkClass.NVLINK:
            return f"NV{self.lanes}"
        return "X" if self.kind is LinkClass.SELF else self.kind.name


SELF = Link(LinkClass.SELF)
_CELLS = {kind.name: Link(kind) for kind in LinkClass if LinkClass.SELF < kind < LinkClass.NVLINK}
# Drivers before 2018 said SOC for SYS.
_CELLS |= {"X": SELF, "SOC": _CELLS["SYS"]}


@dataclass(frozen=True, slots=True)
class LinkMatrix:
    """The links among the G GPUs of one node.

    `gpus` are the numbers in their names, ascending; `links` is [G][G] in that order; `numa` has a NUMA node per
    GPU, None where it is not known; `cpus` is the text of the CPU affinity, empty where it is not known.

    Raises
    ------
    TopoError
        If the parts do not agree, a cell is impossible, or two GPUs see different links between them.
    """

    gpus: tuple[int, ...]
    links: tuple[tuple[Link, ...], ...]
    numa: tuple[int | None, ...]
    cpus: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        count = len(self.gpus)
        if not 0 < count <= MOST_GPUS:
            raise TopoError(f"{count} GPUs are named; a link matrix has 1 to {MOST_GPUS}.")
        if list(self.gpus) != sorted(set(self.gpus)):
            raise TopoError(f"The GPUs {list(self.gpus)} are not distinct numbers in ascending order.")
        if {len(self.links), len(self.numa), len(self.cpus or self.gpus), *map(len, self.links)} != {count}:
            raise TopoError(f"Links, NUMA nodes and CPU affinities must each be given for all {count} GPUs.")
        for i, row in enumerate(self.links):
            for j, link in enumerate(row):
                self._check(i, j, link)

    def _check(self, i: int, j: int, link: Link) -> None:
        pair = f"GPU{self.gpus[i]} and GPU{self.gpus[j]}"
        if (i == j) != (link.kind is LinkClass.SELF):
            raise TopoError(f"The link between {pair} is {link}; a GPU is X to itself and to no other.")
        if not (1 if link.kind is LinkClass.NVLINK else 0) <= link.lanes <= MOST_LANES or (
            link.kind is not LinkClass.NVLINK and link.lanes
        ):
            raise TopoError(f"The link between {pair} is {link} with {link.lanes} NVLinks, which cannot be.")
        if self.links[j][i] != link:
            raise TopoError(f"{pair} disagree about the link between them: {link} and {self.links[j][i]}.")


def parse(text: str) -> LinkMatrix:
    """Read the output of `nvidia-smi topo -m`.

    Parameters
    ----------
    text
        As printed or pasted, with anything before the header line and after the rows of the GPUs.

    Raises
    ------
    TopoError
        If the text has no header, lacks a row, has a cell that is no link or an affinity that is none, or does
        not agree with itself. The sentence gives the number and the text of the line.
    """
    lines = [_Line(number, line) for number, line in enumerate(_ESCAPE.sub("", text).split("\n"), 1)]
    at, header = _header(lines)
    rows = _rows(lines[at + 1 :], header)
    missing = [name for name in header.gpus if name not in rows]
    if missing:
        header.line.refuse(
            f"names {', '.join(missing)}, which no row describes; the text was cut or lines of it were lost"
        )
    order = sorted(rows, key=_number)
    columns = [header.devices.index(name) for name in order]
    links = tuple(tuple(rows[name].links[column] for column in columns) for name in order)
    for i, name in enumerate(order):
        for j, other in enumerate(order[:i]):
            if links[i][j] != links[j][i]:
                rows[name].line.refuse(
                    f"gives {links[i][j]} for {other}, but line {rows[other].line.number} has {links[j][i]} for {name}"
                )
    return LinkMatrix(
        gpus=tuple(map(_number, order)),
        links=links,
        numa=tuple(rows[name].numa for name in order),
        cpus=tuple(rows[name].cpus for name in order),
    )


@dataclass(frozen=True, slots=True)
class _Line:
    number: int
    text: str

    @property
    def words(self) -> list[str]:
        return self.text.split()

    def refuse(self, why: str) -> NoReturn:
        shown = " ".join(self.words)
        shown = shown if len(shown) <= _SHOWN else shown[: _SHOWN - 1] + "…"
        raise TopoError(f"Line {self.number} ({shown!r}) {why}.")


@dataclass(frozen=True, slots=True)
class _Header:
    line: _Line
    devices: list[str]
    affinities: list[str]
    offsets: list[int]
    """Where each affinity column starts, counted from the start of the last device column."""

    @property
    def gpus(self) -> list[str]:
        return [name for name in self.devices if _GPU.fullmatch(name)]


@dataclass(frozen=True, slots=True)
class _Row:
    line: _Line
    links: list[Link]
    numa: int | None
    cpus: str


def _number(name: str) -> int:
    return int(name.removeprefix("GPU"))


def _is_row(words: Sequence[str]) -> bool:
    return len(words) > 1 and _GPU.fullmatch(words[0]) is not None and _is_link(words[1])


def _is_link(word: str) -> bool:
    return word in _CELLS or _LANES.fullmatch(word) is not None


def _header(lines: list[_Line]) -> tuple[int, _Header]:
    """The first line that names GPU columns, and its place in the text."""
    for at, line in enumerate(lines):
        words = line.words
        if not words or _GPU.match(words[0]) is None:
            continue
        if _is_row(words):
            line.refuse(
                "is a row of the matrix, but no line above it names the columns; paste the text from its first line"
            )
        if _GPU.fullmatch(words[0]) is None:
            line.refuse(f"begins with {words[0]!r}, which is no GPU column; columns have grown together")
        return at, _columns(line)
    raise TopoError(
        "No line names GPU columns (GPU0 GPU1 …); the text is not the output of `nvidia-smi topo -m`, or its "
        "first line is lost."
    )


def _columns(line: _Line) -> _Header:
    text = line.text.expandtabs()
    titles = list(_AFFINITY.finditer(text))
    words = list(_WORD.finditer(text, 0, titles[0].start() if titles else len(text)))
    devices = [word.group() for word in words]
    header = _Header(
        line=line,
        devices=devices,
        affinities=[" ".join(title.group().split()) for title in titles],
        offsets=[title.start() - words[-1].start() for title in titles] if words else [],
    )
    if len(devices) > _MOST_DEVICES:
        line.refuse(f"names {len(devices)} columns; a machine has at most {_MOST_DEVICES}")
    for name in devices:
        if devices.count(name) > 1:
            line.refuse(f"names {name} twice")
        if name.startswith("GPU") and not _GPU.fullmatch(name):
            line.refuse(f"has a column {name!r}, which is no GPU; columns have grown together")
        if _is_link(name):
            line.refuse(f"names the columns, but {name} is a link; two lines have grown together")
    if not 0 < len(header.gpus) <= MOST_GPUS:
        line.refuse(f"names {len(header.gpus)} GPUs; a machine has 1 to {MOST_GPUS}")
    numbers = [_number(name) for name in header.gpus]
    if len(set(numbers)) < len(numbers):
        line.refuse("gives two GPUs the same number")
    return header


def _rows(lines: list[_Line], header: _Header) -> dict[str, _Row]:
    """The GPUs' rows by name; lines of NICs may stand between them, and anything behind the last of them."""
    rows: dict[str, _Row] = {}
    for line in lines:
        words = line.words
        if not words:
            continue
        name = words[0]
        if _GPU.match(name) is None:
            if len(rows) < len(header.gpus) and name not in header.devices:
                if rows or _is_link(name):
                    line.refuse(
                        "stands among the rows but does not begin with the name of a column; was it wrapped or cut?"
                    )
                line.refuse("stands where the row of a GPU is expected")
            continue
        if name in rows:
            line.refuse(
                f"comes after the row of {name} (line {rows[name].line.number}); give the text of one node only"
            )
        if name not in header.devices:
            line.refuse(f"begins with {name!r}, which the header (line {header.line.number}) does not name")
        rows[name] = _row(line, header)
    return rows


def _row(line: _Line, header: _Header) -> _Row:
    devices = len(header.devices)
    text = line.text.expandtabs()
    words = list(_WORD.finditer(text))
    cells = [word.group() for word in words[1 : devices + 1]]
    links = []
    for name, cell in zip(header.devices, cells, strict=False):
        link = _link(cell)
        if link is None:
            line.refuse(
                f"has {cell!r} for {name}, which is no link (X, NV1 to NV{MOST_LANES}, PIX, PXB, PHB, NODE, SYS)"
            )
        links.append(link)
    if len(cells) < devices:
        line.refuse(
            f"has {len(cells)} cells for {devices} devices in the header (line {header.line.number}); it was cut"
        )
    for name, link in zip(header.devices, links, strict=True):
        if (name == words[0].group()) != (link == SELF):
            line.refuse(f"has {link} for {name}; a GPU is X to itself and to no other device")
    affinity = _affinity(line, header, words)
    cpus = affinity.get("CPU Affinity", "")
    return _Row(line, links, _numa(line, affinity.get("NUMA Affinity", "")), _cpus(line, cpus))


def _link(cell: str) -> Link | None:
    lanes = _LANES.fullmatch(cell)
    if lanes is None:
        return _CELLS.get(cell)
    count = int(lanes.group(1))
    return Link(LinkClass.NVLINK, count) if 0 < count <= MOST_LANES else None


def _affinity(line: _Line, header: _Header, words: list[re.Match[str]]) -> dict[str, str]:
    """The affinity cells by column title; tabs keep empty cells apart, without tabs their position does."""
    titles, devices = header.affinities, len(header.devices)
    cells = [cell.strip() for cell in line.text.split("\t")]
    tail = words[devices + 1 :]
    found = [word.group() for word in tail]
    if cells[: devices + 1] == [word.group() for word in words[: devices + 1]]:
        placed = dict(zip(titles, cells[devices + 1 :], strict=False))
    elif len(found) > len(titles):
        line.refuse(
            f"ends in {' '.join(found)!r}, more than the header (line {header.line.number}) has columns for"
        )
    elif len(found) == len(titles):
        placed = dict(zip(titles, found, strict=True))
    else:
        placed = {}
        for word in tail:
            distance = [abs(word.start() - words[devices].start() - offset) for offset in header.offsets]
            placed[titles[distance.index(min(distance))]] = word.group()
    if "NUMA Affinity" in titles and placed.get("CPU Affinity") and not placed.get("NUMA Affinity"):
        line.refuse(
            f"has CPU affinity {placed['CPU Affinity']!r} and no NUMA affinity; columns have grown together"
        )
    return placed


def _numa(line: _Line, text: str) -> int | None:
    """The one NUMA node of a cell; a list or a range says that the driver does not know."""
    if text in _UNKNOWN:
        return None
    if not _spans(text):
        line.refuse(
            f"has NUMA affinity {text!r}, which is neither a number nor N/A; columns have grown together"
        )
    return int(text) if text.isdecimal() else None


def _cpus(line: _Line, text: str) -> str:
    if text in _UNKNOWN:
        return ""
    if not _spans(text):
        line.refuse(f"has CPU affinity {text!r}, which is no list of CPUs; columns have grown together")
    return text


def _spans(text: str) -> bool:
    if not _SPANS.fullmatch(text):
        return False
    spans = [[int(end) for end in span.split("-")] for span in text.split(",")]
    return all(span[0] <= span[-1] for span in spans)
