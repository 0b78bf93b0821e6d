"""What a pod asks for, against a second reading of the scheduler's rule and against what no pod may ask."""

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.cluster.request import CAP, MOST_DEVICES, Kind, Need, Request, RequestError, request_of, steps
from extender.wire.objects import Pod
from tests.builders import GPU, MIG, SHARED, Json, container, pod, read_pod

DEVICES = (GPU, SHARED, MIG)
GI = 2**30


def with_spec(**spec: Any) -> Pod:
    return pod(spec=spec)


def cpu_of(text: str) -> int:
    """Thousandths, rounded up."""
    amount = Fraction(text.removesuffix("m")) * (1 if text.endswith("m") else 1000)
    return -(-amount.numerator // amount.denominator)


def memory_of(text: str) -> int:
    return int(text.removesuffix("Gi")) * (GI if text.endswith("Gi") else 1)


READ = {"cpu": cpu_of, "memory": memory_of, **dict.fromkeys(DEVICES, int)}

amounts = st.fixed_dictionaries(
    {},
    optional={
        "cpu": st.sampled_from(["0", "1", "2.5", "100m", "1500m"]),
        "memory": st.sampled_from(["0", "3Gi", "1024", "64Gi"]),
        **{name: st.sampled_from(["0", "1", "2", "7"]) for name in DEVICES},
    },
)
inits = st.lists(st.tuples(amounts, st.booleans()), max_size=4)
core_amounts = amounts.map(lambda found: {k: v for k, v in found.items() if k in ("cpu", "memory")})


def expected(
    apps: list[Json], starts: list[tuple[Json, bool]], overhead: Json, whole_pod: Json
) -> dict[str, int]:
    """The rule per resource name, spelled out as a walk over time: what runs at each moment, and the most of it."""
    total = {}
    for name, read in READ.items():

        def ask(found: Json, name: str = name, read: Any = read) -> int:
            return int(read(found.get(name, "0")))

        moments = []
        for position, (init, _) in enumerate(starts):
            before = sum(ask(other) for other, kept in starts[:position] if kept)
            moments.append(before + ask(init))
        moments.append(sum(ask(init) for init, kept in starts if kept) + sum(map(ask, apps)))
        most = max(moments)
        if name in whole_pod and name in ("cpu", "memory"):
            most = ask(whole_pod)
        total[name] = most + ask(overhead)
    return total


@given(st.lists(amounts, min_size=1, max_size=3), inits, amounts, core_amounts)
def test_the_effective_request_is_the_schedulers(
    apps: list[Json], starts: list[tuple[Json, bool]], overhead: Json, whole_pod: Json
) -> None:
    request = request_of(
        with_spec(
            containers=[container(f"app-{i}", found) for i, found in enumerate(apps)],
            initContainers=[
                container(f"init-{i}", found, sidecar=sidecar) for i, (found, sidecar) in enumerate(starts)
            ],
            overhead=overhead,
            resources={"requests": whole_pod},
        )
    )
    total = expected(apps, starts, overhead, whole_pod)
    assert (request.cpu, request.memory) == (total["cpu"], total["memory"])
    assert dict(request.devices) == {name: total[name] for name in DEVICES if total[name]}
    for name in DEVICES:
        held = [sum(dict(need.devices).get(name, 0) for need in step) for step in steps(request.needs)]
        assert max(held) == total[name], "the containers hold together what the pod asks for"


def needs(request: Request) -> list[tuple[str, Kind, dict[str, int]]]:
    return [(need.container, need.kind, dict(need.devices)) for need in request.needs]


def test_init_containers_and_apps_take_turns_and_sidecars_stay() -> None:
    # init "a" alone: 2; sidecar "b": 1; init "c" beside it: 3 + 1 = 4; running: apps 1 + 2 and sidecar 1 = 4.
    found = request_of(
        with_spec(
            initContainers=[
                container("a", {GPU: "2"}),
                container("b", {GPU: "1"}, sidecar=True),
                container("c", {GPU: "3"}),
            ],
            containers=[container("x", {GPU: "1"}), container("y", {GPU: "2"}), container("z", {"cpu": "1"})],
        )
    )
    assert found.devices == ((GPU, 4),)
    assert needs(found) == [
        ("a", Kind.INIT, {GPU: 2}),
        ("b", Kind.SIDECAR, {GPU: 1}),
        ("c", Kind.INIT, {GPU: 3}),
        ("x", Kind.APP, {GPU: 1}),
        ("y", Kind.APP, {GPU: 2}),
    ]
    names = [[need.container for need in step] for step in steps(found.needs)]
    assert names == [["a"], ["b", "c"], ["b", "x", "y"]]


def test_a_sidecar_counts_only_beside_inits_that_start_after_it() -> None:
    # init "first": 4 with no sidecar yet; running: 1 + 1 = 2. So 4, not 5.
    found = request_of(
        with_spec(
            initContainers=[container("first", {GPU: "4"}), container("side", {GPU: "1"}, sidecar=True)],
            containers=[container("main", {GPU: "1"})],
        )
    )
    assert found.devices == ((GPU, 4),)


def test_pod_level_requests_replace_cpu_and_memory_only() -> None:
    found = request_of(
        with_spec(
            containers=[container("main", {"cpu": "4", "memory": "8Gi", GPU: "2"})],
            resources={"requests": {"cpu": "1", GPU: "7"}},
            overhead={"cpu": "250m", "memory": "1Gi"},
        )
    )
    assert (found.cpu, found.memory, found.devices) == (1250, 9 * GI, ((GPU, 2),))


def test_overhead_holds_devices_as_long_as_the_pod_does() -> None:
    found = request_of(
        with_spec(
            initContainers=[container("warm", {GPU: "3"})],
            containers=[container("main", {GPU: "1"})],
            overhead={GPU: "1"},
        )
    )
    assert found.devices == ((GPU, 4),)
    assert found.needs[0] == Need("", Kind.SIDECAR, ((GPU, 1),))


@pytest.mark.parametrize(
    ("asks", "expected_count"),
    [("8", 8), ("3k", 3000), (3, 3), ("2e1", 20), ("1000m", 1), ("0x", None), ("1500m", None), ("-1", None)],
)
def test_counts_follow_the_quantity_grammar(asks: Any, expected_count: int | None) -> None:
    if expected_count is None:
        with pytest.raises(RequestError, match=r"spec\.containers\[0\]\.resources\[nvidia\.com/gpu\]"):
            request_of(pod(amounts={GPU: asks}))
    else:
        assert request_of(pod(amounts={GPU: asks})).devices == ((GPU, expected_count),)


def test_a_limit_alone_is_the_request() -> None:
    found = request_of(with_spec(containers=[{"name": "main", "resources": {"limits": {GPU: "2"}}}]))
    assert found.devices == ((GPU, 2),)


def test_a_pod_without_devices_asks_for_none_and_its_annotation_is_not_looked_at() -> None:
    found = request_of(pod(amounts={"cpu": "1", GPU: "0"}, memory="nonsense"))
    assert (found.devices, found.needs, found.gpu_memory) == ((), (), 0)


def test_absurd_amounts_are_capped_and_stay_absurd() -> None:
    found = request_of(pod(amounts={GPU: "9E", "cpu": "9E", "memory": "9E"}))
    assert (found.devices, found.cpu, found.memory) == (((GPU, MOST_DEVICES),), CAP, CAP)


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"containers": [container("a", {"cpu": "fast"})]}, r"spec.containers[0].resources[cpu]"),
        ({"containers": [container("a", {"memory": "-1"})]}, r"spec.containers[0].resources[memory]"),
        (
            {"containers": [container("a", {}), container("b", {MIG: "one"})]},
            r"spec.containers[1].resources[nvidia.com/mig-1g.5gb]",
        ),
        (
            {"containers": [container("a", {})], "initContainers": [container("i", {SHARED: "1.5"})]},
            r"spec.initContainers[0].resources[nvidia.com/gpu.shared]",
        ),
        ({"containers": [container("a", {})], "overhead": {"cpu": "?"}}, r"spec.overhead[cpu]"),
        ({"containers": [container("a", {})], "overhead": {GPU: "x"}}, r"spec.overhead[nvidia.com/gpu]"),
        (
            {"containers": [container("a", {})], "resources": {"requests": {"memory": "1 Gi"}}},
            r"spec.resources.requests[memory]",
        ),
    ],
)
def test_what_cannot_be_read_is_named_with_its_path_and_never_zero(spec: Json, path: str) -> None:
    with pytest.raises(RequestError) as caught:
        request_of(with_spec(**spec))
    assert str(caught.value).startswith(path)


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("40Gi", 40 * GI),
        ("1500M", 1_500_000_000),
        ("1.5Gi", 3 * GI // 2),
        ("1073741824", GI),
        ("1e9", 10**9),
        ("1Pi", CAP),
    ],
)
def test_declared_memory_is_an_amount_of_bytes(text: str, amount: int) -> None:
    assert request_of(pod(amounts={SHARED: "1"}, memory=text)).gpu_memory == amount


@pytest.mark.parametrize("text", ["", "0", "-1Gi", "5 Gi", "5GB", "16gi", "lots", "NaN", "0x10", "2Pi", "9E"])
def test_declared_memory_that_is_no_amount_is_refused_with_its_path(text: str) -> None:
    with pytest.raises(RequestError, match=r"^metadata\.annotations\[kvitej\.io/gpu-memory\]"):
        request_of(pod(amounts={SHARED: "1"}, memory=text))


def test_equal_shapes_are_equal_and_hash_equal() -> None:
    first, second = (request_of(pod(name, {GPU: "2", "cpu": "1"})) for name in ("a", "b"))
    assert first == second
    assert hash(first) == hash(second)


def test_without_a_spec_nothing_is_asked_for() -> None:
    assert request_of(read_pod({"metadata": {"name": "p"}})) == Request(0, 0)
