"""The command line. It reads options and configuration, and hands over to the layer that does the work.

Layers are imported by the command that needs them, so that `kvitej version` and `--help` answer at once.
"""

from __future__ import annotations

import contextlib
import platform
import sys
from pathlib import Path
from typing import IO, Any

import click

from extender import __version__


class _Refusal(click.ClickException):
    """A sentence that says what cannot be done; printed without a traceback, with exit status 2."""

    exit_code = 2

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"kvitej: {self.message}", file=file or sys.stderr)


class _Sentences(click.Group):
    """A group whose commands end with a sentence when input is wrong or a file or port cannot be used."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except OSError as error:
            place = f"{error.filename}: " if error.filename else ""
            raise _Refusal(f"{place}{str(error.strerror or error).rstrip('.')}.") from error
        except ValueError as error:
            raise _Refusal(str(error)) from error


def _address(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[str, int] | None:
    """Split `host:port`, with an IPv6 host in brackets."""
    if value is None:
        return None
    host, _, port = value.rpartition(":")
    if not (host and port.isascii() and port.isdecimal() and int(port) <= 65535):
        raise click.BadParameter(f"{value!r} is not of the form 127.0.0.1:8889, with a port from 0 to 65535.")
    return host.removeprefix("[").removesuffix("]"), int(port)


_config = click.option(
    "--config", "config_file", metavar="FILE", type=click.Path(path_type=Path), help="Configuration in YAML."
)


@click.group(
    cls=_Sentences, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
def main() -> None:
    """Fair, topology-aware GPU scheduling for shared Kubernetes clusters, beside the stock kube-scheduler."""


@main.command()
@click.option(
    "--cluster",
    metavar="NAME|FILE",
    help="Play a cluster from a file; three-tenants and memory-pressure are built in.",
)
@click.option(
    "--kubeconfig", metavar="FILE|in-cluster", help="Serve the cluster that this kubeconfig reaches."
)
@_config
@click.option("--host", default="127.0.0.1", show_default=True, help="Where the scheduler's verbs listen.")
@click.option(
    "--port", default=8888, show_default=True, type=click.IntRange(0, 65535), help="0 is any free port."
)
@click.option(
    "--http",
    default="127.0.0.1:8889",
    show_default=True,
    metavar="HOST:PORT",
    callback=_address,
    help="Where health, metrics and version listen.",
)
@click.option(
    "--webhook",
    metavar="HOST:PORT",
    callback=_address,
    help="Where the API server's admission reviews arrive, over TLS; with --kubeconfig.",
)
@click.option(
    "--webhook-cert", metavar="FILE", type=click.Path(path_type=Path), help="Its certificate, in PEM."
)
@click.option(
    "--webhook-key",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="The certificate's key. Both are read again when they change.",
)
@click.option("--once", is_flag=True, help="With --cluster: end after the play instead of serving on.")
def serve(
    cluster: str | None,
    kubeconfig: str | None,
    config_file: Path | None,
    host: str,
    port: int,
    http: tuple[str, int],
    webhook: tuple[str, int] | None,
    webhook_cert: Path | None,
    webhook_key: Path | None,
    once: bool,
) -> None:
    """Place and bind GPU pods.

    --kubeconfig serves a real cluster, --cluster one that is played from a file.

    Whoever reaches the verbs can place pods: let --host be the loopback address beside the scheduler, or
    guard it.
    """
    if (cluster is None) == (kubeconfig is None):
        raise click.UsageError("Give either --cluster NAME|FILE or --kubeconfig FILE|in-cluster.")
    if once and cluster is None:
        raise click.UsageError("--once ends a play, so it goes with --cluster only.")
    if webhook is None and webhook_cert is None and webhook_key is None:
        secured = None
    elif webhook is None or webhook_cert is None or webhook_key is None:
        raise click.UsageError(
            "--webhook, --webhook-cert and --webhook-key go together: give all three or none."
        )
    else:
        secured = (*webhook, webhook_cert, webhook_key)
    if secured is not None and kubeconfig is None:
        raise click.UsageError("--webhook is for a real cluster, so it goes with --kubeconfig only.")
    from extender import config, log

    configuration = config.load(config_file)
    log.setup(configuration.log.level, configuration.log.format)
    if cluster is not None:
        from extender.serve.embedded import serve_cluster

        serve_cluster(cluster, configuration, host=host, port=port, http=http, once=once)
    elif kubeconfig is not None:
        from extender.serve.listening import Webhook
        from extender.serve.run import serve_kubernetes

        serve_kubernetes(
            kubeconfig,
            configuration,
            host=host,
            port=port,
            http=http,
            webhook=Webhook(*secured) if secured else None,
        )


_http = click.option(
    "--http",
    default="127.0.0.1:8889",
    show_default=True,
    metavar="HOST:PORT",
    callback=_address,
    help="Where `kvitej serve` listens for health and metrics.",
)
_output = click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json", "yaml"]),
    default="table",
    show_default=True,
    help="What to print.",
)
_watch = click.option("--watch", is_flag=True, help="Print again every 2 seconds, until told to stop.")


@main.command()
@click.argument("pod", required=False)
@click.option(
    "--pod", "manifest", metavar="FILE", type=click.File("rb"), help="A pod's manifest instead; - reads it."
)
@click.option("--node", metavar="NODE", help="Explain this node instead of the best few.")
@_http
def explain(pod: str | None, manifest: IO[bytes] | None, node: str | None, http: tuple[str, int]) -> None:
    """Say why a pod waits, and why it goes where it goes.

    POD is namespace/name, of a pod that a running `kvitej serve` knows. Prints its place in line, who is ahead and
    what it waits for; then each kernel's part of the score, the GPUs that the pod would take, how they are linked, and
    what would be left for others.
    """
    if (pod is None) == (manifest is None):
        raise click.UsageError("Give either POD or --pod FILE.")
    from extender import asking

    text = manifest.read() if manifest is not None else None
    click.echo(asking.explain(http, pod, text, node), nl=False)


@main.command()
@click.argument("tenant", required=False)
@_output
@_watch
@_http
def shares(tenant: str | None, output: str, watch: bool, http: tuple[str, int]) -> None:
    """Say who has what: all tenants of every pool, or TENANT.

    Amounts are GPUs. Entitled is what a tenant may have now: its minimum first, then by weight and past use, up to
    its maximum or demand. Borrowed is what it has above its minimum, decayed what it has had of late. Score is 1
    while in use is within 20 % of entitled.
    """
    from extender import asking, printing, sharetable

    with contextlib.suppress(KeyboardInterrupt):
        printing.show(http, lambda: asking.shares(http, tenant), sharetable.tables, output, watch)


@main.command()
@click.argument("node", required=False)
@_output
@_watch
@_http
def devices(node: str | None, output: str, watch: bool, http: tuple[str, int]) -> None:
    """Say what is known of the cards: of every node that has some, or of NODE in full.

    Who has each card, and whether that is kvitej's plan or what the kubelet has given; memory that is used, by
    others of it, and promised, beside the limit that both may reach together; health and links.
    """
    from extender import asking, cardtable, printing

    with contextlib.suppress(KeyboardInterrupt):
        printing.show(http, lambda: asking.devices(http, node), cardtable.tables(node), output, watch)


@main.command()
def version() -> None:
    """Print the version."""
    click.echo(f"kvitej {__version__}")


@main.command("config")
@_config
def show_config(config_file: Path | None) -> None:
    """Print the effective configuration.

    Each key stands under a comment with its meaning and range. The output is a configuration file itself.
    """
    from extender import config

    click.echo(config.render(config.load(config_file)), nl=False)


@main.command("scheduler-config")
def scheduler_config() -> None:
    """Print a configuration for kube-scheduler.

    With it, a kube-scheduler asks `kvitej serve` on the same host about every pod that wants GPUs.
    """
    from extender import schedulerconfig

    click.echo(schedulerconfig.render(), nl=False)


@main.command()
@click.argument("directory", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--name",
    "names",
    multiple=True,
    metavar="NAME",
    help="A host name or address that the webhook is reached by; repeatable.  "
    "[default: the Service kvitej in the namespace kvitej, and this host]",
)
def certs(directory: Path, names: tuple[str, ...]) -> None:
    """Make a CA and a certificate for the webhook, for a trial.

    Writes ca.crt, tls.crt and tls.key to DIR, and prints the caBundle for the webhook configurations. The key of
    the CA is not kept, so nothing else can be signed with it.
    """
    from extender import certs

    made = certs.make(directory, names or certs.NAMES)
    for path in made.files:
        click.echo(f"# {path}", err=True)
    click.echo(f"caBundle: {made.ca_bundle}")


@main.command()
@click.argument("pod", required=False)
@click.option("--namespace", "-n", metavar="NAME", help="All gated pods of it; with POD, where that is.")
@click.option("--all", "everywhere", is_flag=True, help="All gated pods of the cluster.")
@click.option("--kubeconfig", metavar="FILE|in-cluster", required=True, help="The cluster.")
@click.option("--as", "user", metavar="USER", help="Act as this API user.")
def release(
    pod: str | None, namespace: str | None, everywhere: bool, kubeconfig: str, user: str | None
) -> None:
    """Lift kvitej's gate by hand: from POD, or from all pods of a namespace, or of the cluster.

    For emergencies, and before kvitej is uninstalled: pods released so skip the line. While the webhook runs, it
    lets only kvitej lift the gate; then act as kvitej, with --as system:serviceaccount:kvitej:kvitej.
    """
    if everywhere == (pod is not None or namespace is not None):
        raise click.UsageError("Give POD, --namespace NAME or --all.")
    from extender.kube.release import release_by_hand

    path = None if kubeconfig == "in-cluster" else Path(kubeconfig)
    failed = 0
    for name, problem in release_by_hand(path, namespace=namespace, pod=pod, user=user):
        failed += problem is not None
        click.echo(f"{name}: {problem or 'released'}", err=problem is not None)
    if failed:
        raise _Refusal(f"{failed} pods keep the gate.")


@main.command()
@click.option("--kubeconfig", metavar="FILE|in-cluster", help="The cluster to report to, until told to stop.")
@_config
@click.option("--once", is_flag=True, help="Print one report and end.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["yaml", "json"]),
    default="yaml",
    show_default=True,
    help="How to print it.",
)
@click.option(
    "--node",
    metavar="NAME",
    envvar="NODE_NAME",
    default=platform.node,
    help="The node.  [default: this host]",
)
def agent(kubeconfig: str | None, config_file: Path | None, once: bool, output: str, node: str) -> None:
    """Report what this node's GPUs are, and what is on them.

    With --kubeconfig this goes to the node's GPUNode whenever something changes that decides, and a Lease says that
    it still holds. With --once the exit status is 3 if there is no GPU, and 4 if the driver does not tell.
    """
    if once == (kubeconfig is not None):
        raise click.UsageError("Give either --kubeconfig FILE|in-cluster or --once.")
    if kubeconfig is not None:
        from extender import config, log
        from extender.agent.run import run

        configuration = config.load(config_file)
        log.setup(configuration.log.level, configuration.log.format)
        run(node, None if kubeconfig == "in-cluster" else Path(kubeconfig), configuration.agent)
        return
    from extender.agent import once as agent_once

    report = agent_once.once(node, output)
    click.echo(report.text, nl=False)
    if report.sentence:
        click.echo(f"kvitej: {report.sentence}", err=True)
    sys.exit(report.status)


@main.command()
@click.argument("file", type=click.File("rb"))
@click.option("--product", default="", metavar="NAME", help="The card, such as NVIDIA-H100-80GB-HBM3.")
def topo(file: IO[bytes], product: str) -> None:
    """Read the output of `nvidia-smi topo -m` from FILE, or - for standard input.

    Prints what was understood: the links, and the best sets of 2, 4, 8 GPUs with their bandwidth.
    """
    from extender import topo_report

    topo_report.show_bytes(file.read(), product)


if __name__ == "__main__":
    main(prog_name="kvitej")
