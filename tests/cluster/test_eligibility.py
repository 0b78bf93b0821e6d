"""Who may sit where by the scheduler's own rules: hand cases, and a twin written after component-helpers."""

import sys
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extender.cluster.eligibility import admits, constraints_of, depends_on_name, traits_of
from extender.cluster.events import NodeSeen
from extender.cluster.inventory import inventory_of
from extender.wire.objects import Node, Pod
from tests.builders import GPU, book, node, pod

Json = dict[str, Any]


def taint(key: str, value: str = "", effect: str = "NoSchedule") -> Json:
    return {"key": key, "value": value, "effect": effect}


def may(asks: Json, name: str = "n0", **has: Any) -> bool:
    """Whether a pod with this spec may use a node with these labels and this spec."""
    seen = node(name, labels=has.pop("labels", None), spec=has)
    return admits(traits_of(seen), constraints_of(pod(spec=asks)), name)


def affine(*terms: Json) -> Json:
    required = {"nodeSelectorTerms": list(terms)}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}


def expression(key: str, operator: str, *values: str) -> Json:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


def test_a_pod_that_demands_nothing_may_use_any_node_without_taints() -> None:
    assert may({})
    assert may({}, labels={"zone": "a"}, taints=[taint("soft", effect="PreferNoSchedule")])
    assert not may({}, taints=[taint("gpu")])
    assert not may({}, taints=[taint("gpu", effect="NoExecute")])


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "gpu", "operator": "Exists"}, True),
        ({"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}, True),
        ({"key": "gpu", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "gpu", "value": "yes"}, True),
        ({"key": "gpu", "operator": "Equal", "value": "yes"}, True),
        ({"key": "gpu", "operator": "Equal", "value": "no"}, False),
        ({"key": "gpu"}, False),
        ({"key": "cpu", "operator": "Exists"}, False),
        ({"key": "gpu", "operator": "Gt", "value": "1"}, False),
        ({"key": "gpu", "operator": "Exists", "effect": "PreferNoSchedule"}, False),
    ],
)
def test_a_toleration_opens_the_taints_that_it_matches(toleration: Json, tolerated: bool) -> None:
    assert may({"tolerations": [toleration]}, taints=[taint("gpu", "yes")]) is tolerated


def test_every_taint_needs_a_toleration() -> None:
    one, two = {"key": "one", "operator": "Exists"}, {"key": "two", "operator": "Exists"}
    taints = [taint("one"), taint("two", effect="NoExecute")]
    assert not may({"tolerations": [one]}, taints=taints)
    assert may({"tolerations": [one, two]}, taints=taints)


def test_a_cordoned_node_takes_only_who_tolerates_it() -> None:
    key = "node.kubernetes.io/unschedulable"
    assert not may({}, unschedulable=True)
    assert may({}, unschedulable=False)
    assert may(
        {"tolerations": [{"key": key, "operator": "Exists", "effect": "NoSchedule"}]}, unschedulable=True
    )
    # The node's own taint of that key is the same one.
    assert may({"tolerations": [{"key": key}]}, unschedulable=True, taints=[taint(key)])


def test_a_node_selector_names_labels_that_must_all_be_there() -> None:
    asks = {"nodeSelector": {"zone": "a", "tier": ""}}
    assert may(asks, labels={"zone": "a", "tier": "", "more": "x"})
    assert not may(asks, labels={"zone": "a"})
    assert not may(asks, labels={"zone": "b", "tier": ""})


