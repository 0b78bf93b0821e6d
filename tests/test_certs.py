"""Certificates for a trial: a server that shows them is believed by who has the caBundle, under each name."""

import base64
import socket
import ssl
import threading
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from extender.__main__ import main


def certs(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["certs", *arguments], prog_name="kvitej")


def accept(server: ssl.SSLContext, connection: socket.socket) -> None:
    server.wrap_socket(connection, server_side=True).close()


def test_a_server_with_the_pair_is_believed_by_who_has_the_bundle(tmp_path: Path) -> None:
    result = certs(str(tmp_path / "d"))
    assert result.exit_code == 0
    folder = tmp_path / "d"
    assert result.stderr == "".join(f"# {folder / name}\n" for name in ("ca.crt", "tls.crt", "tls.key"))
    bundle = base64.b64decode(yaml.safe_load(result.stdout)["caBundle"])
    assert bundle == (folder / "ca.crt").read_bytes()
    assert (folder / "tls.key").stat().st_mode & 0o077 == 0
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    client = ssl.create_default_context(cadata=bundle.decode())
    for name in ("kvitej.kvitej.svc", "localhost", "127.0.0.1"):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            shake = threading.Thread(target=accept, args=(server, theirs))
            shake.start()
            client.wrap_socket(ours, server_hostname=name).close()
            shake.join()


def test_files_that_are_there_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "tls.key").write_text("mine")
    result = certs(str(tmp_path))
    assert result.exit_code == 2
    assert (
        result.stderr
        == f"kvitej: {tmp_path / 'tls.key'} is there already: name another directory, or remove it.\n"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tls.key"]


@pytest.mark.parametrize("name", ["", "a b", "é" * 300])
def test_a_name_that_no_certificate_can_have_is_refused(tmp_path: Path, name: str) -> None:
    result = certs(str(tmp_path / "d"), "--name", name)
    assert result.exit_code == 2
    assert result.stderr.startswith("kvitej: No certificate can be made for ")
    assert not (tmp_path / "d").exists()
