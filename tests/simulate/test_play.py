"""The play as a user sees it, and the book that it leaves behind."""

from __future__ import annotations

import contextlib
import io
import json
import signal
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from rich.console import Console

from extender.cluster.seats import Phase
from extender.config import Config
from extender.serve.embedded import Embedded, embedded
from extender.simulate.clusterfile import find, numbered
from extender.simulate.player import Player
from extender.simulate.screen import PIPED_WIDTH, Screen
from extender.simulate.story import Step, What

Playing = tuple[Embedded, Player, list[Step]]

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
            assert any(line[2:4] == [kind.tenant, name] for line in words), f"{name} is not shown"
    [veto] = [line for line in lines if line.startswith("1 vetoed at Bind: ")]
    kept = "research/evaluate: the pod has a seat kept on a100-2, which has changed since"
    assert veto.endswith(f"{kept}: the GPUs asked for are taken")
    told = [line.split() for line in lines if " evaluate " in line]
    assert told[0][1] == "vetoed"
    assert told[1][1] == "bound"
    assert told[2][6] not in ("a100-2", "-"), "it lands elsewhere"
    assert "legacy/stray was bound to a100-2 past kvitej" in ended.stderr
    assert "\x1b" not in ended.stdout
    assert all(line == line.rstrip() for line in lines), "no blanks at the end of lines"


@contextlib.asynccontextmanager
async def playing(cluster: str) -> AsyncIterator[Playing]:
    file = find(cluster)
    steps: list[Step] = []

    async def show(step: Step) -> None:
        steps.append(step)

    async with embedded(file, Config(), "127.0.0.1", 0, ("127.0.0.1", 0)) as running:
        yield running, running.player(file, show), steps


def of(steps: list[Step], what: What, tenant: str, prefix: str = "") -> list[Step]:
    return [
        step for step in steps if step.what is what and step.tenant == tenant and step.pod.startswith(prefix)
    ]


async def test_three_tenants_take_turns_and_get_their_shares() -> None:
    async with playing("three-tenants") as (running, player, steps):
        await player.play()
        assert player.unexpected() == ""
        # Training borrows what is idle, up to its maximum; who would take it above waits at the gate.
        assert [step.node for step in of(steps, What.BOUND, "training", "finetune")[:2]] == ["a100-3"] * 2
        gated = of(steps, What.WAITS, "training", "finetune-3")[0]
        assert "tenant training has 24 GPUs and may have 27.69" in gated.why
        # Inference comes late: it gets its half back, from training and from research, whose flood came before.
        assert {step.tenant for step in player.evicted} == {"training", "research"}
        assert all("to make room on" in step.why and "for inference/" in step.why for step in player.evicted)
        for chat in of(steps, What.BOUND, "inference", "chat"):
            assert chat.at <= 13 * 60
        # In the end each has what it is entitled to, within one pod, while all wait for more.
        [pool] = running.shares().pools
        largest = {"training": 8, "inference": 2, "research": 1}
        for row in pool.tenants:
            assert abs(row.in_use - row.entitlement) <= largest[row.name], row
            assert row.score == 1.0
            assert row.waiting > 0
        assert sum(row.evictions for row in pool.tenants) == len(player.evicted)
        assert pool.tenants[1].in_use >= pool.tenants[1].min
        released = {(step.tenant, step.pod) for step in steps if step.what is What.RELEASED}
        waited = {(step.tenant, step.pod) for step in steps if step.what is What.WAITS}
        assert ("research", "sweep-8") in released
        assert released <= waited | {("research", "evaluate")}, (
            "who is released late was shown to wait, or vetoed"
        )


async def test_an_evicted_pod_leaves_after_its_grace_and_stands_in_line_again() -> None:
    async with playing("three-tenants") as (_, player, steps):
        await player.play()
        first = player.evicted[0]
        winner = next(
            step
            for step in of(steps, What.RELEASED, "inference")
            if step.node == first.node and step.at > first.at
        )
        assert winner.at == first.at + 30, "the gate is lifted when the victim has left"
        again = next(step for step in of(steps, What.WAITS, first.tenant, first.pod) if step.at > first.at)
        assert again.at == first.at + 30
        assert again.why.startswith("created again after its eviction: It is number ")


@pytest.mark.parametrize("foreign", ["deny", "rewrite"])
async def test_another_scheduler_takes_nothing_where_the_policy_forbids_it(
    tmp_path: Path, foreign: str
) -> None:
    file = tmp_path / "own.yaml"
    intruder = "{name: stray, namespace: team, asks: {nvidia.com/gpu: 2}}"
    policy = f"{{name: p, foreignScheduler: {foreign}, tenants: [{{name: team, weight: 1}}]}}"
    file.write_text(
        OWN.replace(
            "runs: 1h, asks: {nvidia.com/gpu: 2}",
            f"runs: 1h, asks: {{nvidia.com/gpu: 2}}, intruder: {intruder}",
        )
        + f"policies: [{policy}]\n"
    )
    async with playing(str(file)) as (_, player, steps):
        await player.play()
        assert [step.pod for step in of(steps, What.BOUND, "team")] == ["first", "second"]
        assert not player.vetoed
        assert not of(steps, What.PAST_US, "team")


