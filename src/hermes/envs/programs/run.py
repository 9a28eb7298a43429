"""One rollout of a program: a sandbox of its own, the model behind one URL, the record, the tokens.

The program has no network but its model: inside the sandbox a forwarder leads from a port of the sandbox's
own loopback to a socket that is shown to it. With the back end `local` it runs on this machine, unisolated.

When the block of `finished_program` begins, everything that the program started has been ended. A program
that cannot be started, crashes, hangs or never calls its model has no reward, and its group is dropped with
the reason; so is one whose model failed. One that spent its model calls is scored as it left things.
"""

from __future__ import annotations

import asyncio
import importlib.resources
import re
import shlex
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.config import paths
from hermes.core import new_id
from hermes.core.texts import FILE, named
from hermes.envs.agent.policy import SlottedChat
from hermes.envs.agent.result import AgentResult
from hermes.envs.agent.rollout import RolloutContext, RolloutSpec
from hermes.envs.failures import GroupDroppedError
from hermes.envs.programs.forward import READY
from hermes.envs.programs.launch import Place, launch, shell_line
from hermes.envs.programs.record import EndedProgram, ProgramSettings, write_rollout
from hermes.errors import ContextOverflowError, HermesError, SandboxError, UsageError
from hermes.gateway.journal import Group, Journal
from hermes.gateway.sampled import OtherModels, SampledGateway, SampledRollout
from hermes.models.tokens.chat import TokenChat
from hermes.safety.approval import AllowAll
from hermes.sandbox import open_sandbox
from hermes.tools.base import Workbench

if TYPE_CHECKING:
    from hermes.sandbox.base import CommandResult, Sandbox

_PORT = 47_311
"""The model's port inside a sandbox, whose loopback is its own."""
_INSIDE = "/tmp/.agent"
_START_S = 30.0
MODEL_NAME = "policy"
NEVER_CALLED = "it never called its model"
_LARGE_FILE = "find . -type f -size +4000000k 2>/dev/null | head -n 1"
"""Names a file of about the most bytes that a sandbox lets a file have."""
_NO_TERMINAL = re.compile(
    r"EOFError|not a (tty|terminal)|no tty|/dev/tty|raw mode is not supported|inappropriate ioctl",
    re.IGNORECASE,
)
"""The last words of programs that need a person."""
_QUESTION_ENDS = ("?", ":", ">", ")", "]")
_TRACEBACK = "Traceback (most recent call last):"
_SANDBOX_LIMITS = (
    (
        r"APIConnectionError|ConnectError|name resolution|getaddrinfo|resolve host|\bENOTFOUND|EAI_AGAIN"
        r"|network is unreachable|fetch failed",
        "a rollout has no network but its model, at OPENAI_BASE_URL, ANTHROPIC_BASE_URL or HERMES_BASE_URL",
    ),
    (
        r"read-only file system|\bEROFS|permission denied|\bEACCES",
        "a rollout can write to its workspace, its home directory and /tmp only",
    ),
    (
        r"no module named|cannot find module|no such file or directory|\bENOENT",
        "a rollout sees the files that its command names, and those of env.agent_paths",
    ),
)
"""Last words of programs that met a limit of their sandbox, and the limit."""


@dataclass
class ProgramHost:
    """Resources that all rollouts of an environment share: `open` before the first, `close` at the end."""

    home: Path
    others: OtherModels | None = None
    """Who answers calls that name another model than the trained one."""
    gateway: SampledGateway = field(default_factory=SampledGateway)
    journal: Journal | None = None
    _folder: Path | None = None

    async def open(self, secrets: dict[str, str]) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="hermes-model-"))
        self._folder.chmod(0o711)
        self.journal = Journal(self.home / "recordings", secrets)
        await self.gateway.open(self.socket_path)

    async def close(self) -> None:
        if self._folder is not None:
            await self.gateway.close()
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
        if self.others is not None:
            await self.others.close()
        if self.journal is not None:
            self.journal.close()
            self.journal = None

    @property
    def socket_path(self) -> Path:
        assert self._folder is not None, "the host is open"
        return self._folder / "model"

    @property
    def socket_folder(self) -> str:
        return str(self.socket_path.parent)


