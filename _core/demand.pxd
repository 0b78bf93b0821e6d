# The pods that are to come, as the score asks about them.

from libc.stdint cimport int32_t

cpdef enum:
    # Demand.kind: which score is meant
    D1 = 0              # what of the row's room is of use to the pods to come; the product's own
    P1 = 1              # GPUs that cores can still feed: cheap, for clusters that only fill
    FGD = 2             # the fragmentation gradient of Weng et al., ATC'23, as published
    BEST_FIT = 3        # its baseline: least cores and GPUs left
    FIRST_FIT = 4       # the first row in order

cdef enum:
    MOST_CLASSES = 128

cdef extern from *:
    # Parts of cards are sums of rounded numbers.
    """
    #define KVITEJ_SLACK 1e-9
    """
    const double SLACK "KVITEJ_SLACK"


cdef class Demand:
    cdef readonly int32_t kind
    cdef readonly Py_ssize_t classes
    cdef readonly double cores                  # per GPU
    cdef readonly double fragmentation, mig, topology, shares   # scales of the score's parts
    cdef readonly object cpu, gpus, share, often, weight
    # By class, worked out once so that the loops over classes neither divide nor branch.
    cdef double per_cpu[MOST_CLASSES]           # pods per thousandth of a core
    cdef double cpu_slack[MOST_CLASSES]         # what makes a class without cores fit any number of times
    cdef double per_idle[MOST_CLASSES]          # shares (whole: 1) that an idle card holds
    cdef double of_shared[MOST_CLASSES]         # 1 where only a row that shares its cards will do
    cdef double per_part[MOST_CLASSES]          # shares per card left, unrounded
    cdef double least[MOST_CLASSES]             # part of a card below which a card is of no use
    cdef double per_gpu[MOST_CLASSES]           # pods per card
    cdef double p[MOST_CLASSES]
    cdef double w[MOST_CLASSES]

    cdef int admit(self, Py_ssize_t m, object cpu, object gpus, object share, object often,
                   object weight) except -1
