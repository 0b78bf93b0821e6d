"""The extender protocol with the bytes of Go's encoder, and with bytes that no scheduler would send."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from extender.wire.extender import (
    BindingArgs,
    Victims,
    WireError,
    binding_result,
    decode_args,
    decode_binding,
    decode_preemption,
    filter_error,
    filter_result,
    preemption_result,
)

DATA = Path(__file__).parents[1] / "data" / "wire"
FILTER, FILTER_NODES, BINDING, META, FULL = (
    (DATA / f"{name}.json").read_bytes()
    for name in (
        "filter-args",
        "filter-args-nodes",
        "binding-args",
        "preemption-args-meta",
        "preemption-args-full",
    )
)
DECODERS: list[Callable[[bytes], object]] = [decode_args, decode_binding, decode_preemption]
POD = b'"Pod":{"metadata":{"name":"p"}}'


def recased(value: Any, case: Callable[[str], str]) -> Any:
    """The same document with the protocol's own keys in another case; core objects and node names stay."""
    if isinstance(value, list):
        return [recased(item, case) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        case(key) if key[:1].isupper() else key: item if key == "Pod" else recased(item, case)
        for key, item in value.items()
    }


def refusal(decode: Callable[[bytes], object], body: bytes) -> str:
    with pytest.raises(WireError) as caught:
        decode(body)
    return str(caught.value)


def test_filter_args_of_go_keep_the_pod_and_the_raw_names() -> None:
    args = decode_args(FILTER)
    assert bytes(args.node_names) == b'["gpu-0","gpu-1","gpu-2.example.com"]'
    metadata = args.pod.metadata
    assert (metadata.namespace, metadata.name) == ("team-a", "train-0")
    assert metadata.uid == "6f1d2f4e-0000-4000-8000-000000000001"
    assert metadata.labels == {"app": "train", "team": "räksmörgås"}
    assert metadata.annotations == {
        "kvitej.io/gpu-memory": "16Gi",
        "example.com/note": 'a<b & c>d \u2028 日本語 🚀 "quoted\\"',
    }
    spec = args.pod.spec
    assert spec is not None
    assert [container.name for container in spec.init_containers or ()] == ["fetch", "proxy", "warm"]
    assert [container.restart_policy for container in spec.init_containers or ()] == [None, "Always", None]
    requests = [container.resources and container.resources.requests for container in spec.containers or ()]
    assert requests == [
        {"cpu": "3k", "memory": "64Gi", "nvidia.com/gpu": "8"},
        {"cpu": "100m", "memory": "1e3", "nvidia.com/gpu.shared": "3k"},
    ]
    assert spec.overhead == {"cpu": "250m", "memory": "120Mi"}
    assert (spec.priority, spec.scheduler_name) == (1000, "fair-quota")


def test_whole_nodes_instead_of_names_are_refused_with_the_setting_to_change() -> None:
    assert "nodeCacheCapable: true" in refusal(decode_args, FILTER_NODES)


def test_binding_args_of_go() -> None:
    assert decode_binding(BINDING) == BindingArgs(
        name="train-0", namespace="team-a", uid="6f1d2f4e-0000-4000-8000-000000000001", node="gpu-1"
    )


def test_preemption_args_of_go_by_uid_where_null_pods_are_no_pods() -> None:
    args = decode_preemption(META)
    assert args.pod.metadata.name == "train-0"
    assert args.victims == {
        "gpu-0": Victims(uids=("u-1", "u-2"), pdb_violations=1),
        "gpu-1": Victims(),
        "gpu-2": Victims(),
    }


def test_preemption_args_of_go_with_whole_pods() -> None:
    assert decode_preemption(FULL).victims == {
        "gpu-0": Victims(uids=("u-1", "u-2"), pdb_violations=1),
        "gpu-1": Victims(),
    }


def test_victims_by_uid_win_where_both_maps_are_set() -> None:
    body = (
        b'{"NodeNameToVictims":{"a":{"Pods":[{"metadata":{"uid":"x"}}]}},%b,"NodeNameToMetaVictims":{}}' % POD
    )
    assert decode_preemption(body).victims == {}


@pytest.mark.parametrize("case", [str.lower, str.upper, str.swapcase])
@pytest.mark.parametrize(
    ("decode", "body"),
    [(decode_args, FILTER), (decode_binding, BINDING), (decode_preemption, META), (decode_preemption, FULL)],
)
def test_keys_are_read_in_any_case(
    decode: Callable[[bytes], object], body: bytes, case: Callable[[str], str]
) -> None:
    other = json.dumps(recased(json.loads(body), case), ensure_ascii=False, separators=(",", ":")).encode()
    assert other != body
    assert decode(other) == decode(body)