@pytest.mark.parametrize(
    ("term", "labels", "match"),
    [
        (expression("zone", "In", "a", "b"), {"zone": "b"}, True),
        (expression("zone", "In", "a", "b"), {}, False),
        (expression("zone", "NotIn", "a"), {"zone": "b"}, True),
        (expression("zone", "NotIn", "a"), {"zone": "a"}, False),
        (expression("zone", "NotIn", "a"), {}, True),
        (expression("zone", "Exists"), {"zone": ""}, True),
        (expression("zone", "Exists"), {}, False),
        (expression("zone", "DoesNotExist"), {}, True),
        (expression("zone", "DoesNotExist"), {"zone": "a"}, False),
        (expression("memory", "Gt", "80"), {"memory": "81"}, True),
        (expression("memory", "Gt", "80"), {"memory": "80"}, False),
        (expression("memory", "Lt", "80"), {"memory": "079"}, True),
        (expression("memory", "Lt", "80"), {"memory": "many"}, False),
        (expression("memory", "Lt", "80"), {}, False),
        (expression("memory", "Gt", "1"), {"memory": "9223372036854775808"}, False),
        (expression("kvitej.io/pool", "In", "a"), {"kvitej.io/pool": "a"}, True),
    ],
)
def test_each_operator_does_what_it_says(term: Json, labels: dict[str, str], match: bool) -> None:
    assert may(affine(term), labels=labels) is match


@pytest.mark.parametrize(
    "term",
    [
        {},
        {"matchExpressions": [], "matchFields": []},
        expression("zone", "in", "a"),
        expression("zone", "In"),
        expression("zone", "NotIn"),
        expression("zone", "Exists", "a"),
        expression("zone", "DoesNotExist", "a"),
        expression("other", "NotIn", "not a label value"),
        expression("other", "NotIn", "x" * 64),
        expression("not a key", "DoesNotExist"),
        expression("UPPER.io/key", "DoesNotExist"),
        expression("/key", "DoesNotExist"),
        expression("other", "Lt", "many"),
        expression("zone", "Gt", "1", "2"),
        expression("zone", "Gt", "9223372036854775808"),
        {"matchFields": [{"key": "metadata.name", "operator": "Exists"}]},
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n0", "n1"]}]},
        {"matchFields": [{"key": "metadata.uid", "operator": "NotIn", "values": ["n1"]}]},
        {**expression("zone", "In", "a"), "matchFields": [{"key": "metadata.name", "operator": "Gt"}]},
    ],
)
def test_a_term_that_cannot_be_parsed_matches_nothing_and_spoils_no_other(term: Json) -> None:
    labels = {"zone": "a"}
    assert not may(affine(term), labels=labels)
    assert may(affine(term, expression("zone", "In", "a")), labels=labels)


def test_terms_are_alternatives_and_the_parts_of_one_are_not() -> None:
    both = {
        "matchExpressions": [
            *expression("a", "Exists")["matchExpressions"],
            *expression("b", "Exists")["matchExpressions"],
        ]
    }
    assert not may(affine(both), labels={"a": ""})
    assert may(affine(both), labels={"a": "", "b": ""})
    assert may(affine(expression("a", "Exists"), expression("b", "Exists")), labels={"b": ""})
    assert not may(affine())
    # The node selector holds beside them.
    assert not may({"nodeSelector": {"c": ""}, **affine(expression("a", "Exists"))}, labels={"a": ""})


def test_a_node_can_be_named_by_its_field_and_by_its_host_name() -> None:
    named = affine({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]})
    others = affine({"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n1"]}]})
    host = affine(expression("kubernetes.io/hostname", "In", "n1"))
    labels = {"kubernetes.io/hostname": "n1"}
    assert may(named, "n1")
    assert not may(named, "n2")
    assert may(others, "n2")
    assert not may(others, "n1")
    assert may(host, "n1", labels=labels)
    assert not may(host, "n2", labels={"kubernetes.io/hostname": "n2"})
    assert may(host, "n2", labels=labels)


def test_one_answer_holds_for_like_nodes_unless_the_pod_looks_at_names() -> None:
    traits = traits_of(node("n1", labels={"kubernetes.io/hostname": "n1", "zone": "a"}))
    field = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
    for asks, depends in [
        ({"nodeSelector": {"zone": "a"}}, False),
        ({"nodeSelector": {"kubernetes.io/hostname": "n1"}}, True),
        (affine(field), True),
        (affine(expression("zone", "Exists"), field), True),
        (affine(expression("zone", "Exists")), False),
    ]:
        assert depends_on_name(traits, constraints_of(pod(spec=asks))) is depends


