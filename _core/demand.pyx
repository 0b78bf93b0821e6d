# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# cython: freethreading_compatible=True, auto_pickle=False, autotestdict=False
"""The pods that are to come: classes of a mix, how often each comes, and what one more of it is worth."""

from math import isfinite

from _core.checks cimport exact, whole_number

cdef class Demand:
    """A demand mix of M classes and the score that is to be made of it, immutable.

    Parameters
    ----------
    kind : int
        D1, P1, FGD, BEST_FIT or FIRST_FIT.
    cores : float
        Cores per GPU that the demand asks for, more than 0.
    cpu : int64[M]
        Thousandths of a core that a pod of the class asks for.
    gpus : int32[M]
        Cards it asks for: 0 for a pod without GPU, 1 for a share.
    share : float64[M]
        Part of each of these cards, above 0 to 1; any for a pod without GPU.
    often : float64[M]
        Frequencies, at least 0.
    weight : float64[M]
        GPUs that room for one more pod of the class is worth, at least 0.
    fragmentation, mig, topology, shares : float
        The scale of each kernel's part of the score, from 0 (off).

    Raises
    ------
    ValueError
        If arrays or numbers do not agree with the above, or if there are more than 128 classes.
    """

    def __cinit__(self, kind, cores, cpu, gpus, share, often, weight, *, fragmentation=1.0, mig=1.0, topology=1.0,
                  shares=1.0):
        cdef Py_ssize_t m
        self.kind = whole_number(kind, "kind", D1, FIRST_FIT)
        self.cores = cores
        if not 0 < self.cores < 1e12:
            raise ValueError(f"cores must be a number above 0, not {cores}.")
        self.fragmentation, self.mig, self.topology, self.shares = fragmentation, mig, topology, shares
        for scale, name in (
            (fragmentation, "fragmentation"), (mig, "mig"), (topology, "topology"), (shares, "shares")
        ):
            if not 0 <= scale < 1e6:
                raise ValueError(f"{name} must be a scale of at least 0, not {scale}.")
        exact(cpu, "cpu", "int64", (-1,))
        self.classes = cpu.shape[0]
        if self.classes > MOST_CLASSES:
            raise ValueError(f"A demand has at most {MOST_CLASSES} classes, not {self.classes}.")
        exact(gpus, "gpus", "int32", cpu.shape)
        for array, name in ((share, "share"), (often, "often"), (weight, "weight")):
            exact(array, name, "float64", cpu.shape)
        self.cpu, self.gpus, self.share, self.often, self.weight = [
            frozen(array) for array in (cpu, gpus, share, often, weight)
        ]
        for m in range(self.classes):
            self.admit(m, cpu[m], gpus[m], share[m], often[m], weight[m])

    cdef int admit(self, Py_ssize_t m, object cpu, object gpus, object share, object often,
                   object weight) except -1:
        if cpu < 0 or gpus < 0:
            raise ValueError(f"Class {m} asks for {cpu} thousandths of a core and {gpus} cards; "
                             f"neither can be negative.")
        if gpus > 0 and not 1e-6 <= share <= 1:
            raise ValueError(f"share[{m}] must be above 0 (a millionth at least) and at most 1, not {share}.")
        for number, name in ((often, "often"), (weight, "weight")):
            if not (isfinite(number) and number >= 0):
                raise ValueError(f"{name}[{m}] must be a number of at least 0, not {number}.")
        self.per_cpu[m] = 1 / cpu if cpu > 0 else 0
        self.cpu_slack[m] = SLACK if cpu > 0 else 1e9
        self.p[m], self.w[m] = often, weight
        self.of_shared[m] = gpus > 0 and share < 1
        self.per_part[m] = 1 / share if gpus > 0 else 0
        self.per_idle[m] = int(self.per_part[m] + SLACK)
        self.least[m] = share - SLACK if gpus > 0 else 2
        self.per_gpu[m] = 1 / gpus if gpus > 0 else 0
        return 0


cdef object frozen(object array):
    copy = array.copy()
    copy.flags.writeable = False
    return copy
