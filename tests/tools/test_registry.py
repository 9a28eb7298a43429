"""The catalogue: complete, valid, cheap to import, and strict about names."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from hermes.config.settings import McpServerSettings, Settings
from hermes.core import JSONObject
from hermes.errors import ConfigError, UsageError
from hermes.tools import registry
from hermes.tools.base import Tool, Workbench
from hermes.tools.toolsets import TOOLSETS

BY_ENTRY_POINT = ("rl", "training")
LOCAL_TOOLS = {
    "terminal": ("terminal", "process"),
    "file": ("read_file", "write_file", "patch", "search_files"),
    "code_execution": ("execute_code",),
    "todo": ("todo",),
    "session_search": ("session_search",),
    "clarify": ("clarify",),
    "delegation": ("delegate_task",),
    "math": ("calculator",),
}


async def _nothing(arguments: JSONObject, bench: Workbench) -> str:
    return ""


def _missing(settings: Settings, environ: Mapping[str, str]) -> str | None:
    return None if "PROBE_KEY" in environ else "PROBE_KEY is not set; hermes config set PROBE_KEY …"


def probe(name: str = "probe_one", toolset: str = "probes", *, needs_key: bool = False) -> Tool:
    schema = {"type": "object", "properties": {}}
    if needs_key:
        return Tool(name, toolset, "A probe.", schema, _nothing, _missing)
    return Tool(name, toolset, "A probe.", schema, _nothing)


@pytest.fixture
def probes() -> Iterator[None]:
    undo = [registry.register(probe()), registry.register(probe("probe_two", needs_key=True))]
    yield
    for unregister in undo:
        unregister()


@pytest.mark.parametrize("toolset", LOCAL_TOOLS)
def test_each_toolset_has_its_tools(toolset: str) -> None:
    assert tuple(tool.name for tool in registry.tools_in(toolset)) == LOCAL_TOOLS[toolset]


def test_every_built_in_tool_is_in_the_toolset_that_lists_it_and_has_a_valid_schema() -> None:
    tools = registry.all_tools()
    assert {name for names in LOCAL_TOOLS.values() for name in names} <= set(tools)
    for name, tool in tools.items():
        assert tool.name == name
        assert tool.toolset in registry.toolset_names()
        assert tool.description
        Draft202012Validator.check_schema(tool.parameters)
        assert tool.parameters["type"] == "object"
        assert tool.parameters.get("additionalProperties") is False
        assert set(tool.parameters.get("required", ())) <= set(tool.parameters.get("properties", ()))


def test_every_default_toolset_exists() -> None:
    assert set(Settings().toolsets) <= set(registry.toolset_names())


def test_listing_the_tools_imports_nothing_heavy() -> None:
    names = "openai httpx2 torch transformers rich prompt_toolkit jsonschema trafilatura mcp playwright"
    program = (
        "import sys\nfrom hermes.tools import registry\nregistry.all_tools()\n"
        f"print([name for name in '{names}'.split() if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_an_unknown_toolset_or_tool_is_a_usage_error_with_the_nearest_names() -> None:
    with pytest.raises(UsageError, match="no such toolset: 'termnal'") as caught:
        registry.select(["file", "termnal"], Settings(), {}, require_available=False)
    assert caught.value.hint == "did you mean terminal?"
    with pytest.raises(UsageError, match="no such tool: 'raed_file'") as caught:
        registry.get("raed_file")
    assert "read_file" in caught.value.hint
    with pytest.raises(UsageError) as caught:
        registry.tools_in("zzzz")
    assert caught.value.hint.startswith("one of: terminal, file, web")


def test_a_selection_keeps_the_order_and_takes_each_toolset_once() -> None:
    tools, left_out = registry.select(["math", "todo", "math"], Settings(), {}, require_available=True)
    assert [tool.name for tool in tools] == ["calculator", "todo"]
    assert left_out == []


@pytest.mark.usefixtures("probes")
def test_a_tool_that_cannot_be_used_is_left_out_with_the_reason() -> None:
    tools, left_out = registry.select(["probes", "math"], Settings(), {}, require_available=True)
    assert [tool.name for tool in tools] == ["probe_one", "calculator"]
    assert [(missing.tool.name, missing.reason) for missing in left_out] == [
        ("probe_two", "PROBE_KEY is not set; hermes config set PROBE_KEY …")
    ]
    tools, left_out = registry.select(["probes"], Settings(), {"PROBE_KEY": "x"}, require_available=True)
    assert ([tool.name for tool in tools], left_out) == (["probe_one", "probe_two"], [])


def test_a_wanted_toolset_of_which_nothing_works_is_an_error_with_the_fix() -> None:
    unregister = registry.register(probe("lonely", "lonely", needs_key=True))
    try:
        assert registry.select(["lonely"], Settings(), {}, require_available=False)[0] == []
        with pytest.raises(UsageError, match="the toolset 'lonely' cannot be used here") as caught:
            registry.select(["lonely"], Settings(), {}, require_available=True)
        assert "PROBE_KEY" in caught.value.hint
    finally:
        unregister()


def test_mcp_has_tools_only_where_a_server_is_configured() -> None:
    with pytest.raises(UsageError) as caught:
        registry.select(["mcp"], Settings(), {}, require_available=True)
    assert "no MCP server is configured" in caught.value.hint
    configured = Settings(mcp_servers={"files": McpServerSettings(command="true")})
    assert registry.select(["mcp"], configured, {}, require_available=True) == ([], [])


@pytest.mark.usefixtures("probes")
def test_a_registered_toolset_is_known_until_it_is_taken_out() -> None:
    assert set(registry.toolset_names()) == {
        *TOOLSETS,
        "rl",
        "training",
        "probes",
    }  # two come by an entry point
    assert registry.get("probe_two").toolset == "probes"
    registry.register(probe("third"))()
    with pytest.raises(UsageError):
        registry.get("third")


@pytest.mark.usefixtures("probes")
@pytest.mark.parametrize("name", ["probe_one", "terminal"])
def test_a_name_is_never_given_twice(name: str) -> None:
    before = registry.get(name)
    with pytest.raises(ConfigError, match=f"already a tool named '{name}'"):
        registry.register(probe(name))
    assert registry.get(name) is before


def plug_in(folder: Path, source: str, target: str = "plug:TOOLS") -> None:
    """Installs a distribution with one entry point, as an installer would leave it."""
    info = folder / "strange_tools-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: strange-tools\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[hermes.tools]\nstrange = {target}\n")
    (folder / "plug.py").write_text(source)


def with_plug_in(folder: Path, program: str) -> str:
    """What the program prints where the plug-in is installed, or the error it ends with."""
    prelude = "from hermes.tools import registry\nfrom hermes.errors import HermesError\n"
    guarded = f"try:\n    {program}\nexcept HermesError as error:\n    print(error.message)"
    done = subprocess.run(
        [sys.executable, "-c", prelude + guarded],
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


GOOD = """
from hermes.tools.base import Tool
async def handler(arguments, bench): return ""
def make(name, toolset): return Tool(name, toolset, "Strange.", {"type": "object"}, handler)
TOOLS = (make("strange_one", "strange"), make("strange_two", "strange"))
ONE = make("strange_one", "strange")
CLASH = [make("terminal", "strange")]
INTRUDER = [make("strange_one", "terminal")]
TWICE = [ONE, ONE]
NOTHING = "a string"
"""


def test_a_plug_in_brings_its_own_toolset(tmp_path: Path) -> None:
    plug_in(tmp_path, GOOD)
    program = "print([t.name for t in registry.tools_in('strange')], 'strange' in registry.toolset_names())"
    assert with_plug_in(tmp_path, program) == "['strange_one', 'strange_two'] True"


def test_a_plug_in_may_name_a_single_tool(tmp_path: Path) -> None:
    plug_in(tmp_path, GOOD, "plug:ONE")
    assert with_plug_in(tmp_path, "print(registry.get('strange_one').toolset)") == "strange"


def test_a_plug_in_is_not_imported_for_built_in_tools(tmp_path: Path) -> None:
    plug_in(tmp_path, "raise SystemExit('imported')")
    assert with_plug_in(tmp_path, "print(registry.get('terminal').name, len(registry.tools_in('file')))") == (
        "terminal 4"
    )


@pytest.mark.parametrize(
    ("source", "target", "reason"),
    [
        ("1 / 0", "plug:TOOLS", "ZeroDivisionError: division by zero"),
        (GOOD, "plug:ABSENT", "AttributeError"),
        (GOOD, "plug:CLASH", "there is already a tool named 'terminal'"),
        (GOOD, "plug:TWICE", "there is already a tool named 'strange_one'"),
        (GOOD, "plug:INTRUDER", "adds to the built-in toolset 'terminal'"),
        (GOOD, "plug:NOTHING", "neither a Tool nor a sequence of Tools"),
    ],
)
def test_a_broken_plug_in_is_named(tmp_path: Path, source: str, target: str, reason: str) -> None:
    plug_in(tmp_path, source, target)
    printed = with_plug_in(tmp_path, "registry.all_tools()")
    assert printed.startswith("the tools plug-in 'strange' of strange-tools cannot be used: ")
    assert reason in printed