def test_node_names_as_map_keys_keep_their_case() -> None:
    body = b'{%b,"NodeNameToMetaVictims":{"GPU-a":{},"gpu-A":{}}}' % POD
    assert list(decode_preemption(body).victims) == ["GPU-a", "gpu-A"]


def test_the_last_of_several_spellings_wins() -> None:
    assert bytes(decode_args(b'{"NodeNames":["a"],%b,"nodenames":["b"]}' % POD).node_names) == b'["b"]'
    assert bytes(decode_args(b'{"nodeNames":["a"],%b,"NodeNames":["b"]}' % POD).node_names) == b'["b"]'


@pytest.mark.parametrize(
    ("decode", "body", "says"),
    [
        (decode_args, b"", "the body is empty"),
        (decode_args, b"null", "the body: Expected `object`, got `null`"),
        (decode_args, b"\xef\xbb\xbf" + FILTER, "the body: JSON is malformed"),
        (decode_args, FILTER[:-1], "the body: Input data was truncated"),
        (decode_args, FILTER + b"x", "the body: JSON is malformed: trailing characters"),
        (decode_args, b'{"NodeNames":["\xff"],%b}' % POD, "the body is not UTF-8: invalid start byte"),
        (decode_args, b'{"NodeNames":["\\ud800"],%b}' % POD, "the body: "),
        (decode_args, b'{"NodeNames":' + b"[" * 10**5 + b"]" * 10**5 + b"}", "maximum recursion depth"),
        (decode_args, b"{%b}" % POD, "NodeNames is missing or null"),
        (decode_args, b'{"node_names":["a"],%b}' % POD, "NodeNames is missing or null"),
        (decode_args, b'{"NodeNames":{"a":1},%b}' % POD, 'NodeNames: expected a list of names, got {"a":1}'),
        (decode_args, b'{"NodeNames":["a"]}', "Pod is missing or null"),
        (decode_args, b'{"NodeNames":["a"],"Pod":null}', "Pod is missing or null"),
        (decode_args, b'{"NodeNames":["a"],"Pod":{}}', "Pod: Object missing required field `metadata`"),
        (decode_args, b'{"NodeNames":["a"],"Pod":{"metadata":{}}}', "Pod: metadata.name is missing or empty"),
        (
            decode_args,
            b'{"NodeNames":["a"],"Pod":{"metadata":{"name":1}}}',
            "Pod: Expected `str`, got `int` - at `$.metadata.name`",
        ),
        (decode_binding, b"{}", "PodName is missing or null"),
        (decode_binding, BINDING.replace(b'"gpu-1"', b"null"), "Node is missing or null"),
        (decode_binding, BINDING.replace(b'"gpu-1"', b'""'), "Node: Expected `str` of length >= 1"),
        (decode_binding, BINDING.replace(b'"gpu-1"', b"[1]"), "Node: Expected `str`, got `array`"),
        (decode_preemption, b"{%b}" % POD, "NodeNameToMetaVictims is missing or null"),
        (decode_preemption, b'{"NodeNameToMetaVictims":{}}', "Pod is missing or null"),
        (decode_preemption, b'{"NodeNameToMetaVictims":[],%b}' % POD, "Expected `object`, got `array`"),
        (decode_preemption, META.replace(b'{"UID":"u-2"}', b"null"), "NodeNameToMetaVictims[gpu-0].Pods"),
        (decode_preemption, META.replace(b'{"UID":"u-2"}', b"{}"), "Pods: UID is missing or null"),
        (decode_preemption, META.replace(b'"u-2"', b'""'), "Pods.UID: Expected `str` of length >= 1"),
        (decode_preemption, FULL.replace(b'"uid":"u-2"', b'"id":"u-2"'), "Pods.metadata: uid is missing"),
        (decode_preemption, META.replace(b":1}", b":-1}"), "NumPDBViolations: Expected `int` >= 0"),
        (decode_preemption, META.replace(b":1}", b":1.5}"), "NumPDBViolations: Expected `int`, got `float`"),
        (decode_preemption, META.replace(b":1}", b":%b}" % (b"9" * 25)), "NumPDBViolations: Expected `int`"),
        (decode_preemption, META.replace(b":1}", b":%b}" % (b"9" * 9999)), "NumPDBViolations: Integer value"),
    ],
)
def test_a_refusal_says_which_key_and_what_was_found(
    decode: Callable[[bytes], object], body: bytes, says: str
) -> None:
    assert says in refusal(decode, body)


