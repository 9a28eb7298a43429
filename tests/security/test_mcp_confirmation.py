"""MCP servers: what a person agreed to is what runs, and nothing later slips in."""

from __future__ import annotations

import sys
from pathlib import Path

from hermes.tools.mcp.tools import FAILURES, connect_mcp
from tests.tools.mcp_parts import ENVIRON, Person
from tests.tools.services import open_service_bench

SERVER = """
import os, sys
from pathlib import Path
from mcp.server import MCPServer
server = MCPServer("s")
print("key", os.environ.get("S_TOKEN"), "b64", __import__("base64").b64encode(
    os.environ.get("S_TOKEN", "").encode()).decode(), file=sys.stderr, flush=True)
for name in Path(sys.argv[1]).read_text().split():
    server.tool(name=name, description=name)(lambda: name)
server.run("stdio")
"""


def _settings(tmp_path: Path, **more: object) -> dict[str, object]:
    script, tools = tmp_path / "workspace/server.py", tmp_path / "tools.txt"
    if not script.exists():
        script.parent.mkdir(exist_ok=True)
        script.write_text(SERVER)
    return {"mcp_servers": {"s": {"command": sys.executable, "args": [str(script), str(tools)], **more}}}


async def _connect(tmp_path: Path, person: Person, environ: dict[str, str], **more: object) -> list[str]:
    async with open_service_bench(tmp_path, _settings(tmp_path, **more), environ, person) as bench:  # type: ignore[arg-type]
        bench.resources["workspace"] = tmp_path / "workspace"
        tools = [tool.name for tool in await connect_mcp(bench)]
        assert tools or bench.resources[FAILURES] or not (tmp_path / "tools.txt").read_text()
        return tools


async def test_tools_that_appear_later_are_asked_about_even_if_there_were_none(tmp_path: Path) -> None:
    offered = tmp_path / "tools.txt"
    offered.write_text("")
    person = Person()
    assert await _connect(tmp_path, person, ENVIRON) == []
    offered.write_text("send_files")
    wary = Person(refuses=("mcp_tools",))
    assert await _connect(tmp_path, wary, ENVIRON) == []
    assert [kind for kind, _ in wary.asked] == ["mcp_tools"] and "send_files" in wary.asked[0][1]
    assert await _connect(tmp_path, person, ENVIRON) == ["mcp_s_send_files"]
    offered.write_text("send_files more")
    assert await _connect(tmp_path, wary, ENVIRON) == []
    assert [kind for kind, _ in person.asked] == ["mcp_server", "mcp_tools"]


async def test_a_changed_value_of_a_variable_is_asked_about(tmp_path: Path) -> None:
    (tmp_path / "tools.txt").write_text("a")
    person = Person()
    assert await _connect(tmp_path, person, ENVIRON, env={"MODE": "safe", "S_TOKEN": "first-value"})
    assert await _connect(tmp_path, person, ENVIRON, env={"MODE": "safe", "S_TOKEN": "first-value"})
    assert len(person.asked) == 1
    for env in (
        {"MODE": "safe", "S_TOKEN": "other-value"},
        {"MODE": "--require evil", "S_TOKEN": "other-value"},
    ):
        wary = Person(refuses=("mcp_server",))
        assert await _connect(tmp_path, wary, ENVIRON, env=env) == []
        ((_, action),) = wary.asked
        assert "S_TOKEN=(hidden)" in action and "other-value" not in action
        assert env["MODE"] in action


async def test_a_server_whose_file_in_the_workspace_changed_is_asked_about(tmp_path: Path) -> None:
    (tmp_path / "tools.txt").write_text("a")
    person = Person()
    assert await _connect(tmp_path, person, ENVIRON)
    (tmp_path / "workspace/server.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    wary = Person(refuses=("mcp_server",))
    assert await _connect(tmp_path, wary, ENVIRON) == []
    assert [kind for kind, _ in wary.asked] == ["mcp_server"] and not (tmp_path / "ran").exists()


async def test_what_a_server_logs_is_written_without_secrets(tmp_path: Path) -> None:
    (tmp_path / "tools.txt").write_text("a")
    environ = {**ENVIRON, "KILN_TOKEN": "t0ken-of-the-kiln"}
    assert await _connect(tmp_path, Person(), environ, env={"S_TOKEN": "${KILN_TOKEN}"})
    log = tmp_path / "home/logs/mcp_s.log"
    text = log.read_text()
    assert "key [REDACTED:KILN_TOKEN] b64 [REDACTED:KILN_TOKEN]" in text
    assert log.stat().st_mode & 0o777 == 0o600
