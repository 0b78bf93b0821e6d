# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# cython: freethreading_compatible=True, auto_pickle=False, autotestdict=False
"""What the kernels read: the book's columns as one typed view, and one pod's ask.

The book owns the arrays and changes them in place; it builds a new Table only when they grow. Types and
shapes are checked here, once per growth or once per call, so that the loops need no checks.
"""

from libc.stdint cimport INT32_MAX, INT64_MAX

from _core.checks cimport exact, whole_number
from _core.hardware cimport Hardware

_PER_ROW = {"state": "int8", "mode": "int8", "cards": "int32", "replicas": "int32", "opaque": "int32",
            "order": "uint32", "soft": "int32", "cpu": "int64", "cpu_used": "int64", "part": "int32",
            "geometry": "int32", "misplaced": "int32", "topology": "int32", "lent": "int32", "choice": "int8",
            "measured": "int8", "loose_memory": "int64"}
_PER_RESOURCE = {"allocatable": "int64", "used": "int64", "used_soft": "int64"}
_PER_CARD = {"memory": "int64", "memory_used": "int64", "memory_soft": "int64", "shares": "int32",
             "shares_soft": "int32", "exclusive": "int32", "exclusive_soft": "int32", "slices": "int32",
             "slices_soft": "int32", "extra": "int64", "given": "int32", "given_memory": "int64", "trouble": "int8"}


