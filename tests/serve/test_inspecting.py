"""What is known of the cards over HTTP: plain on loopback, by token where reviews arrive, as `kvitej devices` tells."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import yaml
from click.testing import CliRunner
from rich.console import Console

from extender.__main__ import main
from extender.cardtable import table_of
from extender.cluster.events import NodeGone, NodeSeen
from extender.config import Config
from extender.decide.cards import cards_of, nodes_with_cards
from extender.kube.access import Access
from extender.kube.client import connect
from extender.serve import inspecting
from extender.serve.app import operations, reviews
from extender.serve.book import Book
from extender.serve.inspecting import DevicesDoor
from extender.serve.listening import listening
from extender.serve.metrics import Metrics
from extender.serve.tokens import ByToken
from extender.wire.cards import Devices
from tests.builders import GPU, book, node
from tests.cards import clinic
from tests.fakes.apiserver import FakeApiServer
from tests.serve import reviews as webhook
from tests.serve.test_sharing import Serving, get


class Clinic:
    """The listener that answers about a book with one node of each kind."""

    def __init__(self) -> None:
        self.unfit: str | None = None
        self.book = Book(clinic(), lambda: self.unfit)
        self.at = ""

    @property
    def http(self) -> str:
        return self.at.removeprefix("http://")


@pytest.fixture
async def serving() -> AsyncIterator[Clinic]:
    found = Clinic()
    app = operations(found.book, Metrics(found.book.snapshot, lambda: ()))
    async with listening(app, "127.0.0.1", 0) as found.at:
        yield found


async def test_all_nodes_that_have_cards_or_one(serving: Clinic) -> None:
    snapshot = serving.book.snapshot()
    status, text = await get(serving.at, "/devices")
    found = msgspec.json.decode(text, type=Devices)
    assert (status, found.nodes) == (200, [cards_of(snapshot, name) for name in nodes_with_cards(snapshot)])
    status, text = await get(serving.at, "/devices?node=mig")
    assert (status, msgspec.json.decode(text, type=Devices).nodes) == (200, [cards_of(snapshot, "mig")])
    for name in ("none", ""):
        assert await get(serving.at, f"/devices?node={name}") == (
            404,
            f"kvitej knows no node {name!r}: /devices lists all that have GPUs.\n",
        )


async def test_nothing_is_told_while_the_book_is_unfit(serving: Clinic) -> None:
    serving.unfit = "the book is stale"
    for path in ("/devices", "/devices?node=mig"):
        assert await get(serving.at, path) == (503, "the book is stale\n")


async def test_a_long_answer_lets_others_work_and_leaves_out_what_has_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(inspecting, "AT_ONCE", 2)
    state = book(*(node(f"n{at}", {GPU: 1}) for at in range(5)))
    answer = asyncio.create_task(DevicesDoor(Book(state)).all())
    await asyncio.sleep(0)
    state.apply(NodeGone("n4"))
    state.apply(NodeSeen(node("n3", {GPU: 2})))
    found = msgspec.json.decode(await answer, type=Devices).nodes
    assert [(each.node, len(each.cards)) for each in found] == [("n0", 1), ("n1", 1), ("n2", 1), ("n3", 2)]


# over TLS, by token


@pytest.fixture
async def guarded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[str]:
    monkeypatch.setenv("SSL_CERT_FILE", os.devnull)
    async with FakeApiServer() as server:
        server.users = {name: {"username": name} for name in ("admin", "tenant")}
        server.rights = {
            ("admin", "get", "gpunodes.kvitej.io", ""),
            ("tenant", "get", "fairnesspolicies.kvitej.io", ""),
        }
        async with await connect(server.write_kubeconfig(tmp_path / "kubeconfig")) as client:
            shares = (Serving().door, ByToken(Access(client, 1.0)))
            app = reviews(webhook.Served().door, Config(), shares)
            async with listening(app, "127.0.0.1", 0) as at:
                yield at


@pytest.mark.parametrize("path", ["/devices", "/devices?node=n0"])
@pytest.mark.parametrize(("token", "status"), [("admin", 200), ("tenant", 403), ("stolen", 401), (None, 401)])
async def test_a_token_opens_it_that_may_get_gpunodes(
    guarded: str, path: str, token: str | None, status: int
) -> None:
    found, text = await get(guarded, path, token)
    assert found == status
    if status == 403:
        assert text == "tenant may not see this: it takes the right to get gpunodes.kvitej.io.\n"


async def test_whoever_may_not_see_it_is_not_told_which_nodes_there_are(guarded: str) -> None:
    assert (await get(guarded, "/devices?node=none", "tenant"))[0] == 403
    assert (await get(guarded, "/devices?node=none", "admin"))[0] == 404


# kvitej devices


async def run(*arguments: str) -> tuple[int, str]:
    result = await asyncio.to_thread(CliRunner().invoke, main, ["devices", *arguments])
    return result.exit_code, result.output


def lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines()]


async def test_the_table_of_one_node(serving: Clinic) -> None:
    code, text = await run("whole", "--http", serving.http)
    assert code == 0
    assert lines(text)[:-2] == [
        "whole: 4 × NVIDIA H100 80GB HBM3, 3 of 4 gpu taken",
        "agent reported 5 s ago, watermark 85 %, the kubelet chooses the card",
        "Pod team/ghost is gone, and the kubelet still holds devices for it; if that lasts, restart the kubelet.",
        "GPU  state                total  used  others  promised  limit  links        who",
        "0    ok                    80.0  60.0     0.0       0.0   68.0  SYS to NV18  team/train: given, uses 60.0",
        "1    ok                    80.0  40.0     0.0       0.0   68.0  SYS to NV18  team/train: given, uses 40.0",
        "2    unhealthy, withheld   80.0   0.0     0.0       0.0   68.0  SYS to NV18  -",
        "3    occupied, withheld    80.0   5.0     5.0       0.0   68.0  SYS          team/ghost: leaked",
        "GPU 2 takes no new work: Xid 79: the card has fallen off the bus.",
        "GPU 2 is not among the devices that the kubelet can give.",
        "GPU 3 goes to nobody as a whole: processes that nobody scheduled use 5.0 GiB of it.",
        "",
        "       uuid   GPU0  GPU1  GPU2  GPU3",
        "GPU 0  GPU-0  X     NV18  NV18  SYS",
        "GPU 1  GPU-1  NV18  X     NV18  SYS",
        "GPU 2  GPU-2  NV18  NV18  X     SYS",
        "GPU 3  GPU-3  SYS   SYS   SYS   X",
    ]


async def test_the_table_of_all_says_what_is_planned_and_what_is_given(serving: Clinic) -> None:
    code, text = await run("--http", serving.http)
    assert code == 0
    found = [" ".join(line.split()) for line in lines(text)]
    for told in (
        "no agent, watermark 85 %, the kubelet chooses the card",
        "1 ? 80.0 ? ? 0.0 68.0 team/seen: planned",
        "On a card that is not known: team/unseen.",
        "1 MIG ok 80.0 9.0 2.0 - - team/half: given, 3g.40gb at 4, uses 7.0",
        "free: 3g.40gb at 0",
        "0 ok 80.0 5.0 0.0 25.0 67.1 team/one: given, 1 share, uses 5.0 of 20.0",
        "team/two: planned, 1 share, uses 0.0 of 10.0",
        "1 occupied 80.0 30.0 30.0 10.0 67.1 -",
        "agent silent for 100 s, watermark 85 %, the kubelet chooses the card",
    ):
        assert told in found
    assert "GPU-0" not in text
    assert found[-1].endswith("given: the kubelet has said so.")


@pytest.mark.parametrize("full", [False, True])
def test_a_terminal_of_100_columns_is_wide_enough(full: bool) -> None:
    snapshot = clinic().snapshot()
    devices = Devices([cards_of(snapshot, name) for name in nodes_with_cards(snapshot)])
    console = Console(width=100, highlight=False)
    with console.capture() as capture:
        console.print(table_of(devices, full))
    shown = capture.get()
    assert all(len(line) <= 100 for line in shown.splitlines())
    assert "…" not in shown
    words = " ".join(shown.split())
    assert "team/train: given" in words
    assert "team/one: given, 1 share, uses 5.0 of 20.0" in words


def test_no_node_has_gpus_is_a_sentence() -> None:
    console = Console(width=100)
    with console.capture() as capture:
        console.print(table_of(Devices([])))
    assert capture.get() == "No node has GPUs.\n"


async def test_json_and_yaml_are_what_the_listener_answers(serving: Clinic) -> None:
    _, text = await get(serving.at, "/devices?node=shared")
    code, printed = await run("shared", "-o", "json", "--http", serving.http)
    assert (code, json.loads(printed)) == (0, json.loads(text))
    code, printed = await run("shared", "-o", "yaml", "--http", serving.http)
    assert (code, yaml.safe_load(printed)) == (0, json.loads(text))


async def test_a_node_that_is_none_and_a_port_without_kvitej_end_with_a_sentence(serving: Clinic) -> None:
    code, text = await run("a b", "--http", serving.http)
    assert (code, text) == (2, "kvitej: kvitej knows no node 'a b': /devices lists all that have GPUs.\n")
    code, text = await run("--http", "127.0.0.1:1")
    assert code == 2
    assert text.startswith("kvitej: No `kvitej serve` answers at 127.0.0.1:1")
