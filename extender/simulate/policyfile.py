"""The policies of a cluster file: each is the spec of a FairnessPolicy, with the fields of the CRD, and a name."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from extender.fairness.fields import PolicyError
from extender.fairness.policy import Policy
from extender.fairness.reading import Policies, read_policy
from extender.wire.policy import FairnessPolicy, PolicyMeta, PolicySpec
from extender.yamlfile import FileError

Found = Mapping[str, Any]


def read_policies(found: Sequence[Found]) -> Policies:
    """The policies, read as those of a real cluster.

    Raises
    ------
    FileError
        One cannot be taken as meant; the message is a sentence with the key's path.
    """
    policies: dict[str, Policy] = {}
    for position, each in enumerate(found):
        path = f"policies[{position}]"
        policy = _policy(each, path)
        if policy.name in policies:
            raise FileError(f"{path}.name gives a second policy {policy.name}; each needs a name of its own.")
        policies[policy.name] = policy
    return Policies(policies.values())


def _policy(found: Found, path: str) -> Policy:
    name = found.get("name")
    if not isinstance(name, str) or not name:
        raise FileError(f"{path}.name is {name!r}; every policy needs a name.")
    fields = {key: value for key, value in found.items() if key != "name"}
    try:
        spec = msgspec.convert(fields, PolicySpec)
    except msgspec.ValidationError as error:
        # Such as: Expected `float | null`, got `str` - at `$.tenants[0].weight`
        what, _, where = str(error).partition(" - at `$")
        raise FileError(f"{path}{where.rstrip('`')}: {what}.") from None
    for key in _unknown(fields, msgspec.to_builtins(spec), ""):
        raise FileError(f"{path}{key} is not a known key; a policy has those of a FairnessPolicy's spec.")
    try:
        return read_policy(FairnessPolicy(PolicyMeta(name=name), spec))
    except PolicyError as error:
        raise FileError(str(error).replace("spec.", f"{path}.", 1)) from None


def _unknown(found: Any, known: Any, path: str) -> Iterator[str]:
    """Paths of keys that the decoder has passed over."""
    if isinstance(found, dict) and isinstance(known, dict):
        for key, value in found.items():
            if key in known:
                yield from _unknown(value, known[key], f"{path}.{key}")
            else:
                yield f"{path}.{key}"
    elif isinstance(found, list) and isinstance(known, list):
        for position, (value, kept) in enumerate(zip(found, known, strict=True)):
            yield from _unknown(value, kept, f"{path}[{position}]")