cdef class Table:
    """The book's columns for N rows (nodes), G card slots and R extended resources.

    Parameters
    ----------
    state : int8[N]
        0 open, 1 vacant (no node in this row), 2 closed, 3 stale (its agent has been silent for too long).
    mode : int8[N]
        What one nvidia.com/gpu of the node is: 0 a whole card, 1 a replica of a shared card, 2 an instance
        of MIG strategy single.
    cards, replicas, opaque, soft : int32[N]
        Cards not in MIG mode (indices 0..cards-1), replicas per card (0: not shared), whole cards held by
        pods whose card is unknown, number of soft claims on the row.
    order : uint32[N]
        Stable hash of the node, which orders rows: a part of the score, and what breaks ties.
    cpu, cpu_used : int64[N]
        Thousandths of a core: what the node offers, what all its pods ask for.
    part : int32[N]
        Of MIG strategy single: per mille of a card that one nvidia.com/gpu is.
    geometry : int32[N]
        Index into `hardware.slices` of the model whose cards are cut on demand; any other: none is.
    misplaced : int32[N]
        MIG instances on such cards whose place is not known: while there are any, nothing more is cut.
    topology : int32[N]
        Index into `hardware.links` of how the row's cards are linked; any other: not known.
    lent : int32[N]
        Cards that only pods hold whose work is borrowed: they can be asked back.
    choice : int8[N]
        Who picks the cards that a pod gets: 0 kvitej (or no agent reports), 1 the kubelet, among all that are free
        for it, so that each of them must do.
    measured : int8[N]
        1 where it is known what is really used: there a share costs what it declares, else at least its part.
    loose_memory : int64[N]
        Bytes that the shares cost in all whose card the kubelet has not told yet.
    allocatable, used, used_soft : int64[N, R]
        Counts of extended resources: what the node offers, what is held, what soft claims would add.
    memory, memory_used, memory_soft : int64[N, G]
        Bytes per card; a memory of 0 is unknown.
    shares, shares_soft, exclusive, exclusive_soft : int32[N, G]
        Replicas in use and whole-card owners, per card.
    slices, slices_soft : int32[N, G]
        Of cards that are cut on demand, numbered by themselves: the occupancy, and the bits that soft claims
        would add; an occupancy of -1: no such card.
    extra : int64[N, G]
        Bytes in use on the card beyond what its seats are charged: `memory_used` and `extra` are all that is in use.
    given, given_memory : int32[N, G], int64[N, G]
        What the kubelet has told of the card: replicas that it gave (for all of the card at least 1, and as many
        as it has), and the bytes that these seats are charged.
    trouble : int8[N, G]
        Bits: IS_UNFIT (not healthy: no new work), IS_OCCUPIED (processes that nobody scheduled: no pod that wants
        all of it), IS_WITHHELD (not among the devices that the kubelet gives out).
    hardware : Hardware or None
        What the kinds of nodes are made of, for R resources; None: nothing is known of any.

    Every array stays readable under its name, as the numpy array that was given.

    Raises
    ------
    ValueError
        If an array has another type, layout or shape; the message names it.
    """

    def __cinit__(self, *, state, mode, cards, replicas, opaque, order, soft, cpu, cpu_used, allocatable, used,
                  used_soft, memory, memory_used, memory_soft, shares, shares_soft, exclusive, exclusive_soft,
                  part, geometry, misplaced, topology, lent, slices, slices_soft, choice, measured, loose_memory, extra,
                  given, given_memory, trouble, Hardware hardware=None):
        exact(state, "state", "int8", (-1,))
        exact(allocatable, "allocatable", "int64", (-1, -1))
        exact(memory, "memory", "int64", (-1, -1))
        self.rows = state.shape[0]
        self.kinds = allocatable.shape[1]
        self.width = memory.shape[1]
        if self.kinds == 0:
            raise ValueError("allocatable must have at least one resource column, not none.")
        if self.width == 0:
            raise ValueError("memory must have at least one card column, not none.")
        if self.width > MOST_CARDS:
            raise ValueError(f"memory must have at most {MOST_CARDS} card columns, not {self.width}.")
        self.arrays = {
            "state": state, "mode": mode, "cards": cards, "replicas": replicas, "opaque": opaque,
            "order": order, "soft": soft, "cpu": cpu, "cpu_used": cpu_used,
            "allocatable": allocatable, "used": used, "used_soft": used_soft,
            "memory": memory, "memory_used": memory_used, "memory_soft": memory_soft, "shares": shares,
            "shares_soft": shares_soft, "exclusive": exclusive, "exclusive_soft": exclusive_soft,
            "part": part, "geometry": geometry, "misplaced": misplaced, "topology": topology,
            "lent": lent, "choice": choice, "measured": measured, "loose_memory": loose_memory,
            "slices": slices, "slices_soft": slices_soft,
            "extra": extra, "given": given, "given_memory": given_memory, "trouble": trouble,
        }
        for dtypes, shape in (
            (_PER_ROW, (self.rows,)),
            (_PER_RESOURCE, (self.rows, self.kinds)),
            (_PER_CARD, (self.rows, self.width)),
        ):
            for name, dtype in dtypes.items():
                exact(self.arrays[name], name, dtype, shape)
        self.state, self.mode, self.order = state, mode, order
        self.cards, self.replicas, self.opaque, self.soft = cards, replicas, opaque, soft
        self.cpu, self.cpu_used = cpu, cpu_used
        self.allocatable, self.used, self.used_soft = allocatable, used, used_soft
        self.memory, self.memory_used, self.memory_soft = memory, memory_used, memory_soft
        self.shares, self.shares_soft = shares, shares_soft
        self.exclusive, self.exclusive_soft = exclusive, exclusive_soft
        self.part, self.geometry, self.misplaced, self.topology = part, geometry, misplaced, topology
        self.lent = lent
        self.slices, self.slices_soft = slices, slices_soft
        self.choice, self.measured, self.loose_memory = choice, measured, loose_memory
        self.extra, self.given, self.given_memory, self.trouble = extra, given, given_memory, trouble
        self.hardware = Hardware.none(self.kinds) if hardware is None else hardware
        if self.hardware.kinds != self.kinds:
            raise ValueError(f"hardware must be for {self.kinds} resources, not for {self.hardware.kinds}.")

    def __getattr__(self, str name):
        try:
            return self.arrays[name]
        except KeyError:
            raise AttributeError(f"Table has no column {name!r}.") from None

    def copy_row(self, row):
        """A Table of one row on fresh copies, to try out what would be if something left or came.

        Raises
        ------
        ValueError
            If `row` is not a row of this table.
        """
        cdef Py_ssize_t at = whole_number(row, "row", 0, self.rows - 1)
        rows = {name: array[at:at + 1].copy() for name, array in self.arrays.items()}
        return Table(**rows, hardware=self.hardware)


