"""Random clusters under the planner, against a recount that knows nothing of it.

Pods come, go, lose their gates and nominations; writes fail or are carried out late; the scheduler binds, refuses or
does nothing; nodes and policies change; the process is killed and begins anew. After every event the book and the
ledger are recomputed from what lives, and no more GPUs are promised than there are; when all has settled, nobody in
line could have been seated.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from extender.decide.claims import Settings
from extender.decide.instructions import Evict, Failed, Instruction, Nominate, NotEvicted, Release
from extender.fairness.policy import Policy, Share, Tenant
from extender.wire.marks import GATE
from tests.decide.planning import Job, World
from tests.decide.test_plan import of_others

NODES = ("n0", "n1", "n2")
TENANTS = ("a", "b", "i")
CORES = 96
HOLD_AFTER = 60.0


def shares(a: int, b: int, i: int, least: int) -> Policy:
    """Percent at most for two that may be evicted and one that may not."""
    return Policy(
        "p",
        (
            Tenant("a", 2.0, Share(part=least / 100), Share(part=a / 100), preemptible=True),
            Tenant("b", 1.0, most=Share(part=b / 100), preemptible=True),
            Tenant("i", 1.0, Share(part=least / 100), Share(part=i / 100)),
        ),
        hold_after=HOLD_AFTER,
    )


POLICIES = (shares(100, 100, 100, 0), shares(60, 50, 80, 25), shares(100, 20, 40, 30))


class Planning(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.policy = POLICIES[0]
        self.count = 0
        self.promised: set[str] = set()
        """Who was given a seat before its victims had left, and so before a policy may have been edited."""

    @initialize(policy=st.sampled_from(POLICIES), reclaims=st.booleans(), at_once=st.integers(1, 8))
    def begin(self, policy: Policy, reclaims: bool, at_once: int) -> None:
        self.policy = policy
        self.world = World(
            [policy],
            nodes=NODES[:2],
            settings=Settings(at_once=at_once, in_flight=8),
            reclaim=of_others if reclaims else None,
        )
        self.world.judge = self.judge

    def some(self, number: int, *, bound: bool) -> Job | None:
        found = [job for job in self.world.jobs.values() if (job.at is not None) == bound]
        return found[number % len(found)] if found else None

    # who comes and goes

    @rule(
        tenant=st.sampled_from([*TENANTS, *TENANTS, "stranger"]),
        many=st.integers(1, 6),
        gpus=st.sampled_from([1, 1, 2, 4, 8]),
        cores=st.sampled_from([1, 1, 40]),
        priority=st.integers(0, 1),
        gates=st.sampled_from([(GATE,), (GATE,), (GATE,), (), (GATE, "other")]),
    )
    def create(
        self, tenant: str, many: int, gpus: int, cores: int, priority: int, gates: tuple[str, ...]
    ) -> None:
        for _ in range(many):
            self.count += 1
            born = int(self.world.now)
            name = f"{tenant}{self.count:04}"
            self.world.put(Job(name, tenant, gpus, cores, priority, born, gates=gates))

    @rule(number=st.integers(0, 99), bound=st.booleans())
    def end(self, number: int, bound: bool) -> None:
        job = self.some(number, bound=bound)
        if job is not None:
            self.world.end(job.uid)

    @rule(number=st.integers(0, 99), gates=st.sampled_from([(), (GATE,)]))
    def lift_gates(self, number: int, gates: tuple[str, ...]) -> None:
        """By hand: ours, those of others, or all."""
        job = self.some(number, bound=False)
        if job is not None:
            self.world.change(job.uid, gates=tuple(gate for gate in job.gates if gate in gates))

    @rule(name=st.sampled_from(NODES), gpus=st.sampled_from([4, 8]))
    def put_node(self, name: str, gpus: int) -> None:
        sitting = sum(job.gpus for job in self.world.jobs.values() if job.at == name)
        if sitting <= gpus:
            self.world.put_node(name, gpus)

    @rule(name=st.sampled_from(NODES))
    def lose_node(self, name: str) -> None:
        if name in self.world.nodes and len(self.world.nodes) > 1:
            for job in [job for job in self.world.jobs.values() if job.at == name]:
                self.world.end(job.uid)
            self.world.remove_node(name)

    @rule(policy=st.sampled_from(POLICIES))
    def edit(self, policy: Policy) -> None:
        self.policy = policy
        self.world.edit(policy)

    # writes and the scheduler

    @precondition(lambda self: self.world.todo)
    @rule(many=st.integers(1, 4))
    def carry(self, many: int) -> None:
        for _ in range(min(many, len(self.world.todo))):
            self.world.carry()

    @precondition(lambda self: self.world.todo)
    @rule()
    def fail(self) -> None:
        match self.world.todo.popleft():
            case Release(pod) | Nominate(pod):
                self.world.tell(Failed(pod.uid, "no answer"))
            case Evict(victims):
                self.world.tell(NotEvicted(victims[0].uid, "a budget"))
            case _:
                pass

    @rule(number=st.integers(0, 99), many=st.integers(1, 8))
    def schedule(self, number: int, many: int) -> None:
        ready = [job for job in self.world.jobs.values() if job.at is None and not job.gates]
        for job in ready[number % len(ready) :][:many] if ready else ():
            claimed = self.world.planner.waiters[job.uid].node
            at = self.world.schedule(job.uid)
            assert at is None or at == claimed, "seated out of turn"

    @rule(number=st.integers(0, 99))
    def refuse(self, number: int) -> None:
        """The scheduler knows a reason of its own."""
        ready = [job for job in self.world.jobs.values() if job.at is None and not job.gates]
        if ready:
            self.world.change(ready[number % len(ready)].uid, unschedulable=True, nominated=None)

    @rule(seconds=st.sampled_from([1, 5, 40, 130]))
    def wait(self, seconds: int) -> None:
        self.world.wait(seconds, step=max(1.0, seconds / 8))

    @rule(half=st.booleans())
    def restart(self, half: bool) -> None:
        """Killed, perhaps between the two patches of a release."""
        if half and self.world.todo:
            match self.world.todo[0]:
                case Release(pod, str(node)) if pod.uid in self.world.jobs:
                    job = self.world.jobs[pod.uid]
                    self.world.jobs[pod.uid] = replace(job, nominated=node)
        before = {uid for uid, job in self.world.jobs.items() if job.at is None}
        self.world.start()
        assert self.world.planner.waiters.keys() == before

    # what must hold

    @invariant()
    def no_more_is_promised_than_there_is(self) -> None:
        if not hasattr(self, "world"):
            return
        world = self.world
        sitting: Counter[str] = Counter()
        for job in world.jobs.values():
            if job.at is not None:
                sitting[job.at] += job.gpus
        for waiter in world.planner.waiters.values():
            if waiter.node is not None:
                sitting[waiter.node] += world.jobs[waiter.ref.uid].gpus
        for victim, winner in world.planner.claims.leaving.items():
            assert winner.node == world.jobs[victim].at, "a victim elsewhere"
            assert winner.victims, "nobody waits for the victim"
            sitting[world.jobs[victim].at or ""] -= world.jobs[victim].gpus
        for name, gpus in sitting.items():
            assert gpus <= world.nodes[name], f"{gpus} GPUs of {name} are promised"

    def judge(self, said: list[Instruction]) -> None:
        """What one step says is fair."""
        world = self.world
        capacity = sum(world.nodes.values())
        line = world.planner.pools.by_name["p"].line
        for each in said:
            if isinstance(each, Evict):
                owners = {world.jobs[victim.uid].tenant for victim in each.victims}
                assert "i" not in owners, "work that may not be evicted"
                assert world.jobs[each.pod.uid].tenant not in owners
                self.promised.add(each.pod.uid)
            if isinstance(each, Release | Nominate) and each.node is not None:
                job = world.jobs[each.pod.uid]
                assert not set(job.gates) - {GATE}, "others gate it"
                if job.uid in self.promised or self.is_late(job):
                    continue
                assert self.may_have(job.tenant, capacity) >= 0, "more than its tenant may have"
                waiter = world.planner.waiters[job.uid]
                alike = line.alike(waiter.shape) if waiter.shape is not None else []
                for group in alike:
                    if group.tenant == job.tenant and group.priority == job.priority:
                        assert group.head > (-job.priority, waiter.created, job.uid), "out of turn"

    def is_late(self, job: Job) -> bool:
        """Whether a node may have been held for it."""
        return self.world.now - job.born >= HOLD_AFTER

    @invariant()
    def the_ledger_is_what_was_released(self) -> None:
        if not hasattr(self, "world"):
            return
        for tenant in TENANTS:
            ledger = self.world.planner.pools.by_name["p"].ledger
            released = ledger.account(tenant).released
            assert released == 1_000_000 * sum(
                self.world.jobs[uid].gpus
                for uid, waiter in self.world.planner.waiters.items()
                if waiter.node is not None and waiter.tenant == tenant
            )

    @invariant()
    def nominations_are_ended(self) -> None:
        """A nomination that we wrote and no claim backs is being cleared."""
        if not hasattr(self, "world"):
            return
        for waiter in self.world.planner.waiters.values():
            assert waiter.node is not None or waiter.wrote is None

    @rule()
    def settle(self) -> None:
        """All is carried out and bound; then nobody in line could have been seated."""
        world = self.world
        world.run()
        if world.reclaim is not None:
            for _ in range(4):
                world.wait(2)
                world.run()
            self.nobody_waits_beside_what_is_borrowed()
        free = {name: [gpus, CORES] for name, gpus in world.nodes.items()}
        for job in world.jobs.values():
            at = job.at or (world.planner.waiters[job.uid].node)
            if at is not None:
                free[at][0] -= job.gpus
                free[at][1] -= job.cores
        capacity = sum(world.nodes.values())
        pool = world.planner.pools.by_name["p"]
        held = {hold.node: uid for uid, hold in pool.holds.items()}
        assert len(held) == len(pool.holds) <= 1
        for uid, waiter in world.planner.waiters.items():
            job = world.jobs[uid]
            if uid not in pool.line or waiter.shape is None or pool.owed.get(waiter.tenant):
                continue
            if job.gpus > self.may_have(job.tenant, capacity):
                continue
            for name, (gpus, cores) in free.items():
                if held.get(name, uid) == uid and name not in waiter.shape.refused:
                    assert gpus < job.gpus or cores < job.cores, f"{job.name} waits beside room on {name}"

    def nobody_waits_beside_what_is_borrowed(self) -> None:
        world = self.world
        pool = world.planner.pools.by_name["p"]
        capacity = sum(world.nodes.values())
        pool.entitle(world.now)
        for tenant in TENANTS:
            group = min(pool.line.groups(tenant), key=lambda group: group.head, default=None)
            if (
                group is None
                or tenant in pool.owed
                or pool.holds
                or group.units > 1e6 * self.may_have(tenant, capacity)
                or pool.ledger.account(tenant).used + group.units > pool.ledger.least(tenant)
            ):
                continue
            snapshot = world.state.snapshot()
            rows = group.shape.eligible.all()
            args = (group.shape.request, tenant, rows, pool.ledger, world.planner.claims.leaving, world.now)
            found = of_others(snapshot, *args)
            assert found is None or group.shape.refused, f"{group.head.uid} waits beside {found}"

    def may_have(self, tenant: str, capacity: int) -> float:
        """GPUs more that the tenant may have, as the rules say it in words."""
        waiters, jobs = self.world.planner.waiters, self.world.jobs
        has: Counter[str] = Counter()
        for uid, job in jobs.items():
            if job.at is not None or waiters[uid].node is not None:
                has[job.tenant] += job.gpus
        least = {each.name: each.least.of(capacity) for each in self.policy.tenants}
        found = self.policy.tenant(tenant)
        most = found.most.of(capacity) if found and found.most else capacity
        if tenant in ("a", "b"):
            return most - has[tenant]
        lasting = {other: has[other] if other in ("i", "stranger") else 0 for other in (*TENANTS, "stranger")}
        others = [max(least.get(other, 0), lasting[other]) for other in lasting if other != tenant]
        return min(most, max(least.get(tenant, 0), capacity - sum(others))) - has[tenant]


TestPlanning = pytest.mark.timeout(900)(Planning.TestCase)
TestPlanning.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
