"""The driver's library, asked within time limits and opened again when the driver was: `Nvml.sample` → `Sample`.

Whatever fails is part of the sample: a node without a driver, a library of another version, a card that is lost or
hangs. Each card has a thread of its own, so that one that hangs does not silence the others. What can't change while
the library is open (models, placements, links) is read once.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import pynvml

from extender.agent import card as cards
from extender.agent.card import Handle, Lost, Reader
from extender.agent.links import links
from extender.agent.processes import command_of
from extender.agent.sample import Card, Sample
from extender.agent.worker import Hangs, Worker, answer
from extender.wire.gpunode import GPU, Links, Problem, Profile, Unreadable

PATIENCE = 3.0
"""Seconds that one sample may take in all."""
OPENING = 15.0
"""The same where the library has to be opened: a driver that nobody uses wakes each card first."""
REOPEN_AFTER = 60.0
"""Seconds between two openings of the library while a card is lost: only so it can be seen coming back."""

_MOST_EVENTS = 256
_DENIED = str(pynvml.NVMLError(pynvml.NVML_ERROR_NO_PERMISSION)).lower()
_PROBLEMS = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: Problem(
        "NoLibrary", "There is no NVIDIA driver here: its library libnvidia-ml.so.1 is not found."
    ),
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: Problem("NoDriver", "The NVIDIA driver is not loaded."),
    pynvml.NVML_ERROR_GPU_NOT_FOUND: Problem("NoGPU", "The NVIDIA driver sees no GPU."),
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: Problem(
        "VersionMismatch",
        "The NVIDIA library and the driver that is loaded are of different versions; restart the agent, and if "
        "that does not help the node.",
    ),
    pynvml.NVML_ERROR_NO_PERMISSION: Problem(
        "NoPermission", "The NVIDIA driver refuses the agent; run it as root with access to /dev/nvidia*."
    ),
}
_HANGS = Problem("DriverHangs", "The NVIDIA driver does not answer.")


@dataclass(frozen=True, slots=True)
class _Known:
    """A card's handle and what does not change; profiles may, with the MIG mode."""

    handle: Handle
    gpu: GPU
    mig: bool | None
    profiles: list[Profile]
    unreadable: list[Unreadable]


class _Session:
    """The library from one opening to the next; indices and handles are good for as long."""

    def __init__(self, driver: str, events: Any, command: Callable[[int], str]) -> None:
        self.driver = driver
        self.awake = False
        self.known: dict[int, _Known] = {}
        self.links: Links | None = None
        self._events = events
        self._command = command
        self._workers: dict[int, Worker] = {}

    def start(self, index: int) -> Future[Card]:
        """Begin to read a card; raises Hangs while an earlier reading has not ended."""
        worker = self._workers.setdefault(index, Worker(f"nvml-{index}"))
        return worker.start(lambda: self._read(index))

    @property
    def hangs(self) -> bool:
        """Whether a card's last reading has not ended: another opening would leave its thread behind."""
        return any(worker.busy for worker in self._workers.values())

    def close(self) -> None:
        for worker in self._workers.values():
            worker.close()

    def lost(self, index: int, sentence: str) -> Card:
        known = self.known.get(index)
        return Card(known.gpu, known.profiles, sentence) if known else Card(GPU("", index), lost=sentence)

    def xids(self) -> dict[int, list[int]]:
        """By index: the errors that have come since the last call."""
        found: dict[int, list[int]] = {}
        if self._events is None:
            return found
        at = {_address(known.handle): index for index, known in list(self.known.items())}
        for _ in range(_MOST_EVENTS):
            try:
                event = pynvml.nvmlEventSetWait_v2(self._events, 1)
            except pynvml.NVMLError:
                break
            index = at.get(_address(event.device))
            if index is not None and event.eventType == pynvml.nvmlEventTypeXidCriticalError:
                found.setdefault(index, []).append(event.eventData)
        return found

    def find_links(self, indices: list[int]) -> Links | None:
        return links([(self.known[index].gpu, self.known[index].handle) for index in indices])

    def _read(self, index: int) -> Card:
        try:
            known = self._know(index)
            reader = Reader()
            reader.unreadable.extend(known.unreadable)
            card = Card(known.gpu, known.profiles, mig=known.mig)
            cards.fill(card, known.handle, self._command, reader)
            return card
        except Lost as error:
            return self.lost(index, str(error))
        except pynvml.NVMLError as error:
            said = str(error).rstrip(".").lower()
            return self.lost(index, cards.lost(error) or f"The driver refuses the card: {said}.")

    def _know(self, index: int) -> _Known:
        """What is known of the card; kept unless the driver refused a part that it may give later."""
        known = self.known.get(index)
        reader = Reader()
        handle = known.handle if known else pynvml.nvmlDeviceGetHandleByIndex(index)
        mig = cards.mig_mode(handle, reader)
        if known and known.mig == mig and all(part.why == _DENIED for part in known.unreadable):
            return known
        gpu = cards.identity(handle, index, reader)
        profiles = [] if mig is None else cards.profiles(handle, reader)
        registered = known is not None and all(part.what != "xids" for part in known.unreadable)
        if self._events is not None and not registered:
            reader.ask(
                "xids",
                pynvml.nvmlDeviceRegisterEvents,
                handle,
                pynvml.nvmlEventTypeXidCriticalError,
                self._events,
            )
        known = _Known(handle, gpu, mig, profiles, reader.unreadable)
        if gpu.uuid:
            self.known[index] = known
        return known


