"""The configuration file: what is read, what is refused and in which words, and the way back to YAML."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from extender.config import Config, from_mapping, load, render
from extender.yamlfile import FileError

CHANGED = """
filter: {keep: 7}
score: {fragmentation: 0.5, mig: 2, topology: 0, shares: 0.25}
claims: {soft: 1m30s}
bind: {timeout: 2.5s, inFlight: 3}
preemption: {protectedNamespaces: [gpu-operator, "null"], protectedPriority: -5}
server: {maxBody: 100k, inFlight: 9}
watch: {staleAfter: 1h}
wake: {delay: 0s}
admission: {schedulers: [fair-quota], writers: [ops]}
cards: {watermark: 70, foreign: 2Gi, staleAfter: 3m, stale: closed}
agent: {sample: 2s, heartbeat: 1m, kubeletSocket: /run/kubelet.sock, kubeletGrace: 0s}
log: {level: debug, format: json}
"""


def refusal(file: Path, text: str) -> str:
    file.write_text(text)
    with pytest.raises(FileError) as error:
        load(file)
    return str(error.value).removeprefix(f"{file}")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.yaml"


def test_defaults_come_without_a_file_and_from_an_empty_one(file: Path) -> None:
    file.write_text("# nothing\nfilter:\n")
    assert load(file) == load(None) == Config()
    assert Config().bind.timeout == 3.0
    assert Config().server.max_body == 64 * 1024 * 1024
    assert Config().wake.delay == 0.25


def test_every_key_can_be_set(file: Path) -> None:
    file.write_text(CHANGED)
    config = load(file)
    assert config.filter.keep == 7
    assert (config.score.fragmentation, config.score.mig, config.score.topology) == (0.5, 2.0, 0.0)
    assert config.score.shares == 0.25
    assert config.claims.soft == 90.0
    assert (config.bind.timeout, config.bind.in_flight) == (2.5, 3)
    assert config.preemption.protected_namespaces == ("gpu-operator", "null")
    assert config.preemption.protected_priority == -5
    assert (config.server.max_body, config.server.in_flight) == (100_000, 9)
    assert (config.watch.stale_after, config.wake.delay) == (3600.0, 0.0)
    assert (config.cards.watermark, config.cards.foreign) == (70.0, 2 * 1024**3)
    assert (config.cards.stale_after, config.cards.stale) == (180.0, "closed")
    assert (config.agent.sample, config.agent.heartbeat) == (2.0, 60.0)
    assert (config.agent.kubelet_socket, config.agent.kubelet_grace) == ("/run/kubelet.sock", 0.0)
    assert (config.log.level, config.log.format) == ("debug", "json")
    defaults = yaml.safe_load(render(Config()))
    assert {(section, key) for section, keys in defaults.items() for key in keys} == {
        (section, key) for section, keys in yaml.safe_load(CHANGED).items() for key in keys
    }, "this test sets every key there is"


@pytest.mark.parametrize("changed", ["", CHANGED])
def test_what_is_rendered_reads_back_as_the_same(file: Path, changed: str) -> None:
    file.write_text(changed)
    config = load(file)
    file.write_text(render(config))
    assert load(file) == config


def test_every_rendered_key_stands_under_a_comment() -> None:
    lines = render(Config()).splitlines()
    keys = [number for number, line in enumerate(lines) if line and not line.lstrip().startswith("#")]
    assert len(keys) == 12 + 26
    for number in keys:
        assert lines[number - 1].lstrip().startswith("# ")
    assert "from 100ms to 4s" in render(Config())


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "filtr: {}",
            ": filtr is not a known key; the configuration has the keys filter, score, claims, bind, ",
        ),
        ("filter: {kep: 1}", ": filter.kep is not a known key; filter has the keys keep."),
        ("1: 2", ": 1 is not a known key; "),
        ("filter: 5", ": filter is 5; allowed is a mapping with the keys keep."),
        ("- a", ": the configuration is ['a']; allowed is a mapping"),
        ("filter: {keep: many}", ": filter.keep is 'many'; allowed is a whole number, from 1 to 10000."),
        ("filter: {keep: 0}", ": filter.keep is 0; allowed is a whole number, from 1 to 10000."),
        ("filter: {keep: 10001}", ": filter.keep is 10001; allowed is"),
        ("filter: {keep: true}", ": filter.keep is True; allowed is"),
        ("filter: {keep: }", ": filter.keep is None; allowed is"),
        (
            "bind: {timeout: 3}",
            ": bind.timeout is 3; allowed is a duration such as 10s, 500ms or 1h30m, from 100ms",
        ),
        ("bind: {timeout: 3x}", ": bind.timeout is '3x'; allowed is a duration"),
        ("bind: {timeout: 5s}", ": bind.timeout is '5s'; allowed is a duration"),
        (
            "server: {maxBody: 64MB}",
            ": server.maxBody is '64MB'; allowed is an amount of bytes such as 64Mi, from",
        ),
        ("server: {maxBody: 1024}", ": server.maxBody is 1024; allowed is an amount of bytes"),
        ("server: {maxBody: 2Gi}", ": server.maxBody is '2Gi'; allowed is an amount of bytes"),
        ("log: {level: off}", ": log.level is False; allowed is one of debug, info, warning, error."),
        ("log: {format: xml}", ": log.format is 'xml'; allowed is one of text, json."),
        (
            "preemption: {protectedNamespaces: kube-system}",
            "is 'kube-system'; allowed is a list of namespace names.",
        ),
        ("preemption: {protectedNamespaces: [A b]}", "is ['A b']; allowed is a list of namespace names."),
        (
            "preemption: {protectedPriority: 2147483648}",
            "is 2147483648; allowed is a whole number, from -2147483648",
        ),
        ("filter:\n  keep: 1\n  keep: 2", ": line 3: the key 'keep' is given twice."),
        ("filter:\n  keep: [1", ": line 2: "),
        ("a: 1\n---\na: 2", ": line 2: "),
        ("? [a]\n: 1", ": line 1: "),
        ("x: 2001-13-45", " cannot be read as YAML: month must be in 1..12."),
        ("\x00", " cannot be read as YAML: "),
        ("[" * 5000, " cannot be read as YAML: "),
    ],
)
def test_what_cannot_be_taken_as_meant_is_named(file: Path, text: str, sentence: str) -> None:
    message = refusal(file, text)
    assert sentence in message
    assert message.endswith(".")
    assert "\n" not in message


def test_bytes_that_are_no_text_are_refused(file: Path) -> None:
    file.write_bytes(b"filter: \xff\xfe")
    with pytest.raises(FileError, match="cannot be read as YAML"):
        load(file)


def test_a_file_that_is_not_there_is_an_os_error(file: Path) -> None:
    with pytest.raises(OSError):
        load(file)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.dates()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(SCALARS, inner, max_size=3)
)
TREE: dict[str, dict[str, Any]] = yaml.safe_load(render(Config()))
SECTIONS = {
    name: st.fixed_dictionaries({}, optional={key: st.just(value) | VALUES for key, value in keys.items()})
    | VALUES
    for name, keys in TREE.items()
}


@given(st.fixed_dictionaries({}, optional=SECTIONS) | VALUES)
def test_any_mapping_gives_a_configuration_or_a_sentence(found: object) -> None:
    try:
        config = from_mapping(found)
    except FileError as error:
        sentence = str(error)
    else:
        assert from_mapping(yaml.safe_load(render(config))) == config
        return
    assert re.search("allowed is|is not a known key", sentence)
