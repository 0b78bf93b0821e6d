"""A server certificate by path, presented as the files are now: rotated under a listener that goes on listening.

Each handshake is sent to the newest context by the callback for the server's name, which OpenSSL calls for clients
that give no name too. A pair that doesn't load leaves the one before in place.
"""

import asyncio
import ssl
from pathlib import Path

import structlog

log = structlog.get_logger()

LOOK_SECONDS = 1.0


class CertificateError(ValueError):
    """The pair can't be used; the message is a sentence."""


class Certificate:
    """`context` is for the listener; `cert` may hold a chain, `key` must not be encrypted.

    Raises CertificateError when the pair can't be loaded at first.
    """

    def __init__(self, cert: Path, key: Path) -> None:
        self._paths = (cert, key)
        self._stamp = self._look()
        self._current = self._load()
        self.context = self._load()
        self.context.sni_callback = self._present

    def refresh(self) -> None:
        """Load the pair if a file has changed since it was last tried."""
        stamp = self._look()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._current = self._load()
        except CertificateError as error:
            log.warning("the certificate was not replaced", reason=str(error))
        else:
            log.info("the certificate was replaced", cert=str(self._paths[0]))

    async def keep_fresh(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.refresh()

    def _present(
        self, connection: ssl.SSLSocket | ssl.SSLObject, name: str | None, _: ssl.SSLContext
    ) -> None:
        connection.context = self._current

    def _look(self) -> list[tuple[int, int, int] | None]:
        """What tells versions of the files apart, also where a symbolic link is turned, as Kubernetes does."""
        return [_identity(path) for path in self._paths]

    def _load(self) -> ssl.SSLContext:
        cert, key = self._paths
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            # An encrypted key would have OpenSSL ask on the terminal.
            context.load_cert_chain(cert, key, password=lambda: "")
        except OSError as error:
            reason = error.strerror or str(error)
            raise CertificateError(
                f"The certificate {cert} with the key {key} can't be used: {reason}."
            ) from error
        return context


def _identity(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
