"""The modules under test are the compiled ones, and compiled from the sources that lie beside them."""

import importlib
import re
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

import _core

MODULES = [
    *("allocator", "cards", "checks", "columns", "demand", "encode", "fit", "fragmentation", "hardware"),
    *("instances", "kubelet", "linked", "mig", "names", "replay", "score", "shares", "topology"),
]
HERE = Path(_core.__file__).parent


@pytest.mark.parametrize("name", MODULES)
def test_the_compiled_module_is_the_one_loaded(name: str) -> None:
    loaded = importlib.import_module(f"_core.{name}").__file__
    assert loaded is not None
    assert loaded.endswith(tuple(EXTENSION_SUFFIXES))


def test_the_package_exports_what_it_promises() -> None:
    assert _core.ABI == 6
    assert all(hasattr(_core, name) for name in _core.__all__)


@pytest.mark.skipif(not (HERE.parent / "setup.py").exists(), reason="installed, not built in place")
@pytest.mark.parametrize("name", MODULES)
def test_no_module_is_older_than_its_source(name: str) -> None:
    built = importlib.import_module(f"_core.{name}").__file__
    assert built is not None
    text = (HERE / f"{name}.pyx").read_text()
    used = [name, *re.findall(r"^from _core\.(\w+) cimport", text, re.MULTILINE)]
    sources = [HERE / f"{name}.pyx", *(path for path in HERE.glob("*.pxd") if path.stem in used)]
    stale = [source.name for source in sources if source.stat().st_mtime > Path(built).stat().st_mtime]
    assert not stale, f"{name} was built before {stale} changed: python setup.py build_ext --inplace"


def test_every_source_is_among_the_modules() -> None:
    assert sorted(path.stem for path in HERE.glob("*.pyx")) == MODULES
