"""The command line as people meet it."""

import json
import subprocess
import sys
from pathlib import Path

from tests.support.paths import ROOT
from tests.support.serving import clean_environment


def mainspring(
    *arguments: str, env: dict[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mainspring", *arguments],
        capture_output=True,
        text=True,
        env=clean_environment(env),
        cwd=cwd,
        timeout=60,
        check=False,
    )


def test_without_arguments_it_says_what_it_can_do() -> None:
    said = mainspring()
    assert "serve" in said.stdout + said.stderr
    assert "settings" in said.stdout + said.stderr


def test_the_version_is_the_packages(tmp_path: Path) -> None:
    from importlib.metadata import version

    assert mainspring("--version").stdout.strip() == f"mainspring {version('mainspring')}"


def test_an_unknown_command_is_a_usage_error() -> None:
    said = mainspring("sevre")
    assert said.returncode == 2
    assert "there is no command 'sevre'; did you mean 'serve'?" in said.stderr
    assert "Traceback" not in said.stderr


def test_settings_tells_where_each_value_came_from(tmp_path: Path) -> None:
    (tmp_path / "mainspring.toml").write_text("drain_ms = 12\n")
    said = mainspring("settings", "--json", env={"BUS_PORT": "9000"}, cwd=tmp_path)
    rows = {row["name"]: row for row in map(json.loads, said.stdout.splitlines())}
    assert (rows["port"]["value"], rows["port"]["source"], rows["port"]["alias"]) == (9000, "environment", "BUS_PORT")
    assert (rows["drain_ms"]["value"], rows["drain_ms"]["source"], rows["drain_ms"]["unit"]) == (12, "file", "ms")
    assert rows["engine"]["source"] == "default"
    assert all(row["help"] for row in rows.values())


def test_settings_for_people_names_every_setting(tmp_path: Path) -> None:
    from mainspring.settings import describe

    said = mainspring("settings", env={"COLUMNS": "60"}, cwd=tmp_path)
    assert said.returncode == 0
    for one in describe():
        assert f"{one.name}: " in said.stdout
        assert f"{one.env}]\n    {one.help}\n" in said.stdout


def test_a_bad_setting_is_two_lines_not_a_traceback(tmp_path: Path) -> None:
    said = mainspring("settings", env={"MAINSPRING_ENGIN": "x"}, cwd=tmp_path)
    assert said.returncode == 1
    first, second = said.stderr.splitlines()
    assert first == "mainspring: unknown setting MAINSPRING_ENGIN in the environment"
    assert "MAINSPRING_ENGINE" in second


def test_the_reference_page_of_the_settings_is_the_one_the_code_makes() -> None:
    page = ROOT / "docs" / "reference" / "settings.md"
    assert page.read_text(encoding="utf-8") == mainspring("settings", "--markdown").stdout