@asynccontextmanager
async def finished_program(
    context: RolloutContext, spec: RolloutSpec, host: ProgramHost, settings: ProgramSettings
) -> AsyncIterator[tuple[AgentResult, Workbench]]:
    """Runs the program to its end, and keeps its sandbox open for the block; see the module."""
    assert host.journal is not None, "the host is open"
    journal, group, config = host.journal, new_id(), context.config
    model = context.new_model()
    inner = model.model if isinstance(model, SlottedChat) else model
    rollout = SampledRollout(
        model,
        spec.sampling,
        inner if isinstance(inner, TokenChat) else None,
        keep=lambda call: asyncio.wrap_future(journal.append(group, call)),
        overrides=True,
        max_calls=settings.max_calls,
        takes_reward=settings.takes_reward,
        others=host.others,
        texts=config.texts,
    )
    # By these a trajectory is known if this process is killed before it has written it.
    facts = {"agent": settings.program.agent, "run": context.run_id, "task": spec.task_id}
    journal.note(Group(group, facts=facts))
    async with AsyncExitStack() as stack:
        sandbox = await _open(context, spec, host, settings, stack)
        path = stack.enter_context(host.gateway.rollout(rollout))
        ended = await _run(sandbox, f"{host.gateway.url}{path}", path, spec, host, settings, rollout)
        await sandbox.kill_all()
        await rollout.settled()
        fault = _fault(ended, settings, isolated=sandbox.isolated)
        if isinstance(fault, GroupDroppedError) and (path := await _large_file(sandbox, ended)):
            fault = GroupDroppedError("disk", f"the program filled the disk: {path} has more than 4 GB")
        recording = await asyncio.to_thread(journal.rotate, group)
        result = await asyncio.to_thread(write_rollout, context, spec, settings, recording, ended, fault)
        if fault is not None:
            raise fault
        assert result is not None, "the policy was called, or there is a fault"
        bench = Workbench(
            sandbox=sandbox,
            settings=config.settings,
            approver=AllowAll(),
            trajectory_id=result.trajectory.header.id,
            resources={"home": config.home, "environ": config.environ, "config": config},
        )
        stack.push_async_callback(bench.close)
        yield result, bench


async def _open(
    context: RolloutContext,
    spec: RolloutSpec,
    host: ProgramHost,
    settings: ProgramSettings,
    stack: AsyncExitStack,
) -> Sandbox:
    """The sandbox with the task's files in it, after the command that prepares it."""
    shown_paths = (*settings.program.shown_paths, host.socket_folder)
    if spec.open_sandbox is not None:
        sandbox = await spec.open_sandbox(shown_paths)
    else:
        sandbox = await open_sandbox(
            context.config.settings.sandbox,
            interactive=False,
            workspaces=paths.workspaces_dir(context.config.home),
            shown_paths=shown_paths,
        )
    stack.push_async_callback(sandbox.close)
    for path, data in spec.files.items():
        await sandbox.write_file(path, data)
    if settings.setup:
        prepared = await sandbox.run(settings.setup)
        if prepared.exit_code != 0:
            raise GroupDroppedError(
                "setup", f"the set-up command ended with {prepared.exit_code}: {_last_line(prepared)}"
            )
    for path, text in named(context.config.texts, FILE).items():
        await sandbox.write_file(path, text.encode())
    return sandbox


async def _run(
    sandbox: Sandbox,
    url: str,
    path: str,
    spec: RolloutSpec,
    host: ProgramHost,
    settings: ProgramSettings,
    rollout: SampledRollout,
) -> EndedProgram:
    scratch = Path(tempfile.mkdtemp(prefix="hermes-agent-"))
    try:
        inside = _INSIDE if sandbox.isolated else str(scratch)
        if sandbox.isolated:
            await _start_forwarder(sandbox, host)
            url = f"http://127.0.0.1:{_PORT}{path}"
        run_place = Place(url, sandbox.workspace, f"{inside}/prompt", f"{inside}/home", scratch, inside)
        prompt = spec.prompt
        context_tokens = rollout.tokens.context_tokens if rollout.tokens else None
        name = settings.train_model or MODEL_NAME
        started = launch(settings.program, prompt, name, context_tokens, run_place)
        (scratch / "home").mkdir(exist_ok=True)
        (scratch / "prompt").write_text(prompt, "utf-8")
        if sandbox.isolated:
            await _copy_in(sandbox, scratch, inside)
        stdin = prompt.encode() if settings.program.reads_prompt_from_input else b""
        line = shell_line(started.command, settings.program.path)
        result = await sandbox.run(
            line, timeout_s=settings.timeout_s, env=dict(started.variables), stdin=stdin
        )
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return EndedProgram(result, rollout)


