"""Calls over one connection, timed from the first byte sent to the last one read."""

from __future__ import annotations

import socket
import ssl
import time

import click

from bench.peers import ANSWER_BYTES


class Caller:
    """One keep-alive connection on a plain socket, so that the client costs next to nothing."""

    def __init__(self, port: int, path: str, tls: ssl.SSLContext | None = None) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self._socket = tls.wrap_socket(self._socket, server_hostname="127.0.0.1")
        self._head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n".encode()
        self._path = path
        self._buffer = bytearray(2**23)
        self.answered = 2

    def call(self, body: bytes, answer_bytes: int = 0) -> tuple[float, bytes]:
        """Seconds from the first byte sent to the last one read, and the answer."""
        told = f"{ANSWER_BYTES}: {answer_bytes}\r\n" if answer_bytes else ""
        message = self._head + f"Content-Length: {len(body)}\r\n{told}\r\n".encode() + body
        view = memoryview(self._buffer)
        begun = time.perf_counter()
        self._socket.sendall(message)
        read = self._socket.recv_into(view)
        while (start := self._buffer.find(b"\r\n\r\n", 0, read) + 4) < 4:
            read += self._more(view[read:])
        length = self._content_length(bytes(view[:start]))
        while read < start + length:
            read += self._more(view[read:])
        seconds = time.perf_counter() - begun
        self.answered = length
        return seconds, bytes(view[start : start + length])

    def close(self) -> None:
        self._socket.close()

    def _more(self, into: memoryview) -> int:
        read = self._socket.recv_into(into)
        if not read:
            raise click.ClickException(f"{self._path} closed the connection in the middle of an answer.")
        return read

    def _content_length(self, head: bytes) -> int:
        status, *lines = head.decode().split("\r\n")
        if " 200 " not in status:
            raise click.ClickException(f"{self._path} answered {status}.")
        fields = dict(line.lower().split(": ", 1) for line in lines if line)
        return int(fields["content-length"])
