"""The book, pure: which GPU is where, who sits on it, what is reserved. It changes only through `apply(event)`."""

import _core

if _core.ABI != 6:
    # The native core is a top-level package, so another build of it may shadow ours.
    raise ImportError(
        f"the native core at {_core.__file__} has ABI {_core.ABI}, and kvitej needs 6: build it anew with `make run`"
    )