async def _start_forwarder(sandbox: Sandbox, host: ProgramHost) -> None:
    """SandboxError: the model cannot be reached from inside."""
    source = importlib.resources.files("hermes.envs.programs").joinpath("forward.py").read_text()
    words = ["python3", "-I", "-S", "-c", source, str(host.socket_path), str(_PORT)]
    process = await sandbox.start(f"exec {shlex.join(words)}")
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + _START_S
    while READY not in process.output().split():
        if process.exit_code is not None or loop.time() > deadline_s:
            raise SandboxError(f"the model cannot be reached from the sandbox: {process.output().strip()}")
        await process.wait(0.01)


async def _copy_in(sandbox: Sandbox, folder: Path, inside: str) -> None:
    """The client's settings and the prompt: a few small files."""
    await sandbox.run(f"mkdir -p {shlex.quote(inside)}/home")
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            name = f"{inside}/{path.relative_to(folder)}"
            await sandbox.write_file(name, path.read_bytes())


async def _large_file(sandbox: Sandbox, ended: EndedProgram) -> str:
    """The file that a program was ended for; empty: there is none."""
    if ended.result.exit_code == 0:
        return ""
    return (await sandbox.run(_LARGE_FILE)).output.strip()


def _fault(ended: EndedProgram, settings: ProgramSettings, *, isolated: bool) -> HermesError | None:
    """Why the rollout has no reward, through no fault of the policy; None: it has one."""
    command, failure = ended.result, ended.rollout.failure
    called = any(not call.other_model for call in ended.rollout.calls)
    asks = asks_on_terminal(command.output) and not called
    if command.timed_out:
        waits = f", waiting for an answer to: {_last_line(command)}" if asks else ""
        return GroupDroppedError(
            "timeout", f"the program ran for {settings.timeout_s:g} s and was ended{waits}"
        )
    if isinstance(failure, ContextOverflowError) and (not called or command.exit_code != 0):
        fewer = "train a model with a longer context, or give the program fewer tools and instructions"
        return GroupDroppedError(
            "context length", f"the program's prompt is too long: {failure.message} {fewer.capitalize()}."
        )
    if failure is not None and not isinstance(failure, ContextOverflowError | UsageError):
        return failure
    end = f"the program ended with exit code {command.exit_code}: {_last_words(command)}"
    if command.exit_code != 0:
        end += _explanation(ended, isolated=isolated)
    if not called and failure is None and asks:
        return GroupDroppedError(
            "program", f"the program asked something on a terminal, which a rollout does not have; {end}"
        )
    if not called:
        reason = failure.message if failure else _uncalled(ended.rollout, settings)
        return GroupDroppedError("program", f"{reason}; {end}")
    if command.exit_code != 0 and not settings.scores_crashes and not ended.rollout.refused:
        return GroupDroppedError("program", end)
    return None


def _uncalled(rollout: SampledRollout, settings: ProgramSettings) -> str:
    """The sentence for a program that did not call the model that is trained."""
    names = ", ".join(sorted({call.other_model for call in rollout.calls}))
    if not names:
        return NEVER_CALLED
    return f"it called {names} and never '{settings.train_model}', the model that is trained"


def asks_on_terminal(output: str) -> bool:
    """Whether the output of a program that did nothing looks like a question to a person."""
    last = output.rstrip().rpartition("\n")[2]
    waits = not output.endswith("\n") and last.endswith(_QUESTION_ENDS)
    return waits or _NO_TERMINAL.search(last) is not None


def _explanation(ended: EndedProgram, *, isolated: bool) -> str:
    """Names a limit that a failed program probably met; empty: none that is known here."""
    calls = [call.reply.call for call in ended.rollout.calls if not call.other_model]
    if calls and calls[-1].finish_reason == "length":
        trace = calls[-1].tokens
        limit = f" of {len(trace.sampled_ids):,} tokens" if trace else ""
        return f"; its last answer was cut at the limit{limit} (env.agent_crash=score keeps such rollouts)"
    words = _last_words(ended.result)
    limits = (limit for pattern, limit in _SANDBOX_LIMITS if re.search(pattern, words, re.IGNORECASE))
    limit = next(limits, "") if isolated else ""
    return f"; {limit}" if limit else ""


def _last_words(command: CommandResult) -> str:
    """The last line that a program printed; that of its exception, where others follow a traceback."""
    _, traceback, rest = command.output.rpartition(_TRACEBACK)
    exceptions = [line for line in rest.splitlines() if line and not line[0].isspace()] if traceback else []
    return exceptions[0].strip()[-300:] if exceptions else _last_line(command)


def _last_line(command: CommandResult) -> str:
    lines = [line.strip() for line in command.output.splitlines() if line.strip()]
    return lines[-1][-300:] if lines else "it printed nothing"