def test_a_refusal_quotes_little_of_the_body() -> None:
    assert len(refusal(decode_args, b'{"NodeNames":"%b",%b}' % (b"x" * 10**6, POD))) < 200
    body = b'{%b,"NodeNameToMetaVictims":{"%b":{"Pods":[{"UID":7}]}}}' % (POD, b"x" * 10**6)
    assert len(refusal(decode_preemption, body)) < 250


def test_filter_answers_carry_every_key_of_the_protocol() -> None:
    assert filter_result(b'["a","b"]', b'{"c":"no free GPU"}', b"{}") == (
        b'{"Nodes":null,"NodeNames":["a","b"],"FailedNodes":{"c":"no free GPU"},'
        b'"FailedAndUnresolvableNodes":{},"Error":""}'
    )
    assert filter_error('not "synced" yet <>&\n') == (
        b'{"Nodes":null,"NodeNames":null,"FailedNodes":null,'
        b'"FailedAndUnresolvableNodes":null,"Error":"not \\"synced\\" yet <>&\\n"}'
    )


def test_binding_answers() -> None:
    assert binding_result("") == b'{"Error":""}'
    assert binding_result("gpu-1: no free GPU, 日本") == '{"Error":"gpu-1: no free GPU, 日本"}'.encode()
    assert binding_result("odd \ud800 text") == b'{"Error":"odd ? text"}'


def test_preemption_answers_name_victims_by_uid() -> None:
    assert preemption_result({}) == b'{"NodeNameToMetaVictims":{}}'
    assert preemption_result({"b": Victims(("u-1", "u-2"), 1), "a": Victims(("u-3",))}) == (
        b'{"NodeNameToMetaVictims":{"b":{"Pods":[{"UID":"u-1"},{"UID":"u-2"}],"NumPDBViolations":1},'
        b'"a":{"Pods":[{"UID":"u-3"}],"NumPDBViolations":0}}}'
    )


def test_a_preemption_answer_reads_back_as_what_was_proposed() -> None:
    victims = decode_preemption(META).victims
    answer = json.loads(preemption_result(victims))
    body = json.dumps({"Pod": {"metadata": {"name": "p"}}, **answer}).encode()
    assert decode_preemption(body).victims == victims


def decoded_or_refused(body: bytes) -> None:
    for decode in DECODERS:
        refused = ""
        args: Any = None
        try:
            args = decode(body)
        except WireError as error:
            refused = str(error)
        if args is None:
            assert 0 < len(refused) < 400
        elif isinstance(args, BindingArgs):
            assert all(msgspec.structs.astuple(args))
        else:
            assert args.pod.metadata.name


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["Pod", "pod", "NodeNames", "NODENAMES", "metadata", "name", "uid", "UID", "Pods"]
            )
            | st.sampled_from(["NodeNameToMetaVictims", "NodeNameToVictims", "NumPDBViolations", "spec"])
            | st.sampled_from(["PodName", "PodNamespace", "PodUID", "Node", "containers", "resources"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.binary(max_size=60))
@example(b"[" * 100_000)
@example(b'{"Pod":' * 100_000)
def test_any_bytes_are_decoded_or_refused(body: bytes) -> None:
    decoded_or_refused(body)


@given(json_values)
def test_any_json_is_decoded_or_refused(value: object) -> None:
    decoded_or_refused(json.dumps(value).encode())


@given(st.sampled_from([FILTER, BINDING, META, FULL]), st.data())
def test_any_damage_to_a_real_request_is_decoded_or_refused(body: bytes, data: st.DataObject) -> None:
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(body)))
        end = data.draw(st.integers(start, min(start + 8, len(body))))
        damage = data.draw(st.sampled_from(["truncate", "replace", "repeat", "swap case"]))
        if damage == "truncate":
            body = body[:start]
        elif damage == "replace":
            token = st.binary(max_size=4) | st.sampled_from(
                [b"null", b"1e999", b"{}", b"[", b"\\ud800", b'"']
            )
            body = body[:start] + data.draw(token) + body[end:]
        elif damage == "repeat":
            body = body[:end] + body[start:]
        else:
            body = body[:start] + body[start:end].swapcase() + body[end:]
    decoded_or_refused(body)


@given(
    st.sampled_from([FILTER, BINDING, META, FULL]),
    st.sampled_from(["Pod", "PodName", "Node", "NodeNames", "NodeNameToMetaVictims", "NodeNameToVictims"]),
    st.sampled_from([str.lower, str.upper, str]),
    json_values,
)
def test_a_key_given_twice_is_decoded_or_refused(
    body: bytes, key: str, case: Callable[[str], str], value: object
) -> None:
    decoded_or_refused(body[:-1] + f",{json.dumps(case(key))}:{json.dumps(value)}}}".encode())
