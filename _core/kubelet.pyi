# Nothing for Python: only siblings cimport this module.
from typing import Final

__pyx_capi__: Final[dict[str, object]]
