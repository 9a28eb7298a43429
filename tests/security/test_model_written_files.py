"""A file that a model wrote does not run in our process unless a person saw its source and agreed."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import hermes
from hermes.config.load import load
from hermes.errors import ToolError
from hermes.rl.config.resolve import current_selection
from hermes.rl.tools import TOOLS
from tests.rl.world import ENVIRONMENTS
from tests.tools.bench import call, open_bench

SOURCE = (ENVIRONMENTS / "letters.py").read_text()


class Person:
    """Answers, and remembers what was shown."""

    def __init__(self, agrees: bool) -> None:
        self.agrees = agrees
        self.shown: list[tuple[str, str]] = []

    async def approve(self, kind: str, action: str) -> None:
        self.shown.append((kind, action))
        if not self.agrees:
            raise ToolError("the user refused", kind="refused")


def _trap(path: Path, trace: Path, source: str = SOURCE) -> Path:
    """An environment that leaves a trace when it is imported."""
    path.parent.mkdir(parents=True, exist_ok=True)
    first = "from __future__ import annotations\n"
    path.write_text(source.replace(first, f"{first}open({str(trace)!r}, 'a').write('ran ')\n"))
    return path


async def _call(
    home: Path,
    workspace: Path,
    person: Person,
    tool_name: str,
    *,
    folders: tuple[Path, ...] = (),
    **arguments: Any,
) -> dict[str, Any]:
    settings = {"rl.environments": [str(folder) for folder in folders], "rl.model": "Qwen/Qwen3-8B"}
    config = load(settings, {"HERMES_HOME": str(home)})
    tool = next(tool for tool in TOOLS if tool.name == tool_name)
    async with open_bench("local", workspace, person) as bench:
        bench.resources |= {"config": config, "task": "t", "workspace": workspace}
        output = await tool.handler(arguments, bench)
    result: dict[str, Any] = json.loads(output if isinstance(output, str) else output.content)
    return result


async def test_a_file_that_the_model_wrote_is_not_imported_without_a_person(tmp_path: Path) -> None:
    home, workspace, trace = tmp_path / "home", tmp_path / "work", tmp_path / "trace"
    trap = _trap(workspace / "x.py", trace)
    for name in (str(trap), os.path.relpath(trap), str(workspace / ".." / "work" / "x.py")):
        person = Person(agrees=False)
        with pytest.raises(ToolError):
            await _call(home, workspace, person, "rl_select_environment", name=name)
        assert person.shown == [("rl_environment", f"{trap}\n{trap.read_text()}")]
    assert not trace.exists()


async def test_a_listed_file_in_the_workspace_is_asked_about_too(tmp_path: Path) -> None:
    home, workspace, trace = tmp_path / "home", tmp_path / "work", tmp_path / "trace"
    _trap(workspace / "envs" / "letters.py", trace)
    person = Person(agrees=False)
    with pytest.raises(ToolError):
        await _call(
            home, workspace, person, "rl_select_environment", folders=(workspace / "envs",), name="letters"
        )
    assert person.shown and not trace.exists()


async def test_a_link_from_a_listed_folder_into_the_workspace_is_asked_about(tmp_path: Path) -> None:
    home, workspace, trace = tmp_path / "home", tmp_path / "work", tmp_path / "trace"
    trap = _trap(workspace / "letters.py", trace)
    (tmp_path / "listed").mkdir()
    (tmp_path / "listed" / "letters.py").symlink_to(trap)
    person = Person(agrees=False)
    with pytest.raises(ToolError):
        await _call(
            home, workspace, person, "rl_select_environment", folders=(tmp_path / "listed",), name="letters"
        )
    assert person.shown and not trace.exists()


async def test_a_file_named_like_a_listed_environment_does_not_take_its_place(tmp_path: Path) -> None:
    home, workspace = tmp_path / "home", tmp_path / "work"
    workspace.mkdir()
    (workspace / "calculator").write_text("raise SystemExit")
    before = Path.cwd()
    os.chdir(workspace)
    try:
        result = await _call(home, workspace, Person(False), "rl_select_environment", name="calculator")
    finally:
        os.chdir(before)
    assert result["environment"] == "calculator" and "builtin" in result["file_path"]


async def test_what_runs_is_a_copy_of_what_was_shown(tmp_path: Path) -> None:
    """A change of the file after the approval, and a module beside it, have no effect."""
    home, workspace, trace = tmp_path / "home", tmp_path / "work", tmp_path / "trace"
    source = _trap(workspace / "mine.py", trace)
    person = Person(agrees=True)
    result = await _call(home, workspace, person, "rl_select_environment", name=str(source))
    copy = Path(result["file_path"])
    assert copy.is_relative_to(home) and copy.read_text() == source.read_text()
    assert copy.stat().st_mode & 0o777 == 0o600
    source.write_text("raise SystemExit('changed')")
    (workspace / "random.py").write_text(f"open({str(trace)!r}, 'a').write('neighbour ')")
    assert "error" not in await _call(home, workspace, person, "rl_get_current_config")
    assert len(person.shown) == 1 and "neighbour" not in trace.read_text()


@pytest.mark.parametrize(
    "tool, arguments",
    [
        ("rl_get_current_config", {}),
        ("rl_edit_config", {"field": "group_size", "value": 4}),
        ("rl_start_training", {}),
        ("rl_test_inference", {}),
    ],
)
async def test_a_selection_of_the_person_s_is_asked_about_once_the_agent_can_write_it(
    tmp_path: Path, tool: str, arguments: dict[str, Any]
) -> None:
    home, workspace, trace = tmp_path / "home", tmp_path / "work", tmp_path / "trace"
    source = _trap(workspace / "mine.py", trace)
    (home / "rl").mkdir(parents=True)
    selection = {"environment": "mine", "file_path": str(source), "edits": {}}
    (home / "rl" / "selection.json").write_text(json.dumps(selection))
    person = Person(agrees=False)
    with pytest.raises(ToolError):
        await _call(home, workspace, person, tool, **arguments)
    assert person.shown == [("rl_environment", f"{source}\n{source.read_text()}")]
    assert not trace.exists() and current_selection(home).file_path == str(source)


@pytest.mark.parametrize(
    "head", ["# coding: utf-7\n# +AAo-import os", "# -*- coding: latin-1 -*-", "\xff", "#" + "x" * 600_000]
)
async def test_source_that_python_reads_otherwise_than_a_person_is_refused(tmp_path: Path, head: str) -> None:
    home, workspace, trace = tmp_path / "home", tmp_path / "work", tmp_path / "trace"
    trap = _trap(workspace / "x.py", trace)
    trap.write_bytes(head.encode("latin-1") + b"\n" + trap.read_bytes())
    person = Person(agrees=True)
    result = await _call(home, workspace, person, "rl_select_environment", name=str(trap))
    assert str(trap) in result["error"] and "calculator" in result["available"]
    assert not person.shown and not trace.exists()


@pytest.mark.parametrize(
    "field, value",
    [
        ("terminal_backend", "docker"),
        ("data_path_to_save_groups", "{tmp_path}/x.jsonl"),
        ("data_dir_to_save_evals", "{tmp_path}/x"),
        ("judge_cache", "{tmp_path}/x"),
        ("judge_base_url", "http://elsewhere"),
        ("rollout_server_url", "http://elsewhere"),
    ],
)
async def test_the_agent_sets_no_field_that_writes_sends_or_lifts_isolation(
    tmp_path: Path, field: str, value: str
) -> None:
    home, workspace = tmp_path / "home", tmp_path / "work"
    workspace.mkdir()
    value = value.format(tmp_path=tmp_path)
    await _call(home, workspace, Person(False), "rl_select_environment", name="web_research")
    result = await _call(home, workspace, Person(False), "rl_edit_config", field=field, value=value)
    assert "is locked" in result["error"], result


async def test_the_agent_names_no_reward_function(tmp_path: Path) -> None:
    home, workspace = tmp_path / "home", tmp_path / "work"
    workspace.mkdir()
    await _call(home, workspace, Person(False), "rl_select_environment", name="reward_function")
    result = await _call(home, workspace, Person(False), "rl_edit_config", field="reward", value="x.py:f")
    assert "is locked" in result["error"], result


def test_modules_in_the_current_directory_are_not_imported(tmp_path: Path) -> None:
    """An agent could leave a click.py there, which the next start would run."""
    for name in ("click", "ruamel", "json", "httpx"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'trace')!r}, 'w')")
    done = subprocess.run(
        [sys.executable, "-m", "hermes", "config", "show"],
        cwd=tmp_path,
        env={"HERMES_HOME": str(tmp_path / "home"), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "trace").exists()


_STARTS = """
import sys
from pathlib import Path
from hermes.cluster.connect import _accepts
from hermes.data.compress.counting.tokens import TokenizerSpec
from hermes.data.compress.run.workers import open_workers
from hermes.errors import HermesError
from hermes.training.monitor.evaluations import _run_process
from hermes.web.jobs import Jobs
from hermes.web.runs.fields import read_fields

