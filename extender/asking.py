"""Asks a running `kvitej serve` over its listener for health and metrics, for the commands that read."""

import json
from http.client import HTTPConnection, HTTPException
from urllib.parse import quote, urlencode

import yaml

_PATIENCE = 10.0


class AskingError(ValueError):
    """Why there is no answer: a sentence."""


def explain(http: tuple[str, int], pod: str | None, manifest: bytes | None, node: str | None) -> str:
    """Why a pod goes where it goes, in words: of a pod by name, or of a manifest in YAML or JSON.

    Raises AskingError.
    """
    query = {"pod": pod or "", **({"node": node} if node else {})}
    return _ask(http, f"/explain?{urlencode(query)}", None if manifest is None else _json(manifest))


def shares(http: tuple[str, int], tenant: str | None) -> str:
    """Who has what, as JSON: of all tenants, or of one. Raises AskingError."""
    return _ask(http, "/shares" if tenant is None else f"/shares/{quote(tenant, safe='')}", None)


def devices(http: tuple[str, int], node: str | None) -> str:
    """What is known of the cards, as JSON: of all nodes that have some, or of one. Raises AskingError."""
    return _ask(http, "/devices" + (f"?{urlencode({'node': node})}" if node is not None else ""), None)


def _json(manifest: bytes) -> bytes:
    try:
        return json.dumps(yaml.safe_load(manifest)).encode()
    except (yaml.YAMLError, TypeError, ValueError, RecursionError) as error:
        raise AskingError(f"The manifest can't be read as YAML: {' '.join(str(error).split())}.") from None


def _ask(http: tuple[str, int], path: str, body: bytes | None) -> str:
    host, port = http
    connection = HTTPConnection(host, port, timeout=_PATIENCE)
    try:
        connection.request("GET" if body is None else "POST", path, body)
        answer = connection.getresponse()
        text = answer.read().decode(errors="replace")
    except (OSError, HTTPException) as error:
        raise AskingError(
            f"No `kvitej serve` answers at {host}:{port} ({error}): start one, or say --http."
        ) from None
    finally:
        connection.close()
    if answer.status != 200:
        raise AskingError(text.strip() or f"{host}:{port} answered {answer.status}.")
    return text
