"""YAML files that people write, read into frozen structs; what cannot be taken as meant is a sentence.

The structs' own annotations say what a key may hold, so what is checked and what an error names as allowed cannot
drift apart. The configuration and the files of embedded clusters come through here.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, cast, get_args, get_origin

import msgspec
import yaml
from msgspec import Meta, Struct
from msgspec.structs import fields

from extender import duration


class FileError(ValueError):
    """A file that cannot be taken as meant; the message is a sentence with the key's path."""


class Section(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Base of all structs that are read from such files."""


_S = TypeVar("_S", bound=Section)


@dataclass(frozen=True)
class Spelling:
    """How a value is written in YAML: `noun` with examples, both directions, and the types that it is read from.

    It stands in the `extra` of a key's Meta, under "spelling".
    """

    noun: str
    read: Callable[[Any], Any]
    write: Callable[[Any], str] = str
    takes: tuple[type, ...] = (str,)


DURATION = {"spelling": Spelling("a duration such as 10s, 500ms or 1h30m", duration.seconds, duration.text)}


def load(path: Path, kind: type[_S], what: str) -> _S:
    """Read a file into `kind`; `what` names the whole of it in sentences.

    Raises
    ------
    FileError
        With the file and, where there is one, the key's path, the value found and what is allowed.
    OSError
        The file cannot be read.
    """
    try:
        return read(kind, yaml.load(path.read_bytes(), Loader=_Loader), what)
    except FileError as error:
        raise FileError(f"{path}: {error}") from None
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise FileError(f"{path}: {line}{error.problem or error.context}.") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise FileError(f"{path} cannot be read as YAML: {' '.join(str(error).split())}.") from None


def read(kind: type[_S], found: object, what: str) -> _S:
    """Return the `kind` that a mapping as parsed from YAML describes; errors are those of `load`, less the file."""
    return cast(_S, _section(kind, found, "", what))


def allowed(annotation: Any) -> str:
    """What a key of this annotation may hold, in words."""
    base, meta = unwrap(annotation)
    if get_origin(base) is Literal:
        return "one of " + ", ".join(get_args(base))
    spelling = spelling_of(meta)
    noun = spelling.noun if spelling else (meta.extra or {}).get("noun") or _NOUNS[base]
    if meta.ge is None:
        return str(noun)
    write = spelling.write if spelling else str
    return f"{noun}, from {write(meta.ge)} to {write(meta.le)}"


def unwrap(annotation: Any) -> tuple[Any, Meta]:
    """The bare type of a key and what is said about it."""
    if get_origin(annotation) is Annotated:
        base, meta = get_args(annotation)
        return base, meta
    return annotation, Meta()


def spelling_of(meta: Meta) -> Spelling | None:
    return cast(Spelling | None, (meta.extra or {}).get("spelling"))


_NOUNS = {int: "a whole number", float: "a number", str: "a text (in quotes if it looks like something else)"}


def _section(kind: type[Section], found: object, path: str, what: str) -> Section:
    where, prefix = (path, f"{path}.") if path else (what, "")
    keys = {field.encode_name: field for field in fields(kind)}
    known = ", ".join(keys)
    if found is None:
        found = {}
    if not isinstance(found, dict):
        raise FileError(f"{where} is {_shown(found)}; allowed is a mapping with the keys {known}.")
    values: dict[str, Any] = {}
    for name, value in found.items():
        if name not in keys:
            shown = name if isinstance(name, str) else _shown(name)
            raise FileError(f"{prefix}{shown} is not a known key; {where} has the keys {known}.")
        values[keys[name].name] = _value(keys[name].type, value, prefix + name)
    for key, field in keys.items():
        if field.required and field.name not in values:
            raise FileError(f"{prefix}{key} is missing; {where} has the keys {known}.")
    return kind(**values)


def _value(annotation: Any, found: object, path: str) -> Any:
    base, meta = unwrap(annotation)
    if isinstance(base, UnionType) and NoneType in get_args(base):
        if found is None:
            return None
        base = next(part for part in get_args(base) if part is not NoneType)
    if isinstance(base, type) and issubclass(base, Section):
        return _section(base, found, path, path)
    if not meta.extra and get_origin(base) is tuple:
        if not isinstance(found, list):
            raise FileError(f"{path} is {_shown(found)}; allowed is a list.")
        kind = get_args(base)[0]
        return tuple(_value(kind, item, f"{path}[{position}]") for position, item in enumerate(found))
    if not meta.extra and get_origin(base) is dict:
        return _mapping(get_args(base)[1], found, path)
    try:
        spelling = spelling_of(meta)
        if spelling is None:
            return msgspec.convert(found, annotation)
        if not isinstance(found, spelling.takes):
            raise ValueError
        return msgspec.convert(spelling.read(found), annotation)
    except ValueError:
        raise FileError(f"{path} is {_shown(found)}; allowed is {allowed(annotation)}.") from None


def _mapping(kind: Any, found: object, path: str) -> Mapping[str, Any]:
    if not isinstance(found, dict):
        raise FileError(f"{path} is {_shown(found)}; allowed is a mapping.")
    for name in found:
        if not isinstance(name, str):
            raise FileError(f"{path} has the key {_shown(name)}; allowed is {_NOUNS[str]}.")
    return {name: _value(kind, value, f"{path}.{name}") for name, value in found.items()}


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice, of which plain PyYAML keeps the last in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    problem = f"the key {key.value!r} is given twice"
                    raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def _shown(value: object) -> str:
    shown = reprlib.Repr()
    shown.maxstring = shown.maxother = 60
    return shown.repr(value)
