"""Policies for tests: the one that the README shows, and others from a spec in YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import yaml

from extender.fairness.policy import Policy
from extender.fairness.reading import read_policy
from extender.wire.policy import FairnessPolicy

THREE_TENANTS = """
decayHalfLife: "24h"
tenants:
- {name: training,  weight: 40, minShare: 20, maxShare: 60, preemptible: true}
- {name: inference, weight: 50, minShare: 40, maxShare: 80, preemptible: false}
- {name: research,  weight: 10, minShare: 5,  maxShare: 25, preemptible: true}
"""


def object_of(spec: str | dict[str, Any], name: str = "myfair-cluster") -> FairnessPolicy:
    """The object as it is decoded from the API server, `spec` as YAML or already parsed."""
    body = {
        "metadata": {"name": name, "generation": 1},
        "spec": yaml.safe_load(spec) if isinstance(spec, str) else spec,
    }
    return msgspec.convert(body, FairnessPolicy)


def policy(spec: str | dict[str, Any] = THREE_TENANTS, name: str = "myfair-cluster") -> Policy:
    return read_policy(object_of(spec, name))


def readme() -> dict[str, Any]:
    """The policy's tenants and the rules that the README shows, as one spec."""
    text = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    blocks = [yaml.safe_load(block.partition("```")[0]) for block in text.split("```yaml\n")[1:]]
    (spec,) = [block["spec"] for block in blocks if block.get("kind") == "FairnessPolicy"]
    (rules,) = [block["rules"] for block in blocks if "rules" in block]
    return {**spec, "rules": rules}
