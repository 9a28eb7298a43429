"""From a user's command to what is started in a sandbox: its words, its variables, what it may see. Pure."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hermes.errors import ConfigError
from hermes.gateway.presets import LOCAL_KEY, Launch, Target, alone_variables, prepare, preset_of

FIELDS = ("prompt", "prompt_file", "workspace", "base_url", "model", "key")
"""Names that a command may have in braces."""
_ALWAYS_VISIBLE = ("/usr", "/bin", "/sbin", "/lib", "/lib64")
_INTERPRETER = re.compile(r"(python|node|bun|deno|ruby|perl|bash|zsh|sh)[\d.]*")
_SHEBANG_BYTES = 256
_WHICH_INTERPRETER = {
    "python": ("-c", "import sys; print(sys.executable)"),
    "node": ("-p", "process.execPath"),
}
_PATIENCE_S = 30


@dataclass(frozen=True, slots=True)
class Program:
    """The command of an environment, found on this machine."""

    words: tuple[str, ...]
    """With names in braces where a rollout's own values go."""
    shown_paths: tuple[str, ...]
    """Files and folders of this machine that it needs."""
    path: tuple[str, ...]
    """Further folders for PATH."""

    @property
    def reads_prompt_from_input(self) -> bool:
        return not any("{prompt}" in word or "{prompt_file}" in word for word in self.words)

    @property
    def agent(self) -> str:
        """The name that its trajectories have."""
        return agent_name(self.words)


def agent_name(words: Sequence[str]) -> str:
    """The name of the agent that a command starts; a script's, where an interpreter runs one."""
    if preset := preset_of(words[0]):
        return preset.agent
    name = Path(words[0]).name
    scripts = words[1:] if _INTERPRETER.fullmatch(name) else ()
    return next((Path(word).name for word in scripts if "{" not in word and Path(word).is_file()), name)