class Nvml:
    """One reader of a node's driver. `command` gives the name of a process by its pid."""

    def __init__(
        self,
        patience: float = PATIENCE,
        opening: float = OPENING,
        command: Callable[[int], str] = command_of,
    ) -> None:
        self._patience = patience
        self._opening = opening
        self._command = command
        self._driver = Worker("nvml")
        self._session: _Session | None = None
        self._opened = 0.0
        self._lost = False

    def sample(self, when: float) -> Sample:
        """Look at everything once. Never raises for what the driver does; `when` is seconds since 1970."""
        began = time.monotonic()
        try:
            if self._lost and not 0 <= when - self._opened < REOPEN_AFTER:
                self._close(began + self._patience)
            session, count = self._open(when, began)
        except Hangs:
            return Sample(when, problem=_HANGS)
        except pynvml.NVMLError as error:
            return Sample(when, problem=_problem(error))
        if not count:
            return Sample(when, session.driver, problem=_PROBLEMS[pynvml.NVML_ERROR_GPU_NOT_FOUND])
        deadline = began + (self._patience if session.awake else self._opening)
        sample = Sample(when, session.driver, self._cards(session, count, deadline))
        session.awake = True
        self._lost = any(card.lost for card in sample.cards) and not session.hangs
        try:
            # Time is left for these even if a card has used it up.
            late = max(deadline, time.monotonic() + self._patience / 4)
            for index, codes in answer(self._driver.start(session.xids), late - time.monotonic()).items():
                sample.cards[index].xids = codes
            sample.links = self._links(session, sample.cards, late)
        except Hangs:
            sample.links = session.links
        return sample

    def close(self) -> None:
        """Let go of the driver; may leave a call behind that hangs."""
        with contextlib.suppress(Hangs):
            self._close(time.monotonic() + self._patience)
        self._driver.close()

    def _open(self, when: float, began: float) -> tuple[_Session, int]:
        """The session, and how many cards there are; opened again if the driver has been."""
        if self._session is not None:
            try:
                count = self._ask(pynvml.nvmlDeviceGetCount, began + self._patience)
                return self._session, count
            except pynvml.NVMLError:
                self._close(began + self._patience)
        deadline = began + self._opening
        self._opened = when
        self._session = self._ask(self._begin, deadline)
        return self._session, self._ask(pynvml.nvmlDeviceGetCount, deadline)

    def _begin(self) -> _Session:
        pynvml.nvmlInit()
        driver = pynvml.nvmlSystemGetDriverVersion()
        try:
            events = pynvml.nvmlEventSetCreate()
        except pynvml.NVMLError:
            events = None
        return _Session(driver, events, self._command)

    def _close(self, deadline: float) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None
            self._ask(_shutdown, deadline)

    def _ask(self, call: Callable[[], Any], deadline: float) -> Any:
        return self._driver.call(call, deadline - time.monotonic())

    def _cards(self, session: _Session, count: int, deadline: float) -> list[Card]:
        readings: list[Future[Card] | None] = []
        for index in range(count):
            try:
                readings.append(session.start(index))
            except Hangs:
                readings.append(None)
        found = []
        for index, reading in enumerate(readings):
            try:
                if reading is None:
                    raise Hangs
                found.append(answer(reading, deadline - time.monotonic()))
            except Hangs:
                found.append(session.lost(index, "The driver does not answer about the card."))
        return found

    def _links(self, session: _Session, found: list[Card], deadline: float) -> Links | None:
        if session.links is None:
            indices = [index for index, card in enumerate(found) if not card.lost and card.gpu.uuid]
            among = self._ask(lambda: session.find_links(indices), deadline) if indices else None
            if len(indices) < len(found):
                return among
            session.links = among
        return session.links


def _problem(error: pynvml.NVMLError) -> Problem:
    said = str(error).rstrip(".").lower()
    return _PROBLEMS.get(error.value) or Problem(
        "DriverError", f"The NVIDIA driver answers with an error: {said}."
    )


def _shutdown() -> None:
    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlShutdown()


def _address(handle: Handle) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value
