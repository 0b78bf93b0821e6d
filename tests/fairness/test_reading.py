"""What a policy says, what is wrong with a bad one, and who belongs to which."""

from __future__ import annotations

from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.fairness.fields import PolicyError
from extender.fairness.policy import Foreign, NeverFits, Place, Share, Tenant
from extender.fairness.reading import Policies, read_policy
from extender.fairness.rules import Closed, Form, Forms, Headroom, MaxGpus, MinMemory, Models, Rule
from extender.fairness.window import Window
from tests.fairness.bad import BAD
from tests.fairness.builders import object_of, policy, readme

HOUR = 3600.0


def test_the_policy_of_three_tenants_says_what_it_says() -> None:
    found = policy()
    assert found.tenants == (
        Tenant("training", 40, Share(part=0.2), Share(part=0.6), preemptible=True),
        Tenant("inference", 50, Share(part=0.4), Share(part=0.8)),
        Tenant("research", 10, Share(part=0.05), Share(part=0.25), preemptible=True),
    )
    assert {tenant.half_life for tenant in found.tenants} == {24 * HOUR}
    assert (found.hold_after, found.decay_strength, found.generation) == (600, 1, 1)
    assert (found.never_fits, found.foreign, found.default) == (NeverFits.REFUSE, Foreign.COUNT, None)
    assert not found.reclaim_dry_run


def test_every_field_has_its_meaning() -> None:
    found = policy(
        """
        decayHalfLife: 48h
        decayStrength: 0
        nodeSelector: {pool: a100}
        schedulerNames: [fair-quota, batch]
        default: ml
        holdAfter: 1m30s
        autoscaling: {maxPending: 3}
        foreignScheduler: rewrite
        reclaim: {dryRun: true}
        tenants:
        - name: ml
          weight: 1.5
          minGPUs: 4
          namespaces: {names: [ml-1, ml-2], selector: {matchLabels: {team: ml}}}
          decayHalfLife: 6h
          queueDepth: 10
          minRuntime: 90s
          evictionsPerHour: 0
          priorityClasses: [low]
          waitTarget: 1m
          adopt: true
        - {name: web, weight: 1, maxGPUs: 8.5}
        """
    )
    ml, web = found.tenants
    assert (ml.least, ml.most) == (Share(gpus=4), None)
    assert (ml.namespaces, ml.selector) == (frozenset({"ml-1", "ml-2"}), {"team": "ml"})
    assert (ml.half_life, ml.queue_depth, ml.min_runtime, ml.wait_target) == (6 * HOUR, 10, 90, 60)
    assert (ml.evictions_per_hour, ml.priority_classes, ml.adopt) == (0, frozenset({"low"}), True)
    assert (web.least, web.most, web.half_life) == (Share(part=0), Share(gpus=8.5), 48 * HOUR)
    assert (web.evictions_per_hour, web.priority_classes, web.wait_target) == (None, None, None)
    assert (found.node_selector, found.scheduler_names) == (
        {"pool": "a100"},
        frozenset({"fair-quota", "batch"}),
    )
    assert (found.decay_strength, found.hold_after, found.max_pending) == (0, 90, 3)
    assert (found.never_fits, found.foreign, found.reclaim_dry_run) == (NeverFits.WAIT, Foreign.REWRITE, True)


@pytest.mark.parametrize(("spec", "told"), BAD, ids=[told for _, told in BAD])
def test_a_bad_policy_is_refused_with_path_value_and_way_out(spec: dict[str, Any], told: str) -> None:
    with pytest.raises(PolicyError) as refused:
        policy(spec)
    assert str(refused.value).startswith(told)
    assert str(refused.value).endswith(".")


def test_minimum_shares_that_add_up_to_all_but_for_rounding_are_read() -> None:
    thirds = [
        {"name": name, "weight": 1, "minShare": share}
        for name, share in zip("abc", (33.4, 33.3, 33.3), strict=True)
    ]
    assert sum(each.least.of(100) for each in policy({"tenants": thirds}).tenants) == pytest.approx(100)


