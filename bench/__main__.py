"""`python -m bench CASE`: measure one promise, or all of them, and say which goals were met."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from bench import report
from bench.report import Measurement
from tests.controlplane.binaries import KUBERNETES

Case = Callable[[], list[Measurement]]


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def main() -> None:
    """Measure what kvitej promises, each figure beside its floor in the same run."""


def reported(command: Callable[..., list[Case]]) -> Callable[..., None]:
    """Give a command that returns cases the options --json and --check, and show what the cases measure."""

    @click.option("--json", "as_json", is_flag=True, help="One JSON object a line instead of a table.")
    @click.option("--check", is_flag=True, help="Exit with status 1, naming each goal that was missed.")
    @functools.wraps(command)
    def shown(*, as_json: bool, check: bool, **options: Any) -> None:
        measurements: list[Measurement] = []
        for case in command(**options):
            found = case()
            measurements += found
            if as_json:
                click.echo(report.as_json(found))
            else:
                report.print_table(found, Console())
        missed = report.missed(measurements)
        if check and missed:
            click.echo("\n".join(missed), err=True)
            sys.exit(1)

    return shown


_plot = click.option(
    "--plot", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="A PNG or SVG of it."
)


@main.command()
@reported
def latency() -> list[Case]:
    """Filter and Prioritize with 500 to 50,000 names beside a handler that does nothing."""
    from bench.cases import latency

    return [functools.partial(latency.run, _say("latency"))]


@main.command()
@click.option(
    "--kubernetes", default=KUBERNETES, show_default=True, metavar="V", help="Version to build and run."
)
@click.option(
    "--gated", is_flag=True, help="Create to bound with webhook and planner, on 500 to 20,000 nodes."
)
@click.option("--nodes", type=click.IntRange(1), help="5,000, or with --gated each number that has a goal.")
@click.option("--pods", default=1_500, show_default=True, type=click.IntRange(1))
@click.option(
    "--runs", default=3, show_default=True, type=click.IntRange(1), help="Runs per contender; medians count."
)
@reported
def throughput(gated: bool, nodes: int | None, **options: Any) -> list[Case]:
    """Pods a second under the real kube-scheduler: alone, with trivial extenders, with kvitej."""
    from bench.cases import gated as planned
    from bench.cases import throughput

    if gated:
        return [functools.partial(planned.run, _say("throughput, gated"), nodes=nodes, **options)]
    options["nodes"] = nodes or throughput.NODES
    return [functools.partial(throughput.run, _say("throughput"), **options)]


@main.command()
@click.option(
    "--kubernetes", default=KUBERNETES, show_default=True, metavar="V", help="Version to build and run."
)
@click.option("--nodes", default=500, show_default=True, type=click.IntRange(1))
@click.option("--seconds", default=600.0, show_default=True, help="How long pods come and go.")
@click.option("--per-second", default=10.0, show_default=True, help="Pods that leave in a second.")
@reported
def churn(**options: Any) -> list[Case]:
    """A full cluster under the real kube-scheduler, whose pods leave while others wait: nominations held."""
    from bench.cases import churn

    return [functools.partial(churn.run, _say("churn"), **options)]


@main.command()
@reported
def sync() -> list[Case]:
    """Seconds and memory from start to ready with 5,000 nodes and 50,000 pods."""
    from bench.cases import sync

    return [functools.partial(sync.run, _say("sync"))]


@main.command()
@click.option(
    "--traces",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="Folder of openb_pod_list_default.csv, to play it in creation order.",
)
@click.option("--seed", default=42, show_default=True, help="Shuffles the pods when there is no --traces.")
@click.option("--pods", "limit", type=click.IntRange(1), help="Play only so many pods.")
@reported
def trace(**options: Any) -> list[Case]:
    """The openb trace on the real kube-scheduler until the cluster is full, and a recount."""
    from bench.cases import trace

    return [functools.partial(trace.run, _say("trace"), **options)]


@main.command()
@click.option(
    "--traces",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="Folder of the openb lists of nodes and pods; without it, the default list from here.",
)
@click.option(
    "--trace", multiple=True, metavar="NAME", help="A pod list in --traces; repeatable. [default: all]"
)
@click.option(
    "--seeds", default=10, show_default=True, type=click.IntRange(1), help="Fills, from seed 42 on."
)
@click.option(
    "--score", type=click.Choice(["d1", "p1", "fgd", "bestfit", "firstfit"]), help="Fill by this score only."
)
@_plot
@reported
def placement(**options: Any) -> list[Case]:
    """GPUs that stay unused when openb's pods fill openb's nodes, beside FGD, best fit and first fit."""
    from bench.cases import placement

    if options["trace"] and not options["traces"]:
        raise click.UsageError("--trace names a list in the folder --traces; give both.")
    return [functools.partial(placement.run, _say("placement"), **options)]


@main.command()
@reported
def kernels() -> list[Case]:
    """What one placement costs on 5,000 nodes of 8 GPUs, beside the same in numpy, and a whole fill of openb."""
    from bench.cases import kernels

    return [functools.partial(kernels.run, _say("kernels"))]


@main.command()
@reported
def webhook() -> list[Case]:
    """What a review costs with 5,000 nodes in the book, beside a TLS handler that does nothing."""
    from bench.cases import webhook

    return [functools.partial(webhook.run, _say("webhook"))]


@main.command()
@click.option("--seeds", default=3, show_default=True, type=click.IntRange(1), help="Runs per kind of node.")
@_plot
@reported
def topology(**options: Any) -> list[Case]:
    """What 4-GPU jobs get on every link matrix collected, beside first fit, best fit and the device plugin."""
    from bench.cases import topology

    return [functools.partial(topology.run, _say("topology"), **options)]


@main.command()
@click.option("--seeds", default=8, show_default=True, type=click.IntRange(1), help="Runs of each mix.")
@_plot
@reported
def mig(**options: Any) -> list[Case]:
    """MIG slices lost on cards that are cut on demand, beside best fit and first fit."""
    from bench.cases import mig

    return [functools.partial(mig.run, _say("mig"), **options)]


@main.command()
@click.option(
    "--states", default=1_000, show_default=True, type=click.IntRange(1), help="Random states of 8 nodes."
)
@reported
def reclaim(**options: Any) -> list[Case]:
    """Victims of a reclaim beside the cheapest of all sets of pods, and what one costs on 5,000 nodes."""
    from bench.cases import reclaim

    return [functools.partial(reclaim.run, _say("reclaim"), **options)]


@main.command()
@click.option("--seeds", default=5, show_default=True, type=click.IntRange(1), help="Runs of each policy.")
@click.option(
    "--days", default=1.0, show_default=True, type=click.FloatRange(0.1), help="From Monday, 0 h, on."
)
@click.option("--only", multiple=True, metavar="POLICY", help="Play this policy only; repeatable.")
@_plot
@reported
def fairness(**options: Any) -> list[Case]:
    """Three tenants on a tenth of openb in virtual time: kvitej's planner beside five usual policies."""
    from bench.cases import fairness

    return [functools.partial(fairness.run, _say("fairness"), **options)]


