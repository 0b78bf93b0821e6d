"""The play as a user sees it, and the book that it leaves behind."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import urllib.request
from collections import Counter
from pathlib import Path

import pytest
from rich.console import Console

from extender.cluster.seats import Phase
from extender.config import Config
from extender.serve.embedded import embedded
from extender.simulate.clusterfile import find, numbered
from extender.simulate.player import Player
from extender.simulate.screen import PIPED_WIDTH, Screen
from extender.simulate.story import Step, What

SERVE = [sys.executable, "-m", "extender", "serve", "--port", "0", "--http", "127.0.0.1:0", "--cluster"]

OWN = """
nodes: [{name: one, allocatable: {cpu: 8, memory: 8Gi, nvidia.com/gpu: 2}}]
tenants: [team]
pods:
  - {name: first, tenant: team, runs: 1h, asks: {nvidia.com/gpu: 2}}
  - {name: second, tenant: team, at: 1m, runs: 1h, asks: {nvidia.com/gpu: 1}}
  - {name: never, tenant: team, at: 2m, runs: 1h, asks: {nvidia.com/gpu: 3}}
"""


def test_the_shipped_cluster_plays_to_its_expectation() -> None:
    ended = subprocess.run([*SERVE, "three-tenants", "--once"], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, "Traceback" in ended.stderr) == (0, False), ended.stderr
    lines = ended.stdout.splitlines()
    words = [line.split() for line in lines]
    for kind in find("three-tenants").pods:
        for name in numbered(kind.name, kind.count):
            assert any(line[1:3] == [kind.tenant, name] for line in words), f"{name} is not shown"
    [veto] = [line for line in lines if line.startswith("1 vetoed at Bind: ")]
    assert veto.endswith("research/evaluate: the GPUs asked for are taken: 4 nvidia.com/gpu on a100-2")
    told = [line for line in lines if " evaluate " in line]
    assert "vetoed at Bind: the GPUs asked for are taken" in told[0]
    assert told[1].split()[5] not in ("a100-2", "-"), "it lands elsewhere"
    assert any("no GPU of the node has as much memory free as the pod declares" in line for line in lines)
    assert any("after waiting 29m" in line and " distill " in line for line in lines)
    assert "legacy/stray was bound to a100-2 past kvitej" in ended.stderr
    assert "\x1b" not in ended.stdout
    assert all(line == line.rstrip() for line in lines), "no blanks at the end of lines"


def test_after_the_play_the_verbs_serve_until_sigterm(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(OWN)
    with subprocess.Popen(
        [*SERVE, str(file)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as serving:
        assert serving.stdout is not None
        assert serving.stderr is not None
        try:
            line = next(line for line in serving.stdout if line.startswith("kvitej serves the verbs at "))
            addresses = [word.rstrip(",;") for word in line.split() if word.startswith("http://")]
            pod = {"metadata": {"name": "new", "uid": "u"}, "spec": {"containers": []}}
            pod["spec"] = {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}
            body = json.dumps({"Pod": pod, "Nodes": None, "NodeNames": ["one"]}).encode()
            with urllib.request.urlopen(f"{addresses[0]}/filter", data=body, timeout=10) as answer:
                assert json.load(answer)["NodeNames"] == ["one"]
            with urllib.request.urlopen(f"{addresses[1]}/readyz", timeout=10) as answer:
                assert answer.read() == b"ok\n"
        finally:
            serving.send_signal(signal.SIGTERM)
        log = serving.stderr.read()
        assert serving.wait(timeout=20) == 0
    assert "Traceback" not in log
    assert "filter" in log, "decisions are logged again once the play is over"


def test_a_play_that_goes_otherwise_than_its_file_expects_ends_with_1(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(OWN + "expect: {bound: 3, vetoed: 0}\n")
    ended = subprocess.run([*SERVE, str(file), "--once"], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert ended.stderr == (
        "kvitej: The play did not go as its file expects: 2 pods were bound and 0 vetoed at Bind, "
        "and expect says 3 and 0.\n"
    )


def test_a_cluster_that_is_not_there_is_one_sentence() -> None:
    ended = subprocess.run([*SERVE, "nowhere", "--once"], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("kvitej: There is no cluster 'nowhere': ")
    assert "three-tenants" in ended.stderr
    assert ended.stderr.count("\n") == 1


async def test_the_book_agrees_with_the_cluster_after_the_play() -> None:
    file = find("three-tenants")
    steps: list[Step] = []

    async def show(step: Step) -> None:
        steps.append(step)

    async with embedded(file, Config(), "127.0.0.1", 0, ("127.0.0.1", 0)) as running:
        player = Player(file, running.cluster, running.scheduler, running.state.snapshot, show)
        await player.play()
        assert player.unexpected() == ""
        assert not player.waiting
        running.state.check()
        book = running.state.snapshot()
        there = {(step.tenant, step.pod): step for step in steps if step.what in (What.BOUND, What.PAST_US)}
        for step in steps:
            if step.what is What.ENDED:
                del there[step.tenant, step.pod]
        seats = {(seat.namespace, seat.name): seat for seat in book.seats.values()}
        assert {key: seat.node for key, seat in seats.items()} == {
            key: step.node for key, step in there.items()
        }
        assert all(seat.phase is Phase.BOUND for seat in seats.values())
        assert not book.claims
        assert not book.waiting
        held = Counter(
            (seat.node, card)
            for seat in seats.values()
            if seat.cards is not None
            for card in seat.cards.whole
        )
        assert max(held.values()) == 1, "no card has two owners"


@pytest.mark.parametrize("width", [60, 80, 120, PIPED_WIDTH])
def test_a_step_is_shown_in_full_at_any_width(width: int) -> None:
    out = io.StringIO()
    screen = Screen(Console(file=out, width=width), find("three-tenants"))
    why = "vetoed at Bind: " + " ".join(f"reason-{number}" for number in range(20))
    screen.head()
    screen.step(Step(3661.0, What.VETOED, "research", "notebook-mig-1", "1 mig-1g.10gb", "mig", "MIG", why))
    lines = out.getvalue().splitlines()
    assert "…" not in out.getvalue()
    assert all(len(line) <= width for line in lines)
    assert all(word in out.getvalue() for word in why.split())
    if width >= 80:
        assert "1:01:01  research   notebook-mig-1  1 mig-1g.10gb       mig     MIG" in out.getvalue()
    assert (len(lines) == 2) == (width == PIPED_WIDTH)
