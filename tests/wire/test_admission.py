"""AdmissionReview v1 as Go's encoder sends it, and the answers byte by byte."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from extender.wire.admission import Add, Remove, ReviewError, allowed, decode_review, denied

DATA = Path(__file__).parents[1] / "data" / "wire"
CREATE = (DATA / "admission-review-create.json").read_bytes()
UPDATE = (DATA / "admission-review-update.json").read_bytes()


def changed(body: bytes, **request: Any) -> bytes:
    document = json.loads(body)
    document["request"] |= request
    return json.dumps(document).encode()


def refused(body: bytes) -> ReviewError:
    with pytest.raises(ReviewError) as error:
        decode_review(body)
    return error.value


def test_a_create_of_the_api_server_is_read() -> None:
    review = decode_review(CREATE)
    assert (review.operation, review.namespace, review.username, review.dry_run) == (
        "CREATE",
        "training",
        "system:serviceaccount:kube-system:job-controller",
        False,
    )
    assert review.uid == json.loads(CREATE)["request"]["uid"]
    assert review.old is None
    assert review.pod is not None
    assert review.pod.spec is not None
    assert review.pod.spec.scheduler_name == "default-scheduler"
    assert [toleration.key for toleration in review.pod.spec.tolerations or ()] == [
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
    ]
    assert review.pod.metadata.name == ""


def test_an_update_of_the_api_server_is_read_with_what_was_before() -> None:
    review = decode_review(UPDATE)
    assert review.pod is not None
    assert review.old is not None
    assert review.old.metadata.uid == review.pod.metadata.uid != ""
    assert (review.old.metadata.labels, review.pod.metadata.labels) == ({"app": "train"}, {"app": "eval"})
    assert [gate.name for gate in (review.old.spec and review.old.spec.scheduling_gates) or ()] == [
        "kvitej.io/turn"
    ]


def test_a_dry_run_says_so() -> None:
    assert decode_review(changed(CREATE, dryRun=True)).dry_run
    assert not decode_review(changed(CREATE, dryRun=None)).dry_run


def test_another_kind_has_no_pod_whatever_its_object_is() -> None:
    kind = {"group": "apps", "version": "v1", "kind": "Deployment"}
    values: list[Any] = [{"spec": {"containers": 7}}, None, []]
    for value in values:
        assert decode_review(changed(CREATE, kind=kind, object=value)).pod is None


@pytest.mark.parametrize("operation", ["DELETE", "CONNECT"])
def test_other_operations_have_no_pod(operation: str) -> None:
    assert decode_review(changed(CREATE, operation=operation, object=None)).pod is None


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"", "the body is no AdmissionReview: Input data was truncated"),
        (b"[]", "the body is no AdmissionReview: Expected `object`"),
        (b'{"a":"\xff"}', "the body is not UTF-8: invalid start byte at byte 6"),
        (b"{" * 9, "the body is no AdmissionReview: "),
        (b"{}", "apiVersion and kind are '' and ''"),
        (CREATE.replace(b"admission.k8s.io/v1", b"admission.k8s.io/v1beta1"), "set admissionReviewVersions"),
        (b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}', "request is missing or empty"),
        (changed(CREATE, uid=""), "request.uid is missing or empty"),
        (changed(CREATE, uid=7), "Expected `str`, got `int` - at `$.request.uid`"),
        (changed(CREATE, operation="PATCH"), "Invalid enum value 'PATCH' - at `$.request.operation`"),
    ],
)
def test_what_is_no_review_is_refused_without_a_uid(body: bytes, sentence: str) -> None:
    error = refused(body)
    assert sentence in str(error)
    assert error.uid is None


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        ({"namespace": ""}, "request.namespace is missing or empty"),
        ({"object": None}, "request.object is missing or null, and is needed for CREATE"),
        ({"object": {"metadata": {}}}, "request.object.spec is missing or null"),
        (
            {"object": {"metadata": {}, "spec": {"containers": {}}}},
            "request.object can't be read: Expected `array",
        ),
        ({"operation": "UPDATE", "oldObject": None}, "request.oldObject is missing or null"),
    ],
)
def test_a_pod_that_cannot_be_read_is_answered_under_its_uid(request_: dict[str, Any], sentence: str) -> None:
    error = refused(changed(CREATE, **request_))
    assert sentence in str(error)
    assert error.uid == json.loads(CREATE)["request"]["uid"]


def test_answers_are_exact() -> None:
    head = b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"u",'
    assert allowed("u") == head + b'"allowed":true}}'
    patch = (Add("/spec/tolerations/-", {"operator": "Exists"}), Remove("/metadata/annotations/a~1b"))
    encoded = base64.b64encode(
        b'[{"op":"add","path":"/spec/tolerations/-","value":{"operator":"Exists"}},'
        b'{"op":"remove","path":"/metadata/annotations/a~1b"}]'
    )
    assert allowed("u", patch, ("w",)) == (
        head + b'"allowed":true,"patchType":"JSONPatch","patch":"' + encoded + b'","warnings":["w"]}}'
    )
    assert denied("u", 429, "TooManyRequests", "full") == (
        head + b'"allowed":false,"status":'
        b'{"status":"Failure","code":429,"reason":"TooManyRequests","message":"full"}}}'
    )
