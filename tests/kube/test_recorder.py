"""Events on pods: complete, never blocking, never repeated in a row."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from extender.kube.client import Client
from extender.kube.recorder import LONGEST_MESSAGE, WAITING, Recorder
from tests.fakes.apiserver import FakeApiServer
from tests.kube.conftest import until


@pytest.fixture
async def recorder(client: Client) -> AsyncIterator[Recorder]:
    recorder = Recorder(client)
    task = asyncio.create_task(recorder.run())
    yield recorder
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def veto(recorder: Recorder, name: str = "p", message: str = "GPU 0 is taken.") -> None:
    recorder.record(namespace="team", name=name, uid=f"uid-{name}", reason="BindVetoed", message=message)


async def test_an_event_names_the_pod_the_reason_and_who_says_so(
    server: FakeApiServer, recorder: Recorder
) -> None:
    veto(recorder)
    await until(lambda: recorder.written == 1)
    (event,) = server.recorded
    assert event["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": "team",
        "name": "p",
        "uid": "uid-p",
    }
    assert (event["type"], event["reason"], event["message"]) == ("Warning", "BindVetoed", "GPU 0 is taken.")
    assert event["source"] == {"component": "kvitej"}
    assert event["metadata"]["namespace"] == "team"
    assert event["firstTimestamp"] == event["lastTimestamp"]
    assert event["count"] == 1


async def test_the_same_event_is_not_repeated_but_another_is_written(
    server: FakeApiServer, recorder: Recorder
) -> None:
    for _ in range(3):
        veto(recorder)
    veto(recorder, message="GPU 1 is taken.")
    veto(recorder, name="q")
    await until(lambda: recorder.written == 3)
    assert recorder.repeated == 2
    assert len({event["metadata"]["name"] for event in server.recorded}) == 3


async def test_a_message_is_cut_to_what_the_server_takes(server: FakeApiServer, recorder: Recorder) -> None:
    veto(recorder, message="né " * 1000)
    await until(lambda: recorder.written == 1)
    message = server.recorded[0]["message"]
    assert LONGEST_MESSAGE - 4 <= len(message.encode()) <= LONGEST_MESSAGE
    assert message.endswith("…")


async def test_what_the_server_refuses_is_counted_and_the_next_is_written(
    server: FakeApiServer, recorder: Recorder
) -> None:
    server.refuse = 500
    veto(recorder, name="p")
    await until(lambda: recorder.failed == 1)
    server.refuse = None
    veto(recorder, name="q")
    await until(lambda: recorder.written == 1)


async def test_more_than_the_queue_holds_is_dropped_and_counted(client: Client) -> None:
    recorder = Recorder(client)
    for i in range(WAITING + 5):
        veto(recorder, name=f"p{i}")
    assert recorder.dropped == 5
