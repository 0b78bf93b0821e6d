"""Lines that the log writes."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from extender.log import setup


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    access = logging.getLogger("aiohttp.access")
    disabled = access.disabled
    yield
    root.handlers, access.disabled = handlers, disabled
    root.setLevel(level)
    structlog.reset_defaults()


def test_json_gives_one_object_per_line_for_our_lines_and_those_of_libraries(
    capsys: pytest.CaptureFixture[str],
) -> None:
    setup("info", "json")
    structlog.get_logger().info("bound", pod="a\nb", node="n1")
    logging.getLogger("asyncio").warning("slow %s", "callback")
    ours, theirs = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert (ours["event"], ours["pod"], ours["node"], ours["level"]) == ("bound", "a\nb", "n1", "info")
    assert (theirs["event"], theirs["level"]) == ("slow callback", "warning")
    assert ours["timestamp"].endswith("Z")


def test_text_is_plain_when_piped_and_a_name_cannot_forge_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    setup("info", "text")
    structlog.get_logger().info("vetoed", pod="a\nbound", colour="\x1b[31m")
    (line,) = capsys.readouterr().err.splitlines()
    assert "vetoed" in line
    assert "\x1b" not in line
    assert r"pod=a\nbound" in line
    assert r"colour=\x1b[31m" in line


def test_an_exception_is_part_of_its_line_in_json_and_follows_it_in_text(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for form in ("json", "text"):
        setup("info", form)
        try:
            raise KeyError("gone")
        except KeyError:
            structlog.get_logger().exception("failed")
    first, second, *rest = capsys.readouterr().err.splitlines()
    assert "KeyError: 'gone'" in json.loads(first)["exception"]
    assert "failed" in second
    assert rest[-1] == "KeyError: 'gone'"


@pytest.mark.parametrize(("level", "expected"), [("debug", 4), ("info", 3), ("warning", 2), ("error", 1)])
def test_lines_below_the_level_are_left_out(
    capsys: pytest.CaptureFixture[str], level: str, expected: int
) -> None:
    setup(level, "json")  # type: ignore[arg-type]
    log = structlog.get_logger()
    for each in (log.debug, log.info, log.warning, log.error):
        each("event")
    assert len(capsys.readouterr().err.splitlines()) == expected


def test_http_accesses_are_never_logged(capsys: pytest.CaptureFixture[str]) -> None:
    setup("debug", "text")
    logging.getLogger("aiohttp.access").info("GET /healthz")
    assert capsys.readouterr().err == ""