async def test_a_pod_that_its_tenants_queue_cannot_hold_is_refused_at_create(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    tenant = "{name: team, weight: 1, queueDepth: 1}"
    file.write_text(
        OWN.replace("never", "later").replace("gpu: 3", "gpu: 1")
        + f"policies: [{{name: p, tenants: [{tenant}]}}]\n"
    )
    async with playing(str(file)) as (_, player, steps):
        await player.play()
        [refused] = [step for step in steps if step.what is What.REFUSED]
        assert refused.pod == "later"
        assert "the queue of tenant team is full: 1 of 1 pods wait" in refused.why
        assert [step.pod for step in of(steps, What.BOUND, "team")] == ["first", "second"]
        assert not player.waiting


def test_after_the_play_the_verbs_serve_until_sigterm(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(OWN + "policies: [{name: p, tenants: [{name: team, weight: 1}]}]\nends: 10m\n")
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
                found = json.load(answer)
                assert found["NodeNames"] == []
                assert "stands in line" in found["FailedAndUnresolvableNodes"]["one"]
            with urllib.request.urlopen(f"{addresses[1]}/readyz", timeout=10) as answer:
                assert answer.read() == b"ok\n"
            with urllib.request.urlopen(f"{addresses[1]}/shares", timeout=10) as answer:
                [pool] = json.load(answer)["pools"]
                assert [row["waiting"] for row in pool["tenants"]] == [1]
            with urllib.request.urlopen(f"{addresses[1]}/line", timeout=10) as answer:
                assert json.load(answer)["pools"][0]["pods"][0]["pod"] == "second"
            with urllib.request.urlopen(f"{addresses[1]}/explain?pod=team/second", timeout=10) as answer:
                assert "It is number 1 of tenant team in line." in answer.read().decode()
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
        "kvitej: The play did not go as its file expects: 2 pods were bound, 0 vetoed at Bind and 0 evicted, "
        "and expect says 3, 0 and 0.\n"
    )


def test_a_cluster_that_is_not_there_is_one_sentence() -> None:
    ended = subprocess.run([*SERVE, "nowhere", "--once"], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("kvitej: There is no cluster 'nowhere': ")
    assert "three-tenants" in ended.stderr
    assert ended.stderr.count("\n") == 1


async def test_the_book_agrees_with_the_cluster_after_the_play() -> None:
    async with playing("three-tenants") as (running, player, steps):
        await player.play()
        running.state.check()
        book = running.state.snapshot()
        assert running.wait.planner is not None
        running.wait.planner.check()
        there: dict[tuple[str, str], Step] = {}
        for step in steps:
            if step.what in (What.BOUND, What.PAST_US):
                there[step.tenant, step.pod] = step
            elif step.what in (What.ENDED, What.EVICTED):
                del there[step.tenant, step.pod]
        seats = {(seat.namespace, seat.name): seat for seat in book.seats.values()}
        assert {key: seat.node for key, seat in seats.items()} == {
            key: step.node for key, step in there.items()
        }
        assert all(seat.phase is Phase.BOUND for seat in seats.values())
        assert not book.claims
        waiting = {(each.pod.metadata.namespace, each.pod.metadata.name) for each in book.waiting.values()}
        assert waiting == set(player.waiting)
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
    screen.step(Step(3661.0, What.VETOED, "research", "notebook-1", "1 mig-1g.10gb", "mig", "MIG", why))
    lines = out.getvalue().splitlines()
    assert "…" not in out.getvalue()
    assert all(len(line) <= width for line in lines)
    assert all(word in out.getvalue() for word in why.split())
    if width >= 80:
        assert (
            "1:01:01  vetoed       research   notebook-1  1 mig-1g.10gb       mig     MIG" in out.getvalue()
        )
    assert (len(lines) == 2) == (width == PIPED_WIDTH)


@pytest.mark.parametrize(("width", "left_out"), [(80, True), (PIPED_WIDTH, False)])
async def test_the_shares_are_shown_in_full_words_at_any_width(width: int, left_out: bool) -> None:
    out = io.StringIO()
    async with playing("three-tenants") as (running, player, _):
        screen = Screen(Console(file=out, width=width), player.file)
        screen.summary(player, running.state.snapshot(), running.shares())
    assert "myfair-cluster: 0 of 46.1 GPUs in use, 0 pods wait" in out.getvalue()
    assert "…" not in out.getvalue()
    assert ("weight" not in out.getvalue()) == left_out
    assert "longest wait" in out.getvalue()
