"""A CA and a server certificate for the webhook: for a trial. A cluster in production has cert-manager or the like."""

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import trustme

NAMES = ("kvitej.kvitej.svc", "kvitej.kvitej.svc.cluster.local", "localhost", "127.0.0.1")
"""The Service `kvitej` of the namespace `kvitej`, and this host."""


class Made(NamedTuple):
    """The files written, and the CA as a webhook configuration takes it: base64 of the PEM."""

    files: tuple[Path, ...]
    ca_bundle: str


def make(directory: Path, names: Sequence[str]) -> Made:
    """Write ca.crt, tls.crt and tls.key for a server of these names or addresses; the key only for its owner.

    Raises ValueError when a file is there already, or a name can't be in a certificate.
    """
    files = ca, cert, key = tuple(directory / name for name in ("ca.crt", "tls.crt", "tls.key"))
    for path in files:
        if path.exists():
            raise ValueError(f"{path} is there already: name another directory, or remove it.")
    authority = trustme.CA(organization_name="kvitej trial")
    try:
        server = authority.issue_cert(*names, organization_name="kvitej trial")
    except ValueError as error:
        raise ValueError(f"No certificate can be made for {', '.join(names)}: {error}.") from error
    directory.mkdir(parents=True, exist_ok=True)
    authority.cert_pem.write_to_path(ca)
    cert.write_bytes(b"".join(blob.bytes() for blob in server.cert_chain_pems))
    key.touch(mode=0o600)
    key.write_bytes(server.private_key_pem.bytes())
    return Made(files, base64.b64encode(authority.cert_pem.bytes()).decode())
