"""The rule that control-plane tests may not be skipped where they are required, tried on small suites."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

CONFTEST = Path(__file__).parent / "conftest.py"
MARKED = "import pytest\npytestmark = pytest.mark.controlplane\n"
PASSES = "def test_it() -> None:\n    pass\n"
SKIPS = "def test_it() -> None:\n    pytest.skip('no toolchain')\n"
SKIPS_IN_FIXTURE = """
@pytest.fixture
def plane() -> None:
    pytest.skip('no network')

def test_it(plane: None) -> None:
    pass
"""
SKIPS_AS_MODULE = "pytest.skip('no space', allow_module_level=True)\n"


def run(folder: Path, *modules: str, required: bool) -> subprocess.CompletedProcess[str]:
    (folder / "controlplane").mkdir()
    shutil.copy(CONFTEST, folder)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = controlplane\n")
    for number, module in enumerate(modules):
        (folder / "controlplane" / f"test_{number}.py").write_text(module)
    required_here = {"KVITEJ_REQUIRE_CONTROLPLANE": "1" if required else ""}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--continue-on-collection-errors", str(folder)],
        cwd=folder,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **required_here},
        capture_output=True,
        text=True,
        check=False,
    )


def test_each_kind_of_skip_fails_with_its_reason_where_none_is_allowed(tmp_path: Path) -> None:
    modules = (MARKED + SKIPS, MARKED + SKIPS_IN_FIXTURE, MARKED + SKIPS_AS_MODULE, MARKED + PASSES)
    ended = run(tmp_path, *modules, required=True)
    assert ended.returncode == 1
    assert ended.stdout.splitlines()[-1].startswith("1 failed, 1 passed, 2 errors")
    for reason in ("no toolchain", "no network", "no space"):
        assert re.search(f"lets no control-plane test be skipped. .*{reason}", ended.stdout)


def test_a_skip_is_a_skip_elsewhere(tmp_path: Path) -> None:
    ended = run(tmp_path, MARKED + SKIPS, required=False)
    assert ended.returncode == 0
    assert ended.stdout.splitlines()[-1].startswith("1 skipped")


def test_a_run_without_any_control_plane_test_fails_where_they_are_required(tmp_path: Path) -> None:
    ended = run(tmp_path, PASSES, required=True)
    assert ended.returncode == 1
    assert "No test has passed against the real control plane" in ended.stdout


def test_a_run_with_one_that_passes_is_green(tmp_path: Path) -> None:
    ended = run(tmp_path, MARKED + PASSES, required=True)
    assert ended.returncode == 0
    assert ended.stdout.splitlines()[-1].startswith("1 passed")
