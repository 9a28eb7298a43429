"""`hermes tools`, as a person runs it."""

from __future__ import annotations

import json
from pathlib import Path

from hermes.tools.distributions import DISTRIBUTIONS
from tests.cli.process import hermes


def test_the_table_names_each_tool_and_why_one_cannot_be_used(tmp_path: Path) -> None:
    done = hermes(tmp_path, "tools")
    assert (done.returncode, done.stderr) == (0, "")
    rows = [line.split(maxsplit=2) for line in done.stdout.splitlines()]
    assert rows[0] == ["TOOLSET", "TOOL", "AVAILABLE"]
    assert ["terminal", "terminal", "yes"] in rows
    assert ["math", "calculator", "yes"] in rows
    search = next(row for row in rows if row[1] == "web_search")
    assert search[2].startswith("no: ")
    server = next(row for row in rows if row[0] == "mcp")
    assert server[1:] == [
        "-",
        "no: no MCP server is configured; hermes config set mcp_servers.NAME.command PROGRAM",
    ]


def test_json_has_the_same_as_data(tmp_path: Path) -> None:
    done = hermes(tmp_path, "tools", "--json")
    rows = json.loads(done.stdout)
    assert {tuple(row) for row in rows} == {("toolset", "tool", "description", "available", "why")}
    by_name = {row["tool"]: row for row in rows}
    assert by_name["read_file"]["available"] is True
    assert by_name["read_file"]["why"] is None
    assert by_name["web_search"]["available"] is False
    assert by_name["web_search"]["why"]


def test_a_key_in_the_environment_makes_a_tool_available(tmp_path: Path) -> None:
    done = hermes(tmp_path, "tools", "--json", env={"BRAVE_API_KEY": "not-a-real-key"})
    by_name = {row["tool"]: row for row in json.loads(done.stdout)}
    assert by_name["web_search"]["available"] is True
    assert "not-a-real-key" not in done.stdout


def test_the_distributions_are_listed_with_the_users_own(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("distributions:\n  mine: {file: 70, math: 30}\n")
    done = hermes(tmp_path, "tools", "--distributions")
    lines = [line.split(maxsplit=1) for line in done.stdout.splitlines()]
    assert [line[0] for line in lines[1:]] == [*DISTRIBUTIONS, "mine"]
    assert ["minimal", "web 100%"] in lines
    assert ["mine", "file 70%, math 30%"] in lines
    listed = json.loads(hermes(tmp_path, "tools", "--distributions", "--json").stdout)
    assert listed["mine"] == {"file": 70, "math": 30}
    assert listed["reasoning"] == {"web": 90, "file": 60, "terminal": 20}


def test_a_broken_distribution_is_an_error_that_names_its_key(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("distributions:\n  mine: {flie: 70}\n")
    done = hermes(tmp_path, "tools", "--distributions")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "distributions.mine: no such toolset: 'flie'" in done.stderr
    assert "did you mean file?" in done.stderr