def find_program(command: str, extra: Sequence[str] = ()) -> Program:
    """ConfigError: the command is empty, names no program, or has an unknown name in braces.

    A script and files among the words are shown themselves, not their folders, which may hold a task's
    answers; a program of an installation (`…/bin/NAME`) is shown with it. `extra` are further paths.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ConfigError(f"the agent's command cannot be read: {error}.", "Check its quotes.") from error
    if not words:
        raise ConfigError("no agent is named.", 'Name the command: --env.agent "claude -p {prompt}"')
    _check_fields(command, words)
    program_path = shutil.which(words[0])
    if program_path is None and Path(words[0]).is_file():
        raise ConfigError(
            f"the agent's program '{words[0]}' cannot be executed.",
            "chmod +x, or name its interpreter first.",
        )
    if program_path is None:
        raise ConfigError(
            f"the agent's program '{words[0]}' is not on this machine.", "Install it, or give its path."
        )
    program = _behind_shim(Path(program_path).absolute())
    programs = [program, *_interpreter(program)]
    needed_paths = [path for needing in programs for path in _needed_by(needing)]
    needed_paths += (str(Path(path).expanduser().resolve()) for path in extra)
    rest = []
    for word in words[1:]:
        path = Path(word).expanduser()
        if "{" not in word and path.is_file():
            needed_paths.append(str(path.resolve()))
            word = str(path.resolve())
        rest.append(word)
    visible = dict.fromkeys(path for path in needed_paths if not _is_visible(Path(path)))
    folders = dict.fromkeys(str(path.parent) for path in programs if not _is_visible(path))
    return Program((str(program), *rest), tuple(visible), tuple(folders))


def _interpreter(script: Path) -> list[Path]:
    """The program that a script's first line names; `env NAME` is the one on the user's own PATH."""
    if not os.access(script, os.R_OK):
        return []
    with script.open("rb") as file:
        line = file.readline(_SHEBANG_BYTES).decode("utf-8", "replace")
    words = line.removeprefix("#!").split() if line.startswith("#!") else []
    if words and Path(words[0]).name == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    interpreter = shutil.which(words[0]) if words else None
    return [_behind_shim(Path(interpreter).absolute())] if interpreter else []


def _behind_shim(program: Path) -> Path:
    """The interpreter that a version manager's script (pyenv, nodenv, asdf) starts: the script needs the
    manager's files and settings, which a rollout does not see."""
    kind = re.fullmatch(r"(python|node)[\d.]*", program.name)
    if kind is None or not _is_script(program):
        return program
    question = [str(program), *_WHICH_INTERPRETER[kind[1]]]
    try:
        answer = subprocess.run(question, capture_output=True, text=True, timeout=_PATIENCE_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return program  # the rollout says what is missing
    interpreter = Path(answer.stdout.strip())
    return interpreter if interpreter.is_file() else program


def _is_script(program: Path) -> bool:
    if not os.access(program, os.R_OK):
        return False
    with program.open("rb") as file:
        return file.read(2) == b"#!"


def _check_fields(command: str, words: Sequence[str]) -> None:
    try:
        for word in words:
            fill(word, dict.fromkeys(FIELDS, ""))
    except (KeyError, ValueError, IndexError, AttributeError) as error:
        field_names = ", ".join(f"{{{name}}}" for name in FIELDS)
        raise ConfigError(
            f"the agent's command has a name in braces that means nothing: {error}.",
            f"Use {field_names}; write a brace itself twice.",
        ) from error


def fill(word: str, values: Mapping[str, str]) -> str:
    """The word with its names in braces replaced; doubled braces stand for themselves."""
    return word.format_map(values)


def _needed_by(program: Path) -> list[str]:
    """The program, what it links to, and the installation that it is a part of."""
    real = program.resolve()
    needed = [str(real)]
    for path in (program, real):
        installation = path.parent.parent
        is_whole = Path.home().is_relative_to(installation)  # ~/bin: the home directory, or the machine
        if path.parent.name == "bin" and not _is_visible(path) and not is_whole:
            needed.append(str(installation))
        marker = installation / "pyvenv.cfg"
        if marker.is_file():
            needed += _base_python(marker)
    package = next((folder for folder in real.parents if folder.name == "node_modules"), None)
    if package is not None:
        needed.append(str(package))
    return needed


def _base_python(marker: Path) -> list[str]:
    """The installation that a virtual environment was made from."""
    for line in marker.read_text("utf-8", "replace").splitlines():
        name, _, value = line.partition("=")
        if name.strip() == "home":
            return [str(Path(value.strip()).resolve().parent)]
    return []


def _is_visible(path: Path) -> bool:
    return any(path.is_relative_to(folder) for folder in _ALWAYS_VISIBLE)


@dataclass(frozen=True, slots=True)
class Place:
    """Where one rollout's program runs."""

    url: str
    """The model's address, without /v1."""
    workspace: str
    prompt_file: str
    home: str
    """Its home directory."""
    scratch: Path
    """A folder of this machine for the client's settings."""
    scratch_inside: str
    """The same folder as the program sees it."""


def launch(program: Program, prompt: str, model: str, context_tokens: int | None, run_place: Place) -> Launch:
    """The words and variables of one rollout. Files for the client are written to `run_place.scratch`."""
    values = {
        "prompt": prompt,
        "prompt_file": run_place.prompt_file,
        "workspace": run_place.workspace,
        "base_url": f"{run_place.url}/v1",
        "model": model,
        "key": LOCAL_KEY,
    }
    words = [fill(word, values) for word in program.words]
    target = Target(run_place.url, model, own_key=False, context_tokens=context_tokens)
    prepared = prepare(words, target, run_place.scratch, {"HOME": str(run_place.scratch / "home")})
    variables = {
        **prepared.variables,
        "HOME": run_place.home,
        "XDG_CONFIG_HOME": f"{run_place.home}/.config",
        "HERMES_MODEL": model,
        "HERMES_BASE_URL": run_place.url,
        **alone_variables(program.words[0]),
    }
    outside, inside = str(run_place.scratch), run_place.scratch_inside
    return Launch(
        tuple(word.replace(outside, inside) for word in prepared.command),
        {name: value.replace(outside, inside) for name, value in variables.items()},
    )


def shell_line(command: Sequence[str], path: Sequence[str]) -> str:
    """The command as one line of a shell, with its folders before the sandbox's own PATH."""
    line = "exec " + shlex.join(command)
    return f"export PATH={shlex.quote(':'.join(path))}:$PATH; {line}" if path else line
