"""Queue depth: counted once from the accepted create to the end of the wait, whatever order things come in."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from extender.fairness.depth import UNSEEN_SECONDS, Queue, QueueDepths

A, B = Queue("pool", "a"), Queue("pool", "b")


def test_a_review_counts_at_once_and_for_ten_seconds_without_a_pod() -> None:
    depths = QueueDepths()
    depths.allowed("u", A, 100.0)
    assert (depths.depth(A, 109.9), depths.depth(B, 109.9)) == (1, 0)
    assert depths.depth(A, 110.0) == 0


def test_a_pod_that_the_watch_brings_counts_once_and_until_it_is_bound() -> None:
    depths = QueueDepths()
    depths.allowed("u", A, 0.0)
    depths.seen("u", A)
    assert depths.depth(A, 1e6) == 1
    depths.gone("u")
    assert depths.depth(A, 1e6) == 0


def test_a_pod_that_the_watch_brings_late_counts_again() -> None:
    depths = QueueDepths()
    depths.allowed("u", A, 0.0)
    assert depths.depth(A, 11.0) == 0
    depths.seen("u", A)
    assert depths.depth(A, 11.0) == 1


def test_a_pod_whose_tenant_changes_moves_to_the_other_queue() -> None:
    depths = QueueDepths()
    depths.seen("u", A)
    depths.seen("u", B)
    assert (depths.depth(A, 0.0), depths.depth(B, 0.0)) == (0, 1)


class Depths(RuleBasedStateMachine):
    """Against a plain dictionary that is looked through each time."""

    def __init__(self) -> None:
        super().__init__()
        self.depths = QueueDepths()
        self.now = 0.0
        self.waiting: dict[str, tuple[Queue, float]] = {}

    uids = st.sampled_from("uvwxyz")
    queues = st.sampled_from([A, B])

    @rule(uid=uids, queue=queues)
    def allowed(self, uid: str, queue: Queue) -> None:
        self.depths.allowed(uid, queue, self.now)
        self.waiting.setdefault(uid, (queue, self.now + UNSEEN_SECONDS))

    @rule(uid=uids, queue=queues)
    def seen(self, uid: str, queue: Queue) -> None:
        self.depths.seen(uid, queue)
        self.waiting[uid] = (queue, float("inf"))

    @rule(uid=uids)
    def gone(self, uid: str) -> None:
        self.depths.gone(uid)
        self.waiting.pop(uid, None)

    @rule(seconds=st.sampled_from([0.5, 4.0, 10.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def agree(self) -> None:
        self.waiting = {uid: found for uid, found in self.waiting.items() if found[1] > self.now}
        for queue in (A, B):
            expected = sum(found[0] == queue for found in self.waiting.values())
            assert self.depths.depth(queue, self.now) == expected


TestDepths = Depths.TestCase


def test_what_is_let_pass_takes_its_units_until_the_watch_shows_it_or_it_is_late() -> None:
    depths = QueueDepths()
    for uid, queue, units in (("a", A, 2.0), ("b", A, 0.5), ("c", Queue("other", "x"), 4.0)):
        depths.allowed(uid, queue, 0.0, units)
    assert (depths.coming("pool", 0.0), depths.coming("other", 0.0), depths.coming("none", 0.0)) == (
        2.5,
        4.0,
        0,
    )
    depths.seen("a", A)
    depths.allowed("a", A, 1.0, 2.0)
    assert depths.coming("pool", 1.0) == 0.5
    assert (depths.coming("pool", 10.0), depths.coming("other", 10.0)) == (0, 0)