@main.command()
@reported
def planner() -> list[Case]:
    """One step of the planner at 5,000 nodes, 10,000 waiting pods and 50 tenants, and what a waiting pod keeps."""
    from bench.cases import planner

    return [functools.partial(planner.run, _say("planner"))]


@main.command()
@click.option("--seeds", default=3, show_default=True, type=click.IntRange(1), help="Runs of each rule.")
@reported
def line(**options: Any) -> list[Case]:
    """How long big jobs wait in a full cluster, with the planner's holds and without."""
    from bench.cases import line

    return [functools.partial(line.run, _say("line"), **options)]


@main.command()
@click.option(
    "--kubernetes", default=KUBERNETES, show_default=True, metavar="V", help="Version to build and run."
)
@reported
def agents(**options: Any) -> list[Case]:
    """What the nodes' agents cost: each on its node, 5,000 of them in kvitej serve and at the API server."""
    from bench.cases import agents

    return [functools.partial(agents.run, _say("agents"), **options)]


@main.command("all")
@reported
def every() -> list[Case]:
    """All cases as they are run by default."""
    from bench.cases import (
        agents,
        fairness,
        kernels,
        latency,
        line,
        mig,
        placement,
        planner,
        reclaim,
        sync,
        throughput,
        topology,
        trace,
        webhook,
    )

    cases = (
        latency,
        webhook,
        sync,
        throughput,
        trace,
        placement,
        mig,
        topology,
        kernels,
        reclaim,
        planner,
        fairness,
        line,
        agents,
    )
    return [functools.partial(case.run, _say(case.CASE)) for case in cases]


def _say(case: str) -> Callable[[str], None]:
    """Progress on stderr, so that stdout holds nothing but results."""
    return lambda line: click.echo(f"[{case}] {line}", err=True)


if __name__ == "__main__":
    main(prog_name="python -m bench")
