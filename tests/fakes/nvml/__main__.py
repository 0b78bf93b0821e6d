"""`python -m tests.fakes.nvml MACHINE DIR`: the fake library and a scenario in DIR, and how to use them."""

import sys
from pathlib import Path

from tests.fakes.nvml import VARIABLE, CannotBuild, build, write
from tests.fakes.nvml.machines import MACHINES


def main() -> None:
    if len(sys.argv) != 3 or sys.argv[1] not in MACHINES:
        sys.exit(f"Usage: python -m tests.fakes.nvml {'|'.join(MACHINES)} DIR")
    directory = Path(sys.argv[2]).resolve()
    directory.mkdir(parents=True, exist_ok=True)
    try:
        build(directory)
    except CannotBuild as error:
        sys.exit(str(error))
    scenario = directory / f"{sys.argv[1]}.txt"
    write(scenario, MACHINES[sys.argv[1]]())
    print(f"export LD_LIBRARY_PATH={directory} {VARIABLE}={scenario}")


main()