def big_node(name: str, **more: str) -> Node:
    """With 80 labels, decoded from bytes, so that no string is shared yet."""
    labels = {f"feature.node.kubernetes.io/cpu-{index}": f"value-{index}" for index in range(80)}
    meta = {"name": name, "labels": {**labels, "kubernetes.io/hostname": name, **more}}
    return msgspec.json.decode(msgspec.json.encode({"metadata": meta}), type=Node)


def test_like_nodes_share_their_traits_and_like_pods_their_constraints() -> None:
    first, second = (traits_of(big_node(name)) for name in ("n1", "n2"))
    assert first is second
    again = [constraints_of(pod(name, spec={"nodeSelector": {"zone": "a"}})) for name in ("p1", "p2")]
    assert again[0] is again[1]


def test_5000_nodes_that_all_have_a_label_of_their_own_stay_small() -> None:
    kept = [traits_of(big_node(f"n{index}", instance=f"i-{index}")) for index in range(5000)]
    pairs = {id(pair): pair for traits in kept for pair in traits.labels}
    size = sum(sys.getsizeof(traits) + sys.getsizeof(traits.labels) for traits in kept)
    size += sum(sys.getsizeof(pair) + sum(map(sys.getsizeof, filter(None, pair))) for pair in pairs.values())
    assert size < 6_000_000


def test_a_heartbeat_changes_nothing_and_a_taint_does() -> None:
    has: Json = {"labels": {"zone": "a"}, "spec": {"taints": [taint("b"), taint("a")]}}
    turned: Json = {**has, "spec": {"taints": [taint("a"), taint("b")]}}
    state = book(node("n0", {GPU: "8"}, **has))
    version, room = int(state._columns.version[0]), state.snapshot().room
    state.apply(NodeSeen(node("n0", {GPU: "8"}, **turned)))
    later: Json = {**has, "labels": {"zone": "a", "nvidia.com/gfd.timestamp": "1796040000"}}
    state.apply(NodeSeen(node("n0", {GPU: "8"}, **later)))
    assert (int(state._columns.version[0]), state.snapshot().room) == (version, room)
    state.apply(NodeSeen(node("n0", {GPU: "8"}, labels={"zone": "a"})))
    assert state.snapshot().inventories["n0"].traits.taints == ()
    assert int(state._columns.version[0]) > version
    state.check()


def test_a_closed_node_has_traits_too() -> None:
    assert inventory_of(node("n0", {GPU: "many"}, labels={"zone": "a"})).traits.labels == (("zone", "a"),)


# The twin works on the raw objects, in the order in which kube-scheduler does.

KEYS = st.sampled_from(["a", "b", "kubernetes.io/hostname", "", "bad key"])
VALUES = st.sampled_from(["x", "y", "1", "5", "12", "", "n0", "n1", "no value!"])
EFFECTS = st.sampled_from(["NoSchedule", "NoExecute", "PreferNoSchedule", ""])
OPERATORS = st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Near"])
REQUIREMENTS = st.fixed_dictionaries(
    {"key": KEYS, "operator": OPERATORS, "values": st.lists(VALUES, max_size=2)}
)
FIELDS = st.fixed_dictionaries(
    {"key": st.just("metadata.name"), "operator": OPERATORS, "values": st.lists(VALUES, max_size=2)}
)
TERMS = st.fixed_dictionaries(
    {},
    optional={
        "matchExpressions": st.lists(REQUIREMENTS, max_size=3),
        "matchFields": st.lists(FIELDS, max_size=2),
    },
)
TOLERATIONS = st.fixed_dictionaries(
    {},
    optional={
        "key": KEYS,
        "operator": st.sampled_from(["", "Equal", "Exists", "Gt", "Lt"]),
        "value": VALUES,
        "effect": EFFECTS,
    },
)
SPECS = st.fixed_dictionaries(
    {},
    optional={
        "nodeSelector": st.dictionaries(KEYS, VALUES, max_size=2),
        "tolerations": st.lists(TOLERATIONS, max_size=3),
        "affinity": st.lists(TERMS, max_size=3).map(lambda terms: affine(*terms)["affinity"]),
    },
)
NODES = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries(
            {"name": st.sampled_from(["n0", "n1"])},
            optional={"labels": st.dictionaries(KEYS, VALUES, max_size=4)},
        ),
        "spec": st.fixed_dictionaries(
            {},
            optional={
                "unschedulable": st.booleans(),
                "taints": st.lists(
                    st.fixed_dictionaries({"key": KEYS, "effect": EFFECTS}, optional={"value": VALUES}),
                    max_size=2,
                ),
            },
        ),
    }
)


