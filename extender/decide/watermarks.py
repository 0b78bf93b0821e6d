"""How far the cards of each pool may be filled: as its policy says, and further while capacity is on its way.

A policy with `dynamicWatermark` lets its cards be filled up to a higher mark while pods wait for nodes that an
autoscaler was asked for: what is squeezed in now can spread out then. The mark moves in steps, so that a wait that
comes and goes does not.
"""

from dataclasses import dataclass, field

from extender.fairness.policy import Policy

STEPS = 2
PAUSE = 10.0
"""Seconds between two steps."""


@dataclass(slots=True)
class _Mark:
    base: float
    at: float
    next: float = 0.0


@dataclass(slots=True)
class Watermarks:
    """The watermark of each pool at the moment, by policy."""

    _marks: dict[str, _Mark] = field(default_factory=dict)

    def of(self, policy: Policy) -> float | None:
        """The part of a card's memory that may be filled; None: as is usual."""
        mark = self._marks.get(policy.name)
        if mark is None or policy.watermark_max is None or policy.watermark not in (None, mark.base):
            return policy.watermark
        return min(mark.at, max(mark.base, policy.watermark_max))

    def step(self, policy: Policy, coming: bool, usual: float, now: float) -> bool:
        """Let the mark rise or fall by a step if it is time; tells whether it moved.

        `coming`: pods wait for capacity that was asked for. `usual` is the mark of pools whose policy says nothing.
        """
        if policy.watermark_max is None:
            return self._marks.pop(policy.name, None) is not None
        base = policy.watermark if policy.watermark is not None else usual
        most = max(base, policy.watermark_max)
        mark = self._marks.get(policy.name)
        if mark is None or mark.base != base or mark.at > most:
            # A policy that says otherwise than before holds at once.
            was = mark.at if mark is not None else base
            mark = self._marks[policy.name] = _Mark(base, base)
            if was != base:
                return True
        if now < mark.next:
            return False
        step = (most - base) / STEPS
        # Whole steps from the base, so that what goes up comes down to where it was.
        steps = round((mark.at - base) / step) if step else 0
        steps = min(steps + 1, STEPS) if coming else max(steps - 1, 0)
        at = most if steps == STEPS else base + steps * step
        moved = at != mark.at
        mark.at = at
        if moved:
            mark.next = now + PAUSE
        return moved
