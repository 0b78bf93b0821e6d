"""What kvitej promises in figures: each case measures one promise and sets it against its floor in the same run.

`python -m bench CASE` runs a case of `bench.cases`; `peers` are the floors, `programs` runs whatever needs a process
of its own, `openb` is the workload, `recount` the independent check for overcommit, and `report` says it.
"""
