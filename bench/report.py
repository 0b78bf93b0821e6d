"""Measurements, each with the goal that it met or missed, and how they are shown."""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec
from rich.console import Console
from rich.table import Table


class Measurement(msgspec.Struct, frozen=True):
    """One figure of a case; `goal` and `met` are None where nothing was promised."""

    case: str
    metric: str
    value: float
    unit: str
    goal: str | None = None
    met: bool | None = None


def measured(
    case: str,
    metric: str,
    value: float,
    unit: str = "",
    *,
    at_most: float | None = None,
    at_least: float | None = None,
) -> Measurement:
    """A measurement, judged by the one bound that is given; a value that is not a number misses every bound."""
    value = float(value)  # numpy's scalars are no JSON
    if at_most is not None:
        return Measurement(case, metric, value, unit, f"≤ {at_most:g}", bool(value <= at_most))
    if at_least is not None:
        return Measurement(case, metric, value, unit, f"≥ {at_least:g}", bool(value >= at_least))
    return Measurement(case, metric, value, unit)


def missed(measurements: Iterable[Measurement]) -> list[str]:
    """A sentence for each goal that was missed."""
    return [
        f"{each.case}: {each.metric} is {number(each.value)}{each.unit and f' {each.unit}'}; the goal is {each.goal}."
        for each in measurements
        if each.met is False
    ]


def as_json(measurements: Iterable[Measurement]) -> str:
    """One JSON object a line."""
    return "\n".join(msgspec.json.encode(each).decode() for each in measurements)


def print_table(measurements: Iterable[Measurement], console: Console) -> None:
    """A table for people; a missed goal is red on a terminal."""
    table = Table("case", "metric")
    table.add_column("value", justify="right")
    for name in ("unit", "goal", "met"):
        table.add_column(name)
    met = {True: "[green]yes", False: "[bold red]no", None: ""}
    for each in measurements:
        table.add_row(each.case, each.metric, number(each.value), each.unit, each.goal or "", met[each.met])
    console.print(table)


def number(value: float) -> str:
    """Three significant digits; what is whole, or has more digits before the point, in full."""
    if math.isfinite(value) and (value == int(value) or abs(value) >= 100):
        return f"{value:,.0f}"
    return f"{value:.3g}"
