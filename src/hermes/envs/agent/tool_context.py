"""ToolContext: a reward function's access to the rollout's sandbox, after the agent has stopped.

What it promises. When a reward function receives it, the agent has made its last call and every process it
left in the background has been killed, so nothing observes what the grader writes (hidden tests, for
example). Paths are quoted, nothing is shared between rollouts, and what a reward function does is not
recorded as the agent's. `fresh` returns a sandbox in which the agent never ran, with only the files that are
copied there. Commands never run on the host unless the user chose a sandbox without isolation: for a rollout
that had no isolated sandbox, one is opened on first use.

Every method can be awaited. In a plain function, which runs in its own thread, the same methods return their
results, and the event loop is not blocked. Using a result without `await` on the event loop would block every
other rollout, so it is an error with the fix.

Not promised: that files written by an agent are what they seem. Judge them in a `fresh` sandbox.

Directories are copied into and out of a sandbox file by file. File names that a sandbox reports are not
trusted: a name that leads out of the target directory is an error, and only regular files are copied. What
comes out of a sandbox has a limit in bytes.
"""

from __future__ import annotations

import asyncio
import errno
import json
import posixpath
import shlex
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, cast

from hermes.batch.reward import MAX_CONTENT_BYTES
from hermes.config import paths
from hermes.core import JSONObject, ToolCall, new_id
from hermes.envs.agent.pending import SyncOrAwaitable, block_on
from hermes.errors import UsageError
from hermes.sandbox import open_sandbox as new_sandbox
from hermes.sandbox.base import end_processes
from hermes.tools import registry
from hermes.tools.execute import run_tool_call

if TYPE_CHECKING:
    from hermes.sandbox.base import Sandbox
    from hermes.tools.base import Workbench

TIMEOUT_S = 180.0
MAX_COPY_BYTES = 256 << 20
"""The size of a file, or of all files of a directory, that a grader copies out of the sandbox."""
Wait = Callable[[Coroutine[Any, Any, Any]], Any]


