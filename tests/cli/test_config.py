"""`hermes config`, as a process."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

from tests.cli.process import failure, hermes

KEY = "sk-or-v1-0123456789"


def editor(tmp_path: Path, body: str) -> dict[str, str]:
    """An editor that runs `body` with the file's name in $1."""
    script = tmp_path / "editor.sh"
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o755)
    return {"EDITOR": str(script)}


def test_show_prints_every_value_with_its_origin_and_no_secret(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("sandbox: {backend: docker}\n")
    (tmp_path / ".env").write_text(f"OPENROUTER_API_KEY={KEY}\n")
    env = {"HERMES_LIMITS__MAX_TURNS": "7", "OPENAI_API_KEY": KEY}
    shown = json.loads(hermes(tmp_path, "config", "show", "--json", env=env).stdout)
    assert shown["model"] == {"value": "hermes/smollm2", "origin": "default"}
    assert shown["sandbox.backend"] == {"value": "docker", "origin": "config.yaml"}
    assert shown["limits.max_turns"] == {"value": 7, "origin": "environment"}
    assert shown["OPENROUTER_API_KEY"] == {"value": "set", "origin": ".env"}
    assert shown["OPENAI_API_KEY"] == {"value": "set", "origin": "environment"}
    table = hermes(tmp_path, "config", "show", env=env).stdout
    rows = dict(line.split(maxsplit=1) for line in table.splitlines())
    assert rows["sandbox.backend"].split() == ["docker", "config.yaml"]
    assert rows["OPENROUTER_API_KEY"].split("  ")[0] == "set (from .env)"
    assert len({line.rindex(line.split()[-1]) for line in table.splitlines()}) == 1
    assert KEY[:8] not in table + json.dumps(shown)


def test_get_prints_one_value_and_of_a_key_only_whether_it_is_set(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(f"OPENROUTER_API_KEY={KEY}\n")
    assert hermes(tmp_path, "config", "get", "sandbox.backend").stdout == "auto\n"
    assert hermes(tmp_path, "config", "get", "sandbox.network").stdout == "false\n"
    assert json.loads(hermes(tmp_path, "config", "get", "sandbox").stdout)["cpu_s"] == 600
    assert hermes(tmp_path, "config", "get", "model", "--json").stdout == '"hermes/smollm2"\n'
    assert hermes(tmp_path, "config", "get", "OPENROUTER_API_KEY").stdout == "set (from .env)\n"
    assert hermes(tmp_path, "config", "get", "OPENAI_API_KEY").stdout == "unset\n"


def test_set_and_unset_change_the_file_and_keep_its_comments(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("# mine\nmodel: vllm/x # local\n")
    assert hermes(tmp_path, "config", "set", "model", "ollama/y").stdout == f"set model in {path}\n"
    assert hermes(tmp_path, "config", "set", "toolsets", "file,web").returncode == 0
    assert path.read_text() == "# mine\nmodel: ollama/y # local\ntoolsets: [file, web]\n"
    assert hermes(tmp_path, "config", "unset", "model").stdout == "unset model\n"
    assert hermes(tmp_path, "config", "unset", "model").stdout == "model was not set\n"
    assert path.read_text() == "# mine\ntoolsets: [file, web]\n"


def test_a_model_of_an_unknown_provider_is_set_with_a_note(tmp_path: Path) -> None:
    for key in ("model", "media.vision_model"):
        done = hermes(tmp_path, "config", "set", key, "vlm/x")
        assert done.stdout == f"set {key} in {tmp_path / 'config.yaml'}\n"
        assert "note: unknown provider 'vlm'" in done.stderr and "did you mean vllm/x?" in done.stderr
    assert hermes(tmp_path, "config", "set", "model", "openrouter/x").stderr == "", "its key may come later"


def test_a_key_is_read_from_standard_input_and_stored_privately(tmp_path: Path) -> None:
    done = hermes(tmp_path, "config", "set", "OPENROUTER_API_KEY", stdin=f"{KEY}\n")
    assert done.stdout == f"set OPENROUTER_API_KEY in {tmp_path / '.env'}\n"
    assert (tmp_path / ".env").read_text() == f"OPENROUTER_API_KEY={KEY}\n"
    assert (tmp_path / ".env").stat().st_mode & 0o777 == 0o600
    error, fix = failure(hermes(tmp_path, "config", "set", "OPENAI_API_KEY"), 2)
    assert (error, "standard input" in fix) == ("no value for OPENAI_API_KEY", True)


def test_a_key_typed_at_the_terminal_is_not_echoed(tmp_path: Path) -> None:
    terminal, inner = pty.openpty()
    command = [sys.executable, "-m", "hermes", "config", "set", "OPENROUTER_API_KEY"]
    process = subprocess.Popen(
        command, stdin=inner, stdout=inner, stderr=inner, env={**os.environ, "HERMES_HOME": str(tmp_path)}
    )
    os.close(inner)
    screen = b""
    while b":" not in screen:
        screen += os.read(terminal, 1000)
    os.write(terminal, f"{KEY}\n".encode())
    try:
        while piece := os.read(terminal, 1000):
            screen += piece
    except OSError:  # the other side is closed
        pass
    assert process.wait(timeout=30) == 0
    os.close(terminal)
    assert KEY[:8].encode() not in screen
    assert KEY in (tmp_path / ".env").read_text()


def test_a_change_that_is_overridden_or_perhaps_misspelt_says_so(tmp_path: Path) -> None:
    env = {"HERMES_MODEL": "vllm/x", "OPENAI_API_KEY": "outside-123"}
    assert (
        "HERMES_MODEL still overrides it" in hermes(tmp_path, "config", "set", "model", "a/b", env=env).stderr
    )
    done = hermes(tmp_path, "config", "set", "OPENAI_API_KEY", "inside-1234", env=env)
    assert "the environment's value still overrides it" in done.stderr
    done = hermes(tmp_path, "config", "set", "OPENROUTER_APIKEY", "inside-1234")
    assert "did you mean OPENROUTER_API_KEY?" in done.stderr


def test_path_prints_where_things_are(tmp_path: Path) -> None:
    places = json.loads(hermes(tmp_path, "config", "path", "--json").stdout)
    assert places["home"] == str(tmp_path)
    assert places["config"] == str(tmp_path / "config.yaml")
    assert places["database"] == str(tmp_path / "hermes.db")
    assert f"env         {tmp_path / '.env'}" in hermes(tmp_path, "config", "path").stdout.splitlines()
    assert list(tmp_path.iterdir()) == []


def test_edit_replaces_the_file_by_a_valid_one(tmp_path: Path) -> None:
    home = tmp_path / "home"
    done = hermes(home, "config", "edit", env=editor(tmp_path, 'echo "model: vllm/x" >> "$1"'))
    assert done.stdout == f"saved {home / 'config.yaml'}\n"
    assert hermes(home, "config", "get", "model").stdout == "vllm/x\n"
    assert hermes(home, "config", "edit", env=editor(tmp_path, "true")).stdout == "nothing changed\n"
    assert sorted(path.name for path in home.iterdir()) == [".config.lock", "config.yaml"]


def test_edit_keeps_a_broken_version_and_says_where(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "config.yaml").write_text("model: vllm/x\n")
    error, fix = failure(hermes(home, "config", "edit", env=editor(tmp_path, 'echo "modle: y" >> "$1"')), 2)
    kept = next(home.glob("config-*.yaml"))
    assert kept.read_text() == "model: vllm/x\nmodle: y\n"
    assert f"{kept}:2:1: unknown setting 'modle'; config.yaml is unchanged, your version is {kept}" == error
    assert "did you mean model?" in fix
    assert (home / "config.yaml").read_text() == "model: vllm/x\n"


def test_edit_does_not_undo_a_change_made_meanwhile(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "config.yaml").write_text("model: vllm/x\n")
    body = f'echo "model: ollama/z" > {home}/config.yaml; echo "# mine" >> "$1"'
    error, fix = failure(hermes(home, "config", "edit", env=editor(tmp_path, body)), 2)
    assert "was changed meanwhile" in error
    kept = next(home.glob("config-*.yaml"))
    assert str(kept) in fix
    assert kept.read_text() == "model: vllm/x\n# mine\n"
    assert (home / "config.yaml").read_text() == "model: ollama/z\n"


def test_edit_mends_a_file_that_nothing_else_can_read(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "config.yaml").write_text("model: [x\n")
    assert hermes(home, "config", "show").returncode == 2
    done = hermes(home, "config", "edit", env=editor(tmp_path, 'echo "model: vllm/x" > "$1"'))
    assert done.returncode == 0
    assert hermes(home, "config", "get", "model").stdout == "vllm/x\n"


def test_an_editor_that_fails_changes_nothing(tmp_path: Path) -> None:
    home = tmp_path / "home"
    error, _ = failure(hermes(home, "config", "edit", env=editor(tmp_path, 'echo x > "$1"; exit 3')), 2)
    assert "exit code 3" in error
    assert not (home / "config.yaml").exists()
    error, _ = failure(hermes(home, "config", "edit", env={"EDITOR": "/no/such/editor"}), 2)
    assert error == "cannot start the editor '/no/such/editor'"


def test_unknown_keys_and_wrong_types_end_with_2_and_the_nearest_key(tmp_path: Path) -> None:
    for arguments in (("get", "sandbox.bakend"), ("set", "sandbox.bakend", "x"), ("unset", "sandbox.bakend")):
        assert failure(hermes(tmp_path, "config", *arguments), 2) == (
            "unknown setting 'sandbox.bakend'",
            "did you mean sandbox.backend?",
        )
    error, _ = failure(hermes(tmp_path, "config", "set", "sandbox.memory_mb", "lots"), 2)
    assert error == "sandbox.memory_mb: expected a whole number, got the text 'lots'"
    error, _ = failure(hermes(tmp_path, "config", "set", "sandbox.backend"), 2)
    assert error == "no value for sandbox.backend"


def test_a_broken_file_is_named_by_every_command_that_needs_it(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("model: vllm/x\n  sandbox: y\n")
    for arguments in (("config", "show"), ("config", "set", "model", "x/y"), ("models",)):
        error, fix = failure(hermes(tmp_path, *arguments), 2)
        assert error.startswith(f"{path}:2:")
        assert "hermes config edit" in fix
    assert path.read_text() == "model: vllm/x\n  sandbox: y\n"


def test_a_home_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for home in (tmp_path / "file", Path("/proc/hermes-home")):
        error, fix = failure(hermes(home, "config", "set", "model", "x/y"), 2)
        assert error.startswith(f"cannot create the directory {home}: ")
        assert "HERMES_HOME" in fix
    error, fix = failure(hermes(tmp_path / "file", "config", "show"), 2)
    assert (str(tmp_path / "file") in error, "HERMES_HOME" in fix) == (True, True)


def test_a_full_disk_leaves_the_old_settings_whole(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("model: vllm/x\n")
    limited = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (20, 20));"
        "sys.argv = ['hermes', 'config', 'set', 'system_prompt', 'x' * 100];"
        "from hermes.cli.main import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-B", "-c", limited],
        env={**os.environ, "HERMES_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    error, _ = failure(done, 2)
    assert error == f"cannot write {tmp_path / 'config.yaml'}: File too large"
    assert (tmp_path / "config.yaml").read_text() == "model: vllm/x\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".config.lock", "config.yaml"]
