"""The command line: what it prints, and how it refuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from extender import __version__, config, schedulerconfig
from extender.__main__ import main


def kvitej(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, prog_name="kvitej")


def test_the_module_runs_as_a_program_and_names_every_command() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "extender", "--help"], capture_output=True, text=True, check=True
    )
    assert ended.stdout.startswith("Usage: kvitej ")
    assert all(
        command in ended.stdout
        for command in (
            "serve",
            "version",
            "config",
            "scheduler-config",
            "certs",
            "release",
            "topo",
            "explain",
            "shares",
            "devices",
            "agent",
        )
    )


def test_version_answers_without_loading_the_layers() -> None:
    code = "import sys; from extender.__main__ import main; main(['version'], standalone_mode=False)"
    code += "; print(*sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, modules = ended.stdout.splitlines()
    assert first == f"kvitej {__version__}"
    assert not {"numpy", "aiohttp", "kubernetes", "yaml", "structlog"} & set(modules.split())


def test_config_prints_what_is_in_effect(tmp_path: Path) -> None:
    assert kvitej("config").output == config.render(config.Config())
    file = tmp_path / "config.yaml"
    file.write_text("filter: {keep: 7}")
    assert "  keep: 7\n" in kvitej("config", "--config", str(file)).output


def test_scheduler_config_prints_the_committed_file() -> None:
    assert kvitej("scheduler-config").output == schedulerconfig.render()


def test_a_wrong_configuration_is_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("filter: {keep: 0}")
    for arguments in (["config"], ["serve", "--cluster", "three-tenants", "--once"]):
        result = kvitej(*arguments, "--config", str(file))
        assert result.exit_code == 2
        assert result.stdout == ""
        assert (
            result.stderr
            == f"kvitej: {file}: filter.keep is 0; allowed is a whole number, from 1 to 10000.\n"
        )


@pytest.mark.parametrize(
    ("name", "reason"), [("none.yaml", "No such file or directory"), ("", "Is a directory")]
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str, reason: str) -> None:
    result = kvitej("config", "--config", str(tmp_path / name))
    assert result.exit_code == 2
    assert result.stderr == f"kvitej: {tmp_path / name}: {reason}.\n"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "either --cluster NAME|FILE or --kubeconfig FILE|in-cluster"),
        (["--cluster", "three-tenants", "--kubeconfig", "f"], "either --cluster NAME|FILE or --kubeconfig"),
        (["--kubeconfig", "f", "--once"], "goes with --cluster only"),
        (["--cluster", "three-tenants", "--port", "65536"], "65536 is not in the range"),
        (["--cluster", "three-tenants", "--http", "8889"], "'8889' is not of the form 127.0.0.1:8889"),
        (["--cluster", "three-tenants", "--http", "127.0.0.1:99999"], "is not of the form"),
        (["--cluster", "three-tenants", "--hots", "x"], "No such option"),
        (["--kubeconfig", "f", "--webhook", "127.0.0.1:1"], "give all three or none"),
        (["--kubeconfig", "f", "--webhook-key", "k"], "give all three or none"),
        (
            [
                *("--cluster", "three-tenants", "--webhook", "127.0.0.1:1"),
                *("--webhook-cert", "c", "--webhook-key", "k"),
            ],
            "goes with --kubeconfig only",
        ),
    ],
)
def test_serve_refuses_options_that_make_no_sense(arguments: list[str], reason: str) -> None:
    result = kvitej("serve", *arguments)
    assert result.exit_code == 2
    assert reason in " ".join(result.stderr.split())
    assert "Traceback" not in result.output


def test_explain_without_a_server_or_with_a_bad_manifest_is_a_sentence(tmp_path: Path) -> None:
    nobody = kvitej("explain", "team/p", "--http", "127.0.0.1:1")
    assert nobody.exit_code == 2
    assert "No `kvitej serve` answers at 127.0.0.1:1" in nobody.output
    torn = tmp_path / "pod.yaml"
    torn.write_text("a: [")
    refused = kvitej("explain", "--pod", str(torn))
    assert (refused.exit_code, "can't be read as YAML" in refused.output) == (2, True)
    assert kvitej("explain").exit_code == 2


@pytest.mark.parametrize("arguments", [[], ["pod", "--all"], ["--namespace", "n", "--all"]])
def test_release_needs_to_know_what_to_release(arguments: list[str]) -> None:
    result = kvitej("release", "--kubeconfig", "f", *arguments)
    assert result.exit_code == 2
    assert "Give POD, --namespace NAME or --all." in result.stderr


def test_release_of_a_cluster_that_is_not_there_is_one_sentence() -> None:
    result = kvitej("release", "--kubeconfig", "nowhere", "--all")
    assert (result.exit_code, result.stderr) == (2, "kvitej: The kubeconfig nowhere does not exist.\n")