if __name__ == "__main__":
    home = Path(sys.argv[1])
    job = Jobs(home).start("t", ("config", "show"), "/")
    assert job.process.wait() == 0, job.output()
    assert read_fields(home, "gsm8k")
    assert not _accepts("127.0.0.1:1", {})
    try:
        _run_process(home / "no.py", home / "no.yaml", home / "out", "run@step-0")
    except HermesError as error:
        assert "no.py" in error.message or "no.yaml" in error.message, error
    with open_workers(TokenizerSpec("none", ""), 1) as workers:
        workers._executor.submit(len, "x").exception()
"""


def test_nor_by_any_process_that_hermes_starts(tmp_path: Path) -> None:
    """A chat may have left a `hermes` or a `json.py` in the folder in which `hermes web` starts."""
    folder, program = tmp_path / "work", tmp_path / "starts.py"
    program.write_text(_STARTS)
    (folder / "hermes").mkdir(parents=True)
    trap = f"open({str(tmp_path / 'trace')!r}, 'a').write(__name__ + ' ')"
    for name in ("click", "json", "httpx", "ray", "multiprocessing", "tempfile", "hermes/__main__"):
        (folder / f"{name}.py").write_text(trap)
    (folder / "hermes" / "__init__.py").write_text(trap)
    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path / "home")],
        cwd=folder,
        env={"HERMES_HOME": str(tmp_path / "home"), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not (tmp_path / "trace").exists(), (tmp_path / "trace").read_text()
    assert done.returncode == 0, done.stderr


def test_every_interpreter_is_started_without_the_current_directory() -> None:
    """Wherever an argument list has an interpreter before `-m` or `-c`."""
    starts = []
    for path in Path(hermes.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            words = [ast.unparse(item) for item in getattr(node, "elts", ())]
            interpreters = [
                at for at, word in enumerate(words) if word == "sys.executable" or "python" in word
            ]
            starts += [(path.name, words[at + 1]) for at in interpreters if words[at + 1 :]]
    assert ("jobs.py", "'-P'") in starts, "the search finds what it looks for"
    assert {start for start in starts if start[1] in ("'-m'", "'-c'", "__name__")} == set()


async def test_a_file_of_tasks_outside_the_workspace_is_asked_about(tmp_path: Path) -> None:
    home, workspace = tmp_path / "home", tmp_path / "work"
    workspace.mkdir()
    (tmp_path / "private.jsonl").write_text("{}")
    await _call(home, workspace, Person(False), "rl_select_environment", name="gsm8k")
    person = Person(agrees=False)
    value = str(tmp_path / "private.jsonl")
    with pytest.raises(ToolError):
        await _call(home, workspace, person, "rl_edit_config", field="dataset_name", value=value)
    assert person.shown == [("path", f"use in a run {value}")]


async def test_files_that_our_own_process_would_import_are_asked_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hermes may be installed in the project's own virtual environment."""
    packages = tmp_path / ".venv/lib/site-packages"
    packages.mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [*sys.path, str(packages)])
    person = Person(agrees=False)
    async with open_bench("local", tmp_path, person) as bench:
        for tool, arguments in (("write_file", {"content": "x"}), ("patch", {"old": "a", "new": "b"})):
            _, result = await call(bench, tool, path=".venv/lib/site-packages/click.py", **arguments)
            assert result.error_kind == "refused"
        _, result = await call(bench, "write_file", path="src/a.py", content="x")
        assert result.ok
    assert len(person.shown) == 2 and "Hermes runs code from there" in person.shown[0][1]
