"""Hostile bodies, made from real ones by a seed: torn, mistyped, huge, deep, doubled, odd, or another verb's."""

import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

# JSON texts to put in a value's place; not all of them are JSON.
VALUES: tuple[bytes, ...] = (
    *(
        b"null",
        b"true",
        b"false",
        b"0",
        b"-1",
        b"1",
        b"0.5",
        b"1e309",
        b"-0",
        b"1e400000",
        b"5.0",
        b"01",
        b"+1",
    ),
    *(
        b"9223372036854775807",
        b"9223372036854775808",
        b"-9223372036854775809",
        b"1" * 400,
        b"1" * 5000,
        b".5",
    ),
    *(b"NaN", b"Infinity", b"-Infinity", b"undefined", b"None", b"'single'", b"0x10", b"1_000", b""),
    *(
        b'""',
        b'" "',
        b'"0"',
        b'"8"',
        b'"-1"',
        b'"1e3"',
        b'"NaN"',
        b'"nvidia.com/gpu"',
        b'"p"',
        b'"n0"',
        b'"uid-p"',
    ),
    *(
        b'"9E"',
        b'"9999999999Ei"',
        b'"1e999999999"',
        b'"0.000000001n"',
        b'"' + b"9" * 300 + b'"',
        b'"40 Gi"',
        b'"5k"',
    ),
    *(
        b"[]",
        b"{}",
        b"[[]]",
        b"[null]",
        b'[""]',
        b'["n0",1]',
        b'{"":null}',
        b'{"a":{"b":[{}]}}',
        b'[{"UID":null}]',
    ),
    *(b"[" * 600 + b"]" * 600, b'{"a":' * 600 + b"1" + b"}" * 600, b"[" * 50_000, b'{"a":' * 30_000),
    *(b'"' + b"x" * 300 + b'"', b'"' + b"y" * 100_000 + b'"'),
    *(
        b'"\\ud800"',
        b'"\\udc00\\ud800"',
        b'"\\ud83d\\ude80"',
        b'"\\u0000"',
        b'"\x00"',
        b'"\\x41"',
        b'"\\"',
        b'"\n"',
    ),
    *(
        b'"\xff\xfe"',
        b'"\xc0\xaf"',
        b'"\xed\xa0\x80"',
        b'"\xf4\x90\x80\x80"',
        b'"\xe2\x80\xa8"',
        b'"\xf0\x9f\x9a\x80"',
    ),
    *(
        '"日本語"'.encode(),
        b'"\\u006e0"',
        b'"n\\u0030"',
        b'"../../n0"',
        b'"n0\\r\\nX: y"',
        b'"%s%n"',
        b'"{0}"',
    ),
)
KEYS = (
    *(
        "Pod",
        "NodeNames",
        "Nodes",
        "PodUID",
        "Node",
        "metadata",
        "spec",
        "containers",
        "resources",
        "limits",
        "uid",
    ),
    *(
        "NodeNameToMetaVictims",
        "NodeNameToVictims",
        "Pods",
        "UID",
        "nodenames",
        "POD",
        "NodeName",
        "",
        "ſpec",
        "K",
    ),
)
FRAMES = (b"\xef\xbb\xbf", b" ", b"\t\r\n", b"[", b"{", b"}", b"]", b",", b"\x00", b'{"Pod":null}', b"null")


def mutants(bodies: list[bytes], strangers: list[bytes], seed: int) -> Iterator[bytes]:
    """Without end; most are one or two steps away from one of `bodies`, a few from another verb's."""
    random = Random(seed)
    while True:
        body = random.choice(bodies if random.random() < 0.95 else strangers)
        for _ in range(random.choice((0, 1, 1, 1, 2, 2, 4))):
            body = random.choice(_STEPS)(body, random)
        yield body


def _torn(body: bytes, random: Random) -> bytes:
    return body[: random.randrange(len(body) + 1)]


def _flipped(body: bytes, random: Random) -> bytes:
    found = bytearray(body)
    for _ in range(random.choice((1, 1, 2, 8))):
        if found:
            found[random.randrange(len(found))] = random.choice((random.randrange(256), *b'"{}[],:\\0'))
    return bytes(found)


def _moved(body: bytes, random: Random) -> bytes:
    """A piece cut out, doubled or put elsewhere."""
    start, end = sorted(random.randrange(len(body) + 1) for _ in range(2))
    end = min(end, start + 200)
    at = random.randrange(len(body) + 1)
    piece = body[start:end]
    return random.choice(
        (body[:start] + body[end:], body[:end] + piece + body[end:], body[:at] + piece + body[at:])
    )


def _framed(body: bytes, random: Random) -> bytes:
    frame = random.choice(FRAMES)
    return frame + body if random.random() < 0.5 else body + frame


def _valued(body: bytes, random: Random) -> bytes:
    """Another value in the place of one."""
    return _changed(body, random, lambda parent, key: parent.__setitem__(key, _MARK), random.choice(VALUES))


def _lost(body: bytes, random: Random) -> bytes:
    return _changed(body, random, lambda parent, key: parent.__delitem__(key), b"")


def _keyed(body: bytes, random: Random) -> bytes:
    """A key in another case, renamed, or a name with a hostile value added."""

    def change(parent: Any, key: Any) -> None:
        if isinstance(parent, list):
            parent.insert(key, _MARK)
        elif random.random() < 0.5:
            parent[random.choice((str.lower, str.upper, str.swapcase))(key)] = parent.pop(key)
        else:
            parent[random.choice(KEYS)] = _MARK

    return _changed(body, random, change, random.choice(VALUES))


def _doubled(body: bytes, random: Random) -> bytes:
    """A key given twice, before or after the one that was there."""
    entry = b'"%s":%s' % (random.choice(KEYS).encode(), random.choice(VALUES))
    places = [at for at, byte in enumerate(body) if byte in b"{}"]
    if not places:
        return body
    at = random.choice(places)
    return (
        body[: at + 1] + entry + b"," + body[at + 1 :]
        if body[at] == ord("{")
        else body[:at] + b"," + entry + body[at:]
    )


def _stringed(body: bytes, random: Random) -> bytes:
    """A number as a string, a string as a number or a list."""

    def change(parent: Any, key: Any) -> None:
        value = parent[key]
        parent[key] = (
            str(value) if not isinstance(value, str) else random.choice((7, [value], {value: value}))
        )

    return _changed(body, random, change, b"")


_MARK = "@@mutant@@"
_STEPS: tuple[Callable[[bytes, Random], bytes], ...] = (
    *(_torn, _flipped, _moved, _framed, _doubled, _stringed, _lost, _keyed),
    *(_valued, _valued, _valued),
)


def _changed(body: bytes, random: Random, change: Callable[[Any, Any], None], value: bytes) -> bytes:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return _flipped(body, random)
    places = list(_places(document))
    if not places:
        return body
    change(*random.choice(places))
    text = json.dumps(document, ensure_ascii=random.random() < 0.3, separators=(",", ":"))
    return text.encode("utf-8", "surrogatepass").replace(b'"@@mutant@@"', value)


def _places(document: Any) -> Iterator[tuple[Any, Any]]:
    waiting = [document] if isinstance(document, dict | list) else []
    while waiting:
        parent = waiting.pop()
        for key, child in list(parent.items() if isinstance(parent, dict) else enumerate(parent)):
            yield parent, key
            if isinstance(child, dict | list):
                waiting.append(child)