def test_a_namespace_is_the_tenant_of_its_name_unless_namespaces_are_named() -> None:
    policies = Policies([policy({"tenants": [
        {"name": "a", "weight": 1},
        {"name": "b", "weight": 1, "namespaces": {"names": ["b-1"]}},
        {"name": "c", "weight": 1, "namespaces": {"selector": {"matchLabels": {"team": "c", "env": "prod"}}}},
    ]})])  # fmt: skip

    def tenant_of(namespace: str, **labels: str) -> str | None:
        place = policies.place(namespace, labels, "fair-quota")
        assert place is not None
        return place.tenant.name if place.tenant else None

    assert tenant_of("a") == "a"
    assert tenant_of("b-1") == "b"
    assert tenant_of("b") is None
    assert tenant_of("c") is None
    assert tenant_of("x", team="c") is None
    assert tenant_of("x", team="c", env="prod", more="1") == "c"


def test_a_pod_is_placed_by_the_policies_of_its_scheduler_tenants_before_defaults() -> None:
    batch = policy({"schedulerNames": ["batch"], "tenants": [{"name": "ml", "weight": 1}]}, "a-batch")
    online = policy(
        {"default": "rest", "tenants": [{"name": "ml", "weight": 1}, {"name": "rest", "weight": 1}]}, "online"
    )
    policies = Policies([online, batch])
    assert policies.all == (batch, online)
    assert policies.place("ml", {}, "batch") == Place(batch, batch.tenants[0])
    assert policies.place("ml", {}, "fair-quota") == Place(online, online.tenants[0])
    assert policies.place("other", {}, "batch") == Place(online, online.tenants[1])
    assert Policies([batch]).place("other", {}, "batch") == Place(batch, None)
    assert Policies([batch]).place("ml", {}, "fair-quota") is None
    assert Policies([]).place("ml", {}, "fair-quota") is None


def test_a_node_is_in_the_first_pool_that_its_labels_fit() -> None:
    tenants = [{"name": "a", "weight": 1}]
    big = policy({"tenants": tenants, "nodeSelector": {"gpu": "h100"}}, "big")
    rest = policy({"tenants": tenants}, "rest")
    assert Policies([rest, big]).pool_of({"gpu": "h100"}) == big
    assert Policies([rest, big]).pool_of({"gpu": "a100"}) == rest
    assert Policies([big]).pool_of({"gpu": "a100"}) is None


def test_what_is_claimed_twice_is_told_to_both_and_goes_to_the_first_by_name() -> None:
    labelled = {"name": "z", "weight": 1, "namespaces": {"selector": {"matchLabels": {"team": "ml"}}}}
    one = policy({"tenants": [labelled, {"name": "ml", "weight": 1}], "nodeSelector": {"gpu": "h100"}}, "one")
    two = policy({"tenants": [{"name": "ml-2", "weight": 1}], "nodeSelector": {"zone": "a"}}, "two")
    apart = policy({"tenants": [{"name": "q", "weight": 1}], "nodeSelector": {"zone": "b"}}, "zapart")
    policies = Policies([apart, two, one])
    namespaces = {"ml": {"team": "ml"}, "ml-2": {"team": "ml"}, "q": {}}
    nodes = {"n1": {"gpu": "h100", "zone": "a"}, "n2": {"gpu": "h100"}, "n3": {"zone": "b"}}
    within = (
        "Namespace ml is in tenant ml of one and in tenant z of one: the former has it, as the first by name."
    )
    across = (
        "Namespace ml-2 is in tenant z of one and in tenant ml-2 of two: the former has it, as the first by name. "
        "Node n1 is in the pool of one and in the pool of two: the former has it, as the first by name."
    )
    assert policies.conflicts(namespaces, nodes) == {"one": f"{within} {across}", "two": across}
    for namespace, owner in (("ml", "ml"), ("ml-2", "z")):
        place = policies.place(namespace, namespaces[namespace], "fair-quota")
        assert place is not None
        assert place.tenant is not None
        assert (place.policy, place.tenant.name) == (one, owner)


def test_tenants_of_schedulers_that_differ_do_not_conflict() -> None:
    tenants = [{"name": "a", "weight": 1}]
    one = policy({"tenants": tenants, "schedulerNames": ["x"], "nodeSelector": {"p": "x"}}, "one")
    two = policy({"tenants": tenants, "schedulerNames": ["y"], "nodeSelector": {"p": "y"}}, "two")
    both = policy({"tenants": tenants, "nodeSelector": {"p": "z"}}, "zboth")
    assert Policies([one, two]).conflicts({"a": {}}, {}) == {}
    assert set(Policies([one, two, both]).conflicts({"a": {}}, {})) == {"one", "zboth"}


