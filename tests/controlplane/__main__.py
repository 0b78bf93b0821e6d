"""`python -m tests.controlplane build` fills the cache of control-plane binaries and prints their paths."""

from __future__ import annotations

import argparse
import sys

from tests.controlplane.binaries import KUBERNETES, Unavailable, ensure


def main() -> int:
    """Build what is missing; exit status 1 with one sentence on stderr when that is impossible."""
    parser = argparse.ArgumentParser(prog="python -m tests.controlplane", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    build = commands.add_parser("build", help="build what is missing, then print the paths")
    build.add_argument("--kubernetes", default=KUBERNETES, metavar="V", help="default: %(default)s")
    try:
        binaries = ensure(parser.parse_args().kubernetes)
    except Unavailable as reason:
        print(reason, file=sys.stderr)
        return 1
    print(binaries.kube_apiserver, binaries.kube_scheduler, binaries.etcd, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
