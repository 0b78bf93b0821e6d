"""The memory story: what agents report of cards counts in every door of the embedded cluster."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
from msgspec.structs import replace

from _core import WATERMARK
from extender.cluster.request import request_of
from extender.config import Config
from extender.decide.place import fits
from extender.serve.embedded import embedded
from extender.simulate.clusterfile import find
from extender.simulate.player import PATIENCE, STEP
from extender.simulate.story import Step, What
from tests.builders import SHARED, filter_body, pod, raw_pod
from tests.simulate.test_play import SERVE, of, playing

CARDS = """
nodes:
  - name: one
    allocatable: {cpu: 8, memory: 8Gi, nvidia.com/gpu: 2}
    agent: {memory: 80Gi}
tenants: [team]
processes: [{name: stranger, node: one, card: 1, takes: 2Gi, at: 10s, runs: 50s}]
pods:
  - {name: first, tenant: team, at: 30s, runs: 1m, asks: {nvidia.com/gpu: 1}}
  - {name: never, tenant: team, at: 2m, runs: 1m, asks: {nvidia.com/gpu: 3}}
"""


def test_the_shipped_story_plays_to_its_expectation() -> None:
    ended = subprocess.run([*SERVE, "memory-pressure", "--once"], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
    lines = ended.stdout.splitlines()
    assert all(line == line.rstrip() for line in lines), "no blanks at the end of lines"
    [veto] = [line for line in lines if line.startswith("1 vetoed at Bind: ")]
    assert veto == (
        "1 vetoed at Bind: inference/embed: a GPU that the kubelet could give the pod would be filled beyond its "
        "watermark: GPU 1 (GPU-a100-1) of a100: 56.0 GiB used, 0.0 GiB declared by others and not used yet, 32.0 GiB "
        "declared by the pod, and the watermark of 85 % of 79.4 GiB, less 0.8 GiB that may be in use unreported, is "
        "66.7 GiB"
    )
    cards = [line.split() for line in lines if line.startswith(("a100 ", "h100 "))]
    assert cards[0] == ["a100", "0", "healthy", "32.0", "GiB", "32.0", "GiB", "66.7", "GiB", "80.0", "GiB"]
    assert [row[:2] for row in cards] == [
        ["a100", "0"],
        ["a100", "1"],
        *(["h100", str(card)] for card in range(4)),
    ]


async def test_no_door_gives_the_card_while_a_process_has_it_and_all_flows_again_when_it_leaves() -> None:
    async with playing("memory-pressure") as (_, player, steps):
        await player.play()
        assert player.unexpected() == ""
    [came] = [step for step in of(steps, What.INTRUDES, "") if step.pod == "jupyter"]
    [went] = [step for step in of(steps, What.ENDED, "") if step.pod == "jupyter"]
    assert (came.node, came.cards, went.at - came.at) == ("a100", "1", 360)
    [veto] = of(steps, What.VETOED, "inference", "embed")
    assert veto.at == came.at
    # Refused by the planner, with the same reason as at Bind.
    waits = [*of(steps, What.WAITS, "inference", "embed"), *of(steps, What.WAITS, "research", "notebook")]
    assert [step.at for step in waits] == [120, 180]
    assert all(
        "beyond its watermark: GPU 1 (GPU-a100-1) of a100: 56.0 GiB used" in step.why for step in waits
    )
    # What needs little is bound meanwhile.
    [rerank] = of(steps, What.BOUND, "inference", "rerank")
    assert came.at < rerank.at < went.at
    assert "8 GiB of card 1" in rerank.why, "what the process has is not left"
    # And within one report all goes on.
    flows = [*of(steps, What.BOUND, "inference", "embed"), *of(steps, What.BOUND, "research", "notebook")]
    assert [step.at for step in flows] == [went.at + 5, went.at + 5]


async def test_filter_refuses_the_node_with_the_reason_while_the_process_is_there() -> None:
    file = find("memory-pressure")
    answers: dict[str, dict[str, Any]] = {}

    async def show(step: Step) -> None:
        if (step.what, step.pod) in ((What.WAITS, "notebook"), (What.WELL, "")):
            for memory in ("32Gi", "2Gi"):
                guest = raw_pod("guest", {SHARED: 1}, memory=memory)
                guest["spec"]["schedulerName"] = "nobody-of-ours"
                body = filter_body(guest, ["a100"])
                async with session.post("/filter", data=body) as answer:
                    answers[f"{step.what.value} {memory}"] = await answer.json()

    async with (
        embedded(file, Config(), "127.0.0.1", 0, ("127.0.0.1", 0)) as running,
        aiohttp.ClientSession(running.verbs_at) as session,
    ):
        await running.player(file, show).play()
    refused = answers["waits 32Gi"]
    assert refused["NodeNames"] == []
    assert refused["FailedNodes"] == {
        "a100": "a GPU that the kubelet could give the pod would be filled beyond its watermark"
    }
    assert answers["waits 2Gi"]["NodeNames"] == ["a100"]
    assert answers["well 2Gi"]["NodeNames"] == ["a100"]


async def test_whole_cards_wait_for_an_ill_card_and_for_a_process_that_is_left_over() -> None:
    async with playing("memory-pressure") as (_, player, steps):
        await player.play()
    [waits] = of(steps, What.WAITS, "training", "finetune")
    assert waits.why.endswith("GPU 1 (GPU-h100-1) of h100: Xid 79: the GPU has fallen off the bus.")
    [well] = of(steps, What.WELL, "")
    [left] = [step for step in of(steps, What.ENDED, "") if step.pod == "leftover"]
    [bound] = of(steps, What.BOUND, "training", "finetune")
    assert well.at < left.at < bound.at == left.at + 5


async def test_the_book_follows_the_kubelet_and_the_agents_silence_is_told() -> None:
    async with playing("memory-pressure") as (running, player, steps):
        await player.play()
        running.state.check()
        book = running.state.snapshot()
        assert all(seat.told for seat in book.seats.values())
        assert not any(report.stale for report in book.reports.values())
        seats = {seat.name: seat.cards for seat in book.seats.values()}
        pretrain = seats["pretrain"]
        assert pretrain is not None
        assert pretrain.whole == (2, 3)
    [moved] = of(steps, What.MOVED, "training", "pretrain")
    assert (moved.at, moved.cards) == (5, "2-3")
    assert (
        moved.why
        == "planned on GPU 0, GPU 1, and the kubelet gave it GPU 2, GPU 3: the book follows the node"
    )
    [probe] = of(steps, What.BOUND, "research", "probe")
    silence = [step for step in steps if step.what in (What.SILENT, What.BACK)]
    assert [step.what for step in silence] == [What.SILENT, What.SILENT, What.BACK]
    assert silence[1].at < probe.at < silence[2].at
    assert "the agent of node a100 has not reported for 91 s" in silence[1].why


async def test_at_no_step_is_a_card_filled_beyond_its_watermark_by_a_bind() -> None:
    file = find("memory-pressure")
    bound = 0
    forty_percent = request_of(pod("new", {SHARED: 1}, memory="32Gi"))

    async def show(step: Step) -> None:
        nonlocal bound
        book = running.state.snapshot()
        table, row = book.table, book.index.get("a100")
        assert np.all(table.memory_used[row] + table.extra[row] <= table.memory[row])
        bound += step.what is What.BOUND
        if came + 5 <= step.at <= came + 360:
            ask = book.ask(forty_percent)
            assert ask is not None
            assert fits(table, row, ask) == WATERMARK

    came = 120
    async with embedded(file, Config(), "127.0.0.1", 0, ("127.0.0.1", 0)) as running:
        await running.player(file, show).play()
    assert bound == 8


async def test_without_the_process_the_story_is_another_and_says_so() -> None:
    file = find("memory-pressure")
    file = replace(file, pods=tuple(replace(kind, process=None) for kind in file.pods))

    async def show(step: Step) -> None: ...

    async with embedded(file, Config(), "127.0.0.1", 0, ("127.0.0.1", 0)) as running:
        player = running.player(file, show)
        await player.play()
    assert player.unexpected() == (
        "The play did not go as its file expects: 8 pods were bound, 0 vetoed at Bind and 0 evicted, "
        "and expect says 8, 1 and 0."
    )


async def test_agents_that_look_on_and_on_do_not_keep_a_play_going(tmp_path: Path) -> None:
    path = tmp_path / "cards.yaml"
    path.write_text(CARDS)
    async with playing(str(path)) as (running, player, steps):
        await player.play()
        assert player.waiting == [("team", "never")]
        assert running.clock() <= 125 + PATIENCE + STEP
    [bound] = of(steps, What.BOUND, "team", "first")
    assert bound.at == 65, "not before the process has left and the agent has told"


async def test_a_process_comes_only_to_a_card_that_is_there_and_seen(tmp_path: Path) -> None:
    path = tmp_path / "cards.yaml"
    path.write_text(CARDS.replace("gpu: 1}}", "gpu: 1}, process: {name: x, card: 7, takes: 1Gi, runs: 1m}}"))
    async with playing(str(path)) as (_, player, steps):
        await player.play()
    assert [step.pod for step in of(steps, What.INTRUDES, "")] == ["stranger"]
    assert not player.vetoed
