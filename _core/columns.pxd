# The typed view of the book's columns and of one pod's ask, as the kernels read them.

from libc.stdint cimport int8_t, int32_t, int64_t, uint32_t

from _core.hardware cimport Hardware

cdef enum:
    # Table.state
    OPEN = 0
    VACANT = 1
    STALE = 3

cdef enum:
    # Table.mode: what one nvidia.com/gpu of the node is
    WHOLE = 0
    REPLICA = 1
    INSTANCE = 2

cpdef enum:
    # Table.trouble: bits
    IS_UNFIT = 1
    IS_OCCUPIED = 2
    IS_WITHHELD = 4

cdef enum:
    MOST_CARDS = 64     # of a row; more than any machine has, so that what is worked out by card needs no heap


cdef class Table:
    cdef readonly Py_ssize_t rows               # N
    cdef Py_ssize_t width                       # G, the most cards that a row can hold
    cdef Py_ssize_t kinds                       # R, extended resources known to the book
    cdef dict arrays                            # name -> numpy array, what Python reads
    cdef const int8_t[::1] state
    cdef const int8_t[::1] mode
    cdef const int32_t[::1] cards               # cards not in MIG mode; indices 0..cards-1 are valid
    cdef const int32_t[::1] replicas            # per card; 0 = not shared
    cdef const int32_t[::1] opaque              # whole cards held by pods whose card is unknown
    cdef const uint32_t[::1] order              # stable hash that orders rows
    cdef const int32_t[::1] soft                # soft claims on the row
    cdef const int64_t[::1] cpu                 # thousandths of a core
    cdef const int64_t[::1] cpu_used
    cdef const int64_t[:, ::1] allocatable      # [N, R] counts
    cdef const int64_t[:, ::1] used
    cdef const int64_t[:, ::1] used_soft
    cdef const int64_t[:, ::1] memory           # [N, G] bytes, 0 = unknown
    cdef const int64_t[:, ::1] memory_used
    cdef const int64_t[:, ::1] memory_soft
    cdef const int32_t[:, ::1] shares           # [N, G] replicas in use
    cdef const int32_t[:, ::1] shares_soft
    cdef const int32_t[:, ::1] exclusive        # [N, G] whole-card owners
    cdef const int32_t[:, ::1] exclusive_soft
    cdef const int32_t[::1] part                # per mille of a card that an nvidia.com/gpu of mode INSTANCE is
    cdef const int32_t[::1] geometry            # index into hardware.slices
    cdef const int32_t[::1] misplaced           # instances on dynamic cards whose place is unknown
    cdef const int32_t[::1] topology            # index into hardware.links
    cdef const int32_t[::1] lent                # cards that only borrowed work holds
    cdef const int32_t[:, ::1] slices           # [N, G] occupancy of dynamic cards, -1 = no such card
    cdef const int32_t[:, ::1] slices_soft
    cdef const int8_t[::1] choice               # 1 = the kubelet picks the cards
    cdef const int8_t[::1] measured             # 1 = what is really used is known
    cdef const int64_t[::1] loose_memory        # bytes of shares whose card the kubelet has not told yet
    cdef const int64_t[:, ::1] extra            # [N, G] bytes in use beyond memory_used
    cdef const int32_t[:, ::1] given            # [N, G] replicas that the kubelet gave
    cdef const int64_t[:, ::1] given_memory     # [N, G] bytes that these are charged
    cdef const int8_t[:, ::1] trouble           # [N, G] bits
    cdef readonly Hardware hardware


cdef class Ask:
    cdef readonly object resources              # int32[k], read-only
    cdef readonly object counts                 # int64[k], read-only
    cdef const int32_t[::1] ids
    cdef const int64_t[::1] amounts
    cdef readonly int64_t whole                 # nvidia.com/gpu
    cdef readonly int64_t shares                # nvidia.com/gpu.shared
    cdef readonly int64_t memory                # bytes declared per card, 0 = undeclared
    cdef readonly int64_t cpu                   # thousandths of a core
    cdef readonly int32_t gpu_id                # resource id of nvidia.com/gpu, -1 = not asked
    cdef readonly int32_t shared_id
    cdef readonly int32_t bandwidth             # MB/s needed between its whole cards
    cdef readonly bint nvlink                   # whether all of them need NVLink
    cdef readonly object borrowed               # whether its work can be asked back, None = nothing is lent
    cdef int8_t returns                         # the same as 1, 0, -1


cdef int known_resources(Table table, Ask ask) except -1
