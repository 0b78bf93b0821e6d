"""A libnvidia-ml.so.1 that answers from a text file, so that pynvml and the agent run unchanged without a GPU.

`build` compiles `nvml.c` against NVIDIA's nvml.h, from the package nvidia-nvml-dev. A program takes it through
LD_LIBRARY_PATH; a running one by `load`. The environment variable `VARIABLE` names the scenario, which is read again
whenever it changes; write it with `write`, so that it is never half there.

    driver 570.124.06
    generation 1                        # another number: the driver was loaded anew, and old handles are void
    gpus 7                              # fewer than are described: the last ones are gone
    fault nvmlDeviceGetUUID lost 3      # a function, or * for all about a card; the error; the card, or any
    gpu 0                               # what follows is about this card; may come again further down
    uuid GPU-…
    name NVIDIA H100 80GB HBM3
    pci 00000000:1B:00.0
    memory TOTAL RESERVED USED          # bytes
    numa 0-7
    cpus 0-47,96-143
    path X NODE SYS …                   # PCIe to each card
    nvlink 0-17 switch                  # or: 2 gpu 00000000:07:00.0; 3 cpu; 4 unknown; 5 off
    peers                               # can reach other cards that say so over NVLink, whatever the links' ends
    mig on
    profile NUMBER ID NAME SLICES MIB SMS SIZE MOST START,START
    instance ID PROFILE START USED [UUID]   # without a UUID it has no compute instance
    process PID USED|unknown [compute|graphics|mps] [INSTANCE]
    no-processes                        # forgets those above; no-instances likewise
    ecc CORRECTED UNCORRECTED
    retired SINGLE DOUBLE PENDING
    rows CORRECTED UNCORRECTED PENDING FAILED
    throttle 0x8
    recovery 0
    fabric CLUSTER-HEX CLIQUE
    xid SEQUENCE CODE                   # told once, in the order of SEQUENCE

What is not described is not supported. Errors are not-supported, no-permission, lost, reset-required, unknown,
driver-not-loaded, version-mismatch, function-not-found, and hang, which lasts until the file says otherwise.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import subprocess
import sysconfig
from importlib import metadata
from pathlib import Path

VARIABLE = "KVITEJ_FAKE_NVML"
LIBRARY = "libnvidia-ml.so.1"
_SOURCE = Path(__file__).with_name("nvml.c")


class CannotBuild(Exception):
    """What is missing: a sentence."""


def build(directory: Path) -> Path:
    """Compile the library into `directory`; raises CannotBuild without a compiler or the header."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
    if shutil.which(compiler) is None:
        raise CannotBuild(f"There is no C compiler {compiler}, which the fake NVML is built with.")
    library = directory / LIBRARY
    subprocess.run(
        [
            *(compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden"),
            *(
                f"-Wl,-soname,{LIBRARY}",
                f"-I{_header().parent}",
                str(_SOURCE),
                "-o",
                str(library),
                "-lpthread",
            ),
        ],
        check=True,
    )
    return library


def load(library: Path) -> None:
    """Put the library into this process: whoever asks for its name from now on gets it."""
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


def write(path: Path, scenario: str) -> None:
    """Write a scenario at one stroke."""
    part = path.with_suffix(".part")
    part.write_bytes(scenario.encode(errors="surrogateescape"))
    part.replace(path)


def _header() -> Path:
    try:
        files = metadata.files("nvidia-nvml-dev") or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name == "nvml.h":
            return Path(str(file.locate()))
    raise CannotBuild("There is no nvml.h, which the fake NVML is built with: pip install nvidia-nvml-dev.")
