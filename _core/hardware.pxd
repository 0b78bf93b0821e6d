# What the kinds of the book's nodes are made of, as the kernels look it up by index.

from libc.stdint cimport int32_t

cdef class Hardware:
    cdef readonly Py_ssize_t kinds              # R, extended resources known to the book
    cdef readonly Py_ssize_t models             # S
    cdef readonly Py_ssize_t topologies         # T
    cdef readonly tuple slices                  # Slices of each model
    cdef readonly tuple links                   # Sets of each topology
    cdef readonly object profiles, units, parts, offers
    cdef const int32_t[:, ::1] profile          # [S, R] row of the model's tables, -1 = no such profile
    cdef const int32_t[::1] units_of            # [S] placement units of a card
    cdef const int32_t[::1] part                # [R] per mille of a card, 0 = not a MIG instance
    cdef const int32_t[:, ::1] offer            # [T, 17] MB/s that the card type offers, by k
    cdef Py_ssize_t instances                   # resources that are MIG instances
    # Addresses of the tables, which the tuples keep alive: loops without the interpreter can't index a tuple.
    cdef size_t* slices_at
    cdef size_t* links_at