cdef class Ask:
    """What one pod asks for, immutable.

    Parameters
    ----------
    resources : int32[k]
        Distinct ids of extended resources: columns of the Table. MIG instances that are cut on demand are cut
        from the last to the first, so the larger ones should come last.
    counts : int64[k]
        How many of each, at least 1.
    whole, shares : int
        How many of them are nvidia.com/gpu and nvidia.com/gpu.shared; the same counts stand in `counts`.
    memory : int
        Bytes that the pod declares per card; 0 if it declares none.
    cpu : int
        Thousandths of a core. Whether the row has as many is the scheduler's to know; here it only weighs.
    gpu_id, shared_id : int
        The ids of nvidia.com/gpu and nvidia.com/gpu.shared; -1 if not asked for.
    bandwidth : int
        MB/s that the slowest two of its whole cards need between them, 0 for any.
    nvlink : bool
        Whether all of them need NVLink.
    borrowed : bool, optional
        Whether the pod's work can be asked back; None: nothing is lent here, and the score's `shares` is 0.

    Raises
    ------
    ValueError
        If the arrays, numbers or ids do not agree with the above.
    """

    def __cinit__(self, resources, counts, whole, shares, memory, cpu=0, gpu_id=-1, shared_id=-1, bandwidth=0,
                  bint nvlink=False, borrowed=None):
        exact(resources, "resources", "int32", (-1,))
        exact(counts, "counts", "int64", resources.shape)
        self.resources, self.counts = resources.copy(), counts.copy()
        self.resources.flags.writeable = self.counts.flags.writeable = False
        self.ids, self.amounts = self.resources, self.counts
        amount_of = dict(zip(resources.tolist(), counts.tolist(), strict=True))
        if len(amount_of) < len(resources) or min(amount_of, default=0) < 0:
            raise ValueError(f"resources must be distinct ids from 0 on, not {resources.tolist()}.")
        if min(amount_of.values(), default=1) < 1:
            raise ValueError(f"counts must be at least 1 each, not {counts.tolist()}.")
        self.whole = whole_number(whole, "whole", 0, INT64_MAX)
        self.shares = whole_number(shares, "shares", 0, INT64_MAX)
        self.memory = whole_number(memory, "memory", 0, INT64_MAX)
        self.cpu = whole_number(cpu, "cpu", 0, INT64_MAX)
        self.bandwidth = whole_number(bandwidth, "bandwidth", 0, INT32_MAX)
        self.nvlink = nvlink
        self.borrowed = borrowed
        self.returns = -1 if borrowed is None else bool(borrowed)
        self.gpu_id = whole_number(gpu_id, "gpu_id", -1, INT32_MAX)
        self.shared_id = whole_number(shared_id, "shared_id", -1, INT32_MAX)
        for name, amount, kind in (
            ("gpu_id", self.whole, self.gpu_id), ("shared_id", self.shares, self.shared_id)
        ):
            if amount_of.get(kind, 0) != amount or (kind >= 0 and amount == 0):
                raise ValueError(f"{name} {kind} must be the resource that is asked for {amount} times, "
                                 f"or -1 when it is not asked for.")


cdef int known_resources(Table table, Ask ask) except -1:
    cdef Py_ssize_t i
    for i in range(ask.ids.shape[0]):
        if ask.ids[i] >= table.kinds:
            raise ValueError(f"The ask names resource {ask.ids[i]}, "
                             f"but the table has only 0 to {table.kinds - 1}.")
    return 0