@settings(max_examples=500)
@given(spec=SPECS, seen=NODES)
def test_it_says_what_the_scheduler_says(spec: Json, seen: Json) -> None:
    asks = msgspec.convert({"metadata": {"name": "p"}, "spec": spec}, Pod)
    traits, constraints = traits_of(msgspec.convert(seen, Node)), constraints_of(asks)
    name = seen["metadata"]["name"]
    assert admits(traits, constraints, name) is twin(spec, seen)
    if not depends_on_name(traits, constraints):
        assert admits(traits, constraints, name) == admits(traits, constraints, "another")


def twin(spec: Json, seen: Json) -> bool:
    has, meta = seen["spec"], seen["metadata"]
    tolerations, labels = spec.get("tolerations", []), meta.get("labels", {})
    if has.get("unschedulable") and not tolerates(tolerations, taint("node.kubernetes.io/unschedulable")):
        return False
    hard = [each for each in has.get("taints", []) if each["effect"] in ("NoSchedule", "NoExecute")]
    if not all(tolerates(tolerations, each) for each in hard):
        return False
    if any(labels.get(key) != value for key, value in spec.get("nodeSelector", {}).items()):
        return False
    if "affinity" not in spec:
        return True
    (required,) = spec["affinity"]["nodeAffinity"].values()
    return any(term_matches(term, labels, meta["name"]) for term in required["nodeSelectorTerms"])


def tolerates(tolerations: list[Json], against: Json) -> bool:
    return any(
        (not each.get("effect") or each["effect"] == against["effect"])
        and (not each.get("key") or each["key"] == against["key"])
        and (
            each.get("operator") == "Exists"
            or (
                each.get("operator", "") in ("", "Equal")
                and each.get("value", "") == against.get("value", "")
            )
        )
        for each in tolerations
    )


def term_matches(term: Json, labels: dict[str, str], name: str) -> bool:
    expressions, fields = term.get("matchExpressions", []), term.get("matchFields", [])
    if not expressions and not fields:
        return False
    answers = [expression_matches(each, labels) for each in expressions]
    answers += [field_matches(each, name) for each in fields]
    return all(answers)


def expression_matches(each: Json, labels: dict[str, str]) -> bool:
    """Also False when it cannot be parsed."""
    key, operator, values = each["key"], each["operator"], each["values"]
    if key in ("", "bad key") or "no value!" in values:
        return False
    value = labels.get(key)
    match operator:
        case "In":
            return value is not None and value in values
        case "NotIn":
            return bool(values) and value not in values
        case "Exists":
            return not values and value is not None
        case "DoesNotExist":
            return not values and value is None
        case "Gt" | "Lt":
            if len(values) != 1 or not values[0].isdigit() or value is None or not value.isdigit():
                return False
            return int(value) > int(values[0]) if operator == "Gt" else int(value) < int(values[0])
    return False


def field_matches(each: Json, name: str) -> bool:
    if len(each["values"]) != 1 or each["operator"] not in ("In", "NotIn"):
        return False
    return (each["values"][0] == name) is (each["operator"] == "In")