class ToolContext:
    """One rollout's sandbox and tools. The code that opened it calls `cleanup`."""

    def __init__(
        self, bench: Workbench, *, wait: Wait = SyncOrAwaitable, sandbox: Sandbox | None = None
    ) -> None:
        self.task_id = bench.trajectory_id
        self._bench = bench
        self._wait = wait
        self._exit_stack = AsyncExitStack()
        self._opening = asyncio.Lock()
        self._sandbox = sandbox
        if sandbox is None and (bench.sandbox.isolated or bench.settings.sandbox.backend == "local"):
            self._sandbox = bench.sandbox

    @classmethod
    async def after(cls, bench: Workbench) -> ToolContext:
        """The context of a finished rollout; processes it left running are killed first."""
        await end_processes(bench.sandbox, bench.processes.values())
        return cls(bench)

    def blocking(self) -> ToolContext:
        """The same, for code in another thread: methods return results instead of awaitables."""
        loop = asyncio.get_running_loop()
        blocking = ToolContext(self._bench, wait=lambda work: block_on(work, loop), sandbox=self._sandbox)
        blocking._exit_stack, blocking._opening = self._exit_stack, self._opening
        return blocking

    def terminal(self, command: str, timeout: float = TIMEOUT_S) -> Any:
        """{exit_code, output} of a shell command, and `error` if it timed out."""
        return self._wait(self._terminal(command, timeout))

    def read_file(self, path: str) -> Any:
        """{content}: the file as text; or {error}, also for one of more than MAX_CONTENT_BYTES."""
        return self._wait(self._read_file(path))

    def write_file(self, path: str, content: str) -> Any:
        """{bytes_written}; or {error}."""
        return self._wait(self._write(path, content.encode("utf-8", "surrogatepass")))

    def upload_file(self, local_path: str | Path, remote_path: str) -> Any:
        """Copies a file of this machine into the sandbox, byte for byte."""
        return self._wait(self._upload_file(Path(local_path), remote_path))

    def upload_dir(self, local_dir: str | Path, remote_dir: str) -> Any:
        """Copies a directory into the sandbox; links are not followed."""
        return self._wait(self._upload_dir(Path(local_dir), remote_dir))

    def download_file(self, remote_path: str, local_path: str | Path) -> Any:
        """Copies a file out of the sandbox: {bytes_written}; or {error}, also over MAX_COPY_BYTES."""
        return self._wait(self._download_file(remote_path, Path(local_path)))

    def download_dir(self, remote_dir: str, local_dir: str | Path) -> Any:
        """Copies the regular files of a directory out of the sandbox, never to outside `local_dir`.

        {files}: how many; or {error}: there is no such directory, or it is larger than MAX_COPY_BYTES.
        """
        return self._wait(self._download_dir(remote_dir, Path(local_dir)))

    def search(self, query: str, path: str = ".") -> Any:
        """{matches: [{path, line, text}]} of the lines that match a regular expression; or {error}."""
        return self._wait(self._search(query, path))

    def web_search(self, query: str) -> Any:
        """{results: [{title, url, snippet}]}; or {error}."""
        return self._wait(self._results("web_search", {"query": query}))

    def web_extract(self, urls: Sequence[str]) -> Any:
        """{results: [{url, title, content}]}; or {error}."""
        return self._wait(self._results("web_extract", {"urls": list(urls)}))

    def browser_navigate(self, url: str) -> Any:
        """{content}: the outline of the page; or {error}, as for every browser method."""
        return self._wait(self._content("browser_navigate", {"url": url}))

    def browser_snapshot(self) -> Any:
        return self._wait(self._content("browser_snapshot", {}))

    def browser_click(self, ref: str) -> Any:
        return self._wait(self._content("browser_click", {"ref": ref}))

    def browser_type(self, ref: str, text: str) -> Any:
        return self._wait(self._content("browser_type", {"ref": ref, "text": text}))

    def browser_scroll(self, direction: str) -> Any:
        return self._wait(self._content("browser_scroll", {"direction": direction}))

    def browser_back(self) -> Any:
        return self._wait(self._content("browser_back", {}))

    def browser_press(self, key: str) -> Any:
        return self._wait(self._content("browser_press", {"key": key}))

    def browser_get_images(self) -> Any:
        return self._wait(self._content("browser_get_images", {}))

    def browser_console(self) -> Any:
        return self._wait(self._content("browser_console", {}))

    def call_tool(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """The result of any tool, as the text an agent would read."""
        return self._wait(self._text(name, arguments))

    def fresh(self, files: Sequence[str] = ()) -> Any:
        """A ToolContext in a new, empty sandbox, with copies of these files of the rollout.

        A file that does not exist, cannot be read, or is larger than MAX_COPY_BYTES is not copied. The new
        context is cleaned up together with this one.
        """
        return self._wait(self._fresh(files))

    def cleanup(self) -> Any:
        """Closes what was opened here; the rollout's own sandbox is closed by its owner."""
        return self._wait(self._exit_stack.aclose())

    @property
    def sandbox(self) -> Sandbox:
        """The sandbox itself, for graders that need more than these methods."""
        if self._sandbox is None:
            raise UsageError(
                "this rollout had no isolated sandbox.", "Use 'ctx = await ctx.fresh()' and its sandbox."
            )
        return self._sandbox

    async def open_sandbox(self) -> Sandbox:
        """The rollout's sandbox; an isolated one is opened on first use if the rollout had none."""
        async with self._opening:
            if self._sandbox is None:
                self._sandbox = await self._new_sandbox()
        return self._sandbox

    async def _new_sandbox(self) -> Sandbox:
        home = cast(Path, self._bench.resources["home"])
        sandbox = await new_sandbox(
            self._bench.settings.sandbox, interactive=False, workspaces=paths.workspaces_dir(home)
        )
        self._exit_stack.push_async_callback(sandbox.close)
        return sandbox

    async def _terminal(self, command: str, timeout_s: float) -> JSONObject:
        result = await (await self.open_sandbox()).run(command, timeout_s=timeout_s)
        response: JSONObject = {"exit_code": result.exit_code, "output": result.output}
        return {**response, "error": f"stopped after {timeout_s:g} s"} if result.timed_out else response

    async def _read_file(self, path: str) -> JSONObject:
        try:
            data = await (await self.open_sandbox()).read_file(path, MAX_CONTENT_BYTES + 1)
        except OSError as error:
            return {"error": _describe_error(error, path)}
        if len(data) > MAX_CONTENT_BYTES:
            return {"error": f"'{path}': larger than {MAX_CONTENT_BYTES} bytes; use download_file"}
        return {"content": data.decode("utf-8", "replace")}

    async def _write(self, path: str, data: bytes) -> JSONObject:
        try:
            await (await self.open_sandbox()).write_file(path, data)
        except OSError as error:
            return {"error": _describe_error(error, path)}
        return {"bytes_written": len(data)}

    async def _upload_file(self, local: Path, remote: str) -> JSONObject:
        return await self._write(remote, await asyncio.to_thread(local.read_bytes))

    async def _upload_dir(self, local: Path, remote: str) -> JSONObject:
        return {"files": await send_dir(await self.open_sandbox(), local, remote)}

    async def _download_file(self, remote: str, local: Path) -> JSONObject:
        try:
            data = await (await self.open_sandbox()).read_file(remote, MAX_COPY_BYTES + 1)
        except OSError as error:
            return {"error": _describe_error(error, remote)}
        if len(data) > MAX_COPY_BYTES:
            return {"error": f"'{remote}': larger than {MAX_COPY_BYTES} bytes"}
        local.parent.mkdir(parents=True, exist_ok=True)
        await asyncio.to_thread(local.write_bytes, data)
        return {"bytes_written": len(data)}

    async def _download_dir(self, remote: str, local: Path) -> JSONObject:
        try:
            return {"files": await receive_dir(await self.open_sandbox(), remote, local, MAX_COPY_BYTES)}
        except OSError as error:
            return {"error": _describe_error(error, remote)}

    async def _search(self, query: str, path: str) -> JSONObject:
        response = await self._content("search_files", {"pattern": query, "path": path})
        if "error" in response:
            return response
        lines = response["content"].splitlines()
        return {"matches": [match for line in lines if (match := _parse_match(line))]}

    async def _fresh(self, files: Sequence[str]) -> ToolContext:
        sandbox = await self._new_sandbox()
        for path in files:
            source = await self.open_sandbox()
            try:
                data = await source.read_file(path, MAX_COPY_BYTES + 1)
            except OSError:  # not there, or made unreadable: either way there is nothing to copy
                continue
            if len(data) <= MAX_COPY_BYTES:
                await sandbox.write_file(path, data)
        copy = ToolContext(self._bench, wait=self._wait, sandbox=sandbox)
        self._exit_stack.push_async_callback(copy._exit_stack.aclose)
        return copy

    async def _call(self, name: str, arguments: Mapping[str, Any]) -> tuple[bool, str]:
        tool = registry.get(name)
        bench = replace(self._bench, sandbox=await self.open_sandbox())
        call = ToolCall(f"grader_{new_id()}", name, json.dumps(dict(arguments)))
        message, result = await run_tool_call(call, {name: tool}, bench)
        return result.ok, message.content

    async def _text(self, name: str, arguments: Mapping[str, Any]) -> str:
        return (await self._call(name, arguments))[1]

    async def _content(self, name: str, arguments: Mapping[str, Any]) -> JSONObject:
        ok, text = await self._call(name, arguments)
        return {"content": text} if ok else {"error": text}

    async def _results(self, name: str, arguments: Mapping[str, Any]) -> JSONObject:
        ok, text = await self._call(name, arguments)
        return {"results": json.loads(text)} if ok else {"error": text}


def _describe_error(error: OSError, path: str) -> str:
    return f"'{path}': {error.strerror or type(error).__name__}"


def _parse_match(line: str) -> JSONObject | None:
    path, _, rest = line.partition(":")
    number, colon, text = rest.partition(":")
    return {"path": path, "line": int(number), "text": text} if colon and number.isdecimal() else None


async def send_dir(sandbox: Sandbox, local: Path, remote: str) -> int:
    """Copies the regular files under `local`; returns how many."""
    if not local.is_dir():
        raise UsageError(f"'{local}' is not a directory.", "Give a directory on this machine.")
    files = sorted(path for path in local.rglob("*") if path.is_file() and not path.is_symlink())
    for path in files:
        target = posixpath.join(remote, path.relative_to(local).as_posix())
        await sandbox.write_file(target, await asyncio.to_thread(path.read_bytes))
    return len(files)


async def receive_dir(sandbox: Sandbox, remote: str, local: Path, max_bytes: int) -> int:
    """Copies the regular files under `remote`, links not followed; returns how many.

    Raises OSError for what a policy can cause: no such directory, too many files, over `max_bytes` in all.
    """
    listing = await sandbox.run(f"cd -- {shlex.quote(remote)} && find . -type f -print0")
    if listing.exit_code:
        raise OSError(errno.ENOENT, listing.output.strip()[:300], remote)
    if listing.truncated:
        raise OSError(errno.EFBIG, "it holds too many files", remote)
    names = [PurePosixPath(name) for name in listing.output.split("\0") if name]
    left_bytes = max_bytes
    for name in names:
        if name.is_absolute() or ".." in name.parts:
            raise OSError(errno.EINVAL, f"it lists a file outside: {str(name)!r}", remote)
        data = await sandbox.read_file(posixpath.join(remote, str(name)), left_bytes + 1)
        left_bytes -= len(data)
        if left_bytes < 0:
            raise OSError(errno.EFBIG, f"it holds more than {max_bytes} bytes", remote)
        target = local.joinpath(*name.parts)
        target.parent.mkdir(parents=True, exist_ok=True)
        await asyncio.to_thread(target.write_bytes, data)
    return len(names)
