"""Reads the rules of a FairnessPolicy; as in `reading`, everything that the CRD holds is checked once more."""

import re
from collections.abc import Sequence
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from extender.fairness import fields
from extender.fairness.fields import PolicyError
from extender.fairness.rules import (
    USUAL_FORMS,
    Closed,
    Demand,
    Form,
    Forms,
    Headroom,
    MaxGpus,
    MinMemory,
    Models,
    Rule,
)
from extender.fairness.window import DAY, DAYS, Window
from extender.wire import policy as wire
from extender.wire.quantity import QuantityError, whole

MOST_MEMORY = 2**50
"""More bytes than any machine has."""

_TIME = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])|24:00", re.ASCII)
_PERCENT = re.compile(r"([0-9]{1,3}(?:[.][0-9]{1,6})?)%", re.ASCII)


def read_rules(found: Sequence[wire.RuleSpec], tenants: frozenset[str]) -> tuple[Rule, ...]:
    """The rules of a policy with these tenants, in its order.

    Raises PolicyError for the first field that cannot be read or contradicts another.
    """
    rules: list[Rule] = []
    for index, each in enumerate(found):
        path = f"spec.rules[{index}]"
        rule = _rule(each, path)
        if any(other.name == rule.name for other in rules):
            raise PolicyError(f"{path}: the name {rule.name!r} is taken already; rename one.")
        stranger = min((rule.tenants or tenants) - tenants, default=None)
        if stranger is not None:
            raise PolicyError(
                f"spec.rules: {rule.name!r} names tenant {stranger!r}, which the policy does not have; "
                f"name some of {', '.join(sorted(tenants))}."
            )
        rules.append(rule)
    return tuple(rules)


def _rule(found: wire.RuleSpec, path: str) -> Rule:
    if not found.name:
        raise PolicyError(f"{path}.name is missing; every rule needs a name.")
    if found.message == "":
        raise PolicyError(f"{path}.message is empty; say something, or leave it out.")
    return Rule(
        name=found.name,
        demand=_demand(found, path),
        message=found.message,
        dry_run=bool(found.dry_run),
        tenants=fields.names(found.tenants, f"{path}.tenants"),
        namespaces=fields.names(found.namespaces, f"{path}.namespaces"),
        workloads=fields.names(found.workloads, f"{path}.workloads"),
    )


def _demand(found: wire.RuleSpec, path: str) -> Demand:
    made: dict[str, Demand] = {}
    if found.closed is not None:
        made["closed"] = Closed(_window(found.closed, f"{path}.closed"))
    if found.min_memory is not None:
        made["minMemory"] = _min_memory(found.min_memory, f"{path}.minMemory")
    if found.form is not None:
        forms = {key: _form(value, f"{path}.form.{key}") for key, value in found.form.items()}
        made["form"] = Forms({**USUAL_FORMS, **forms})
    if found.max_gpus is not None:
        made["maxGPUs"] = MaxGpus(fields.number(found.max_gpus, f"{path}.maxGPUs", 0.0, 1e6))
    if found.models is not None:
        made["models"] = Models(tuple(sorted(fields.names(found.models, f"{path}.models") or ())))
    if found.headroom is not None:
        made["headroom"] = Headroom(_part(found.headroom, f"{path}.headroom"))
    if len(made) != 1:
        kinds = "closed, minMemory, form, maxGPUs, models and headroom"
        has = " and ".join(made) if made else "nothing to check"
        raise PolicyError(f"{path} has {has}; give exactly one of {kinds}.")
    (demand,) = made.values()
    return demand


def _window(found: wire.Closed, path: str) -> Window:
    days: set[int] = set()
    for index, text in enumerate(["Mon-Sun"] if found.days is None else found.days):
        first, _, last = text.partition("-")
        last = last if "-" in text else first
        if first not in DAYS or last not in DAYS:
            raise PolicyError(
                f"{path}.days[{index}] is {text!r}; give one of {', '.join(DAYS)}, or some such as Mon-Fri."
            )
        begin = DAYS.index(first)
        days.update((begin + more) % 7 for more in range((DAYS.index(last) - begin) % 7 + 1))
    if not days:
        raise PolicyError(f"{path}.days is []; list at least one day, or leave it out for every day.")
    start = _seconds("00:00" if found.from_ is None else found.from_, f"{path}.from")
    end = _seconds("24:00" if found.to is None else found.to, f"{path}.to")
    if start == DAY:
        raise PolicyError(f"{path}.from is '24:00'; write 00:00, of the next day.")
    if start == end:
        raise PolicyError(
            f"{path}.to is {found.to!r}, when the window begins; leave both out to mean all of the day."
        )
    return Window(frozenset(days), start, end, _zone(found.time_zone, f"{path}.timeZone"))


def _seconds(text: str, path: str) -> int:
    if not _TIME.fullmatch(text):
        raise PolicyError(f"{path} is {text!r}; give a time of day from 00:00 to 24:00, such as 09:00.")
    hours, minutes = text.split(":")
    return int(hours) * 3600 + int(minutes) * 60


def _zone(name: str | None, path: str) -> ZoneInfo:
    if not name:
        raise PolicyError(f"{path} is missing; name a time zone such as Europe/Berlin or UTC.")
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise PolicyError(
            f"{path} is {name!r}, which is no time zone that this host knows; name one such as Europe/Berlin or UTC."
        ) from None


def _min_memory(found: wire.MinMemory, path: str) -> MinMemory:
    if found.host is None and found.gpu is None:
        raise PolicyError(f"{path} is empty; give host, gpu or both, such as gpu: 16Gi.")
    return MinMemory(_bytes(found.host, f"{path}.host"), _bytes(found.gpu, f"{path}.gpu"))


def _bytes(text: str | None, path: str) -> int:
    if text is None:
        return 0
    try:
        amount = whole(text)
    except QuantityError as error:
        raise PolicyError(f"{path}: {error}.") from None
    if not 0 < amount <= MOST_MEMORY:
        raise PolicyError(f"{path} is {text!r}; give an amount of bytes above 0 and up to 1Pi, such as 16Gi.")
    return amount


def _form(text: str, path: str) -> Form:
    return fields.choice(text, path, Form.WHOLE)


def _part(text: str, path: str) -> float:
    match = _PERCENT.fullmatch(text)
    percent = float(match[1]) if match else 0.0
    if not 0 < percent <= 100:
        raise PolicyError(
            f"{path} is {text!r}; give a part of the pool above 0% and up to 100%, such as 20%."
        )
    return percent / 100
