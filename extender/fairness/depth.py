"""How many pods wait in each tenant's queue: what a full queue is measured by.

A pod counts from its accepted create until it is bound, over or gone. The watch brings it a little later than the
validating review let it pass, and never if something else refused the create: so a review counts for 10 s, or until
the watch brings the same uid. Queues are sets of uids, so that nothing is ever counted twice or left over.
"""

from collections import OrderedDict, defaultdict
from typing import NamedTuple

UNSEEN_SECONDS = 10.0
"""How long a review that was allowed counts without a pod on the watch."""


class Queue(NamedTuple):
    """A tenant of a policy."""

    policy: str
    tenant: str


class _Unseen(NamedTuple):
    """A review that counts until then."""

    until: float
    policy: str
    units: float


class QueueDepths:
    """`now` is in seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._waiting: defaultdict[Queue, set[str]] = defaultdict(set)
        self._queue_of: dict[str, Queue] = {}
        self._unseen: OrderedDict[str, _Unseen] = OrderedDict()
        """By uid, the earliest first."""

    def allowed(self, uid: str, queue: Queue, now: float, units: float = 0.0) -> None:
        """A validating review, no dry run, let the create of this pod pass, which may take so many GPU units."""
        if uid in self._queue_of:
            return  # the watch was faster, or the API server asked again
        self._put(uid, queue)
        self._unseen[uid] = _Unseen(now + UNSEEN_SECONDS, queue.policy, units)

    def seen(self, uid: str, queue: Queue) -> None:
        """The watch shows the pod, and it is not bound; also when it has moved to another queue."""
        self._unseen.pop(uid, None)
        self._put(uid, queue)

    def gone(self, uid: str) -> None:
        """The pod is bound, over, deleted, or in no queue any more."""
        self._unseen.pop(uid, None)
        self._take(uid)

    def depth(self, queue: Queue, now: float) -> int:
        """Pods that wait in the queue."""
        self._forget(now)
        return len(self._waiting.get(queue, ()))

    def coming(self, policy: str, now: float) -> float:
        """GPU units of the policy's pods that a review let pass and the watch has not shown yet."""
        self._forget(now)
        return sum(each.units for each in self._unseen.values() if each.policy == policy)

    def _forget(self, now: float) -> None:
        while self._unseen and next(iter(self._unseen.values())).until <= now:
            uid, _ = self._unseen.popitem(last=False)
            self._take(uid)

    def _put(self, uid: str, queue: Queue) -> None:
        if self._queue_of.get(uid) != queue:
            self._take(uid)
            self._queue_of[uid] = queue
            self._waiting[queue].add(uid)

    def _take(self, uid: str) -> None:
        queue = self._queue_of.pop(uid, None)
        if queue is not None:
            left = self._waiting[queue]
            left.discard(uid)
            if not left:
                del self._waiting[queue]