def test_many_claims_are_told_in_one_sentence() -> None:
    tenants = [{"name": "a", "weight": 1}]
    pools = [policy({"tenants": tenants, "schedulerNames": [name]}, name) for name in ("one", "two")]
    nodes: dict[str, dict[str, str]] = {f"n{index}": {} for index in range(5)}
    assert Policies(pools).conflicts({}, nodes)["two"] == (
        "Nodes n0, n1 and 3 more are in the pool of one and in the pool of two: "
        "the former has them, as the first by name."
    )


def test_every_rule_has_its_meaning() -> None:
    found = policy(
        """
        tenants: [{name: ml, weight: 1}]
        watermark: 80
        dynamicWatermark: {max: 92.5}
        rules:
        - name: by-day
          message: at night only
          dryRun: true
          tenants: [ml]
          namespaces: [ml, ml-1]
          workloads: [batch]
          closed: {days: [Fri-Mon, Wed], from: "09:00", to: "18:30", timeZone: Europe/Berlin}
        - {name: sundays, closed: {days: [Sun], timeZone: UTC}}
        - {name: memory, minMemory: {gpu: 16Gi}}
        - {name: forms, form: {development: whole, batch: time-slice}}
        - {name: small, maxGPUs: 2}
        - {name: models, models: [b, a]}
        - {name: spare, headroom: 12.5%}
        """
    )
    forms = {
        "inference": Form.MIG,
        "training": Form.WHOLE,
        "development": Form.WHOLE,
        "batch": Form.TIME_SLICE,
    }
    days = frozenset((4, 5, 6, 0, 2))
    assert found.rules == (
        Rule(
            "by-day",
            Closed(Window(days, 9 * 3600, 18 * 3600 + 1800, ZoneInfo("Europe/Berlin"))),
            "at night only",
            True,
            frozenset({"ml"}),
            frozenset({"ml", "ml-1"}),
            frozenset({"batch"}),
        ),
        Rule("sundays", Closed(Window(frozenset({6}), 0, 86_400, ZoneInfo("UTC")))),
        Rule("memory", MinMemory(0, 16 << 30)),
        Rule("forms", Forms(forms)),
        Rule("small", MaxGpus(2)),
        Rule("models", Models(("a", "b"))),
        Rule("spare", Headroom(0.125)),
    )
    assert (found.watermark, found.watermark_max) == (0.8, 0.925)
    assert (policy().rules, policy().watermark, policy().watermark_max) == ((), None, None)


def test_the_policy_and_the_rules_of_the_readme_are_read() -> None:
    found = policy(readme())
    assert found.tenants == policy().tenants
    assert len({type(rule.demand) for rule in found.rules}) == len(found.rules) == 6


def test_a_time_zone_that_this_host_does_not_know_is_refused() -> None:
    for name in ("Europe/Atlantis", "Europe", "x" * 64):
        closed = {"name": "r", "closed": {"timeZone": name}}
        with pytest.raises(PolicyError, match=r"^spec\.rules\[0\]\.closed\.timeZone is .*no time zone that"):
            policy({"tenants": [{"name": "a", "weight": 1}], "rules": [closed]})


WORDS = "name days from to timeZone host gpu training closed minMemory form maxGPUs models headroom tenants workloads"


@given(
    st.recursive(
        st.none()
        | st.text(max_size=8)
        | st.floats()
        | st.booleans()
        | st.sampled_from(["Mon", "9:00", "20%"]),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS.split()), inner, max_size=5)
        ),
        max_leaves=12,
    )
)
def test_a_rule_is_read_or_refused_with_its_path(found: object) -> None:
    spec = {"tenants": [{"name": "a", "weight": 1}], "rules": [found]}
    try:
        shape = object_of(spec)
    except msgspec.ValidationError:
        return
    said = "spec.rules."
    try:
        read_policy(shape)
    except PolicyError as refused:
        said = str(refused)
    assert said.startswith("spec.rules")
    assert said.endswith(".")
