"""ToolContext: a grader's hands in a real sandbox, from coroutines and from plain functions."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hermes.agent.build import RolloutPlan, new_header, open_agent, open_writer
from hermes.batch.reward import GraderError, RewardContext, score
from hermes.batch.tasks import TaskRow
from hermes.config.load import load
from hermes.core import Message, Source, ToolCall, Trajectory
from hermes.envs.agent.grading import grade, uses_results_directly, validate_reward
from hermes.envs.agent.result import AgentResult, read_result
from hermes.envs.agent.tool_context import ToolContext
from hermes.envs.cli.sample_grader import ScriptedPolicy
from hermes.envs.rewards.result import RewardResult
from hermes.errors import SandboxError, UsageError
from hermes.sandbox.base import Sandbox
from hermes.tools import registry
from hermes.tools.base import Workbench
from tests.fakes.site import Page, Site, page

UNIT = (0.0, 1.0)


WATCHER = "while true; do cat hidden.py >> stolen.txt 2>/dev/null; sleep 0.01; done"


def _asks(name: str, **arguments: object) -> Message:
    return Message.assistant(tool_calls=(ToolCall("c", name, json.dumps(arguments)),))


@asynccontextmanager
async def rollout(
    home: Path, said: tuple[Message, ...], toolsets: tuple[str, ...], **settings: Any
) -> AsyncIterator[tuple[Workbench, AgentResult]]:
    """A rollout in which these turns were said, at its end and with its sandbox still there."""
    environ = {"HERMES_HOME": str(home), "PATH": os.environ["PATH"], "HOME": str(home)}
    config = load(settings, environ)
    model = ScriptedPolicy(said).rollout_model(None)
    with open_writer(config) as writer:
        header = new_header(Source.ENV, model)
        async with open_agent(config, writer, model, header, RolloutPlan(toolsets=toolsets)) as loop:
            steps = [step async for step in loop.turn(Message.user("Go."))]
            assert loop.outcome is not None
            yield loop.bench, read_result(Trajectory(loop.recorder.header, steps, loop.outcome))


@pytest.fixture
async def ended(tmp_path: Path) -> AsyncIterator[tuple[Workbench, AgentResult]]:
    """In a real isolating sandbox: it wrote a file and left a process behind."""
    said = (
        _asks("write_file", path="answer.txt", content="blue ☕\n"),
        _asks("terminal", command=WATCHER, background=True),
        Message.assistant("Done."),
    )
    async with rollout(tmp_path / "home", said, ("terminal", "file")) as whole:
        yield whole


async def test_every_method_works_in_the_rollouts_sandbox(
    ended: tuple[Workbench, AgentResult], tmp_path: Path
) -> None:
    ctx = await ToolContext.after(ended[0])
    assert (await ctx.read_file("answer.txt"))["content"] == "blue ☕\n"
    assert "No such file" in (await ctx.read_file("nowhere"))["error"]
    assert await ctx.write_file("a b/it's.txt", "x") == {"bytes_written": 1}
    assert await ctx.terminal("cat a\\ b/it\\'s.txt; exit 3") == {"exit_code": 3, "output": "x"}
    assert "stopped after 1 s" in (await ctx.terminal("sleep 9", timeout=1))["error"]
    (found,) = (await ctx.search("blue"))["matches"]
    assert found == {"path": "answer.txt", "line": 1, "text": "blue ☕"}
    assert "1\tblue" in await ctx.call_tool("read_file", {"path": "answer.txt"})
    assert "error" in json.loads(await ctx.call_tool("read_file", {"path": "nowhere"}))
    assert "error" in await ctx.web_search("anything")
    assert (await ctx.web_extract(["http://127.0.0.1:9/"]))["results"][0]["error"]
    with pytest.raises(UsageError, match="no such tool"):
        await ctx.call_tool("teleport", {})
    await ctx.cleanup()


async def test_directories_go_in_and_out_whole(ended: tuple[Workbench, AgentResult], tmp_path: Path) -> None:
    ctx = await ToolContext.after(ended[0])
    local = tmp_path / "tests"
    (local / "deep").mkdir(parents=True)
    (local / "one.bin").write_bytes(bytes(range(256)))
    (local / "deep" / "two words.txt").write_text("2")
    (local / "link").symlink_to("/etc/passwd")
    assert await ctx.upload_dir(local, "given") == {"files": 2}
    assert (await ctx.terminal("find given -type f -o -type l | sort"))["output"].splitlines() == [
        "given/deep/two words.txt",
        "given/one.bin",
    ]
    await ctx.terminal("ln -s /etc/passwd given/sly; mkfifo given/pipe")
    back = tmp_path / "back"
    assert await ctx.download_dir("given", back) == {"files": 2}
    assert (back / "one.bin").read_bytes() == bytes(range(256))
    assert sorted(path.name for path in back.rglob("*")) == ["deep", "one.bin", "two words.txt"]
    assert await ctx.download_file("given/one.bin", tmp_path / "single") == {"bytes_written": 256}
    assert await ctx.upload_file(tmp_path / "single", "again") == {"bytes_written": 256}
    assert "nowhere" in (await ctx.download_dir("nowhere", back))["error"]
    await ctx.cleanup()


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


async def test_a_huge_sparse_file_costs_the_grader_no_more_than_its_limits(
    ended: tuple[Workbench, AgentResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hermes.envs.agent.tool_context.MAX_COPY_BYTES", 64 << 20)
    ctx = await ToolContext.after(ended[0])
    assert (await ctx.terminal("mkdir d; truncate -s 3G solution.py d/large"))["exit_code"] == 0
    before = peak_bytes()
    assert "larger than" in (await ctx.read_file("solution.py"))["error"]
    assert "larger than" in (await ctx.download_file("solution.py", tmp_path / "out"))["error"]
    assert "holds more than" in (await ctx.download_dir("d", tmp_path / "copied"))["error"]
    fresh = await ctx.fresh(["solution.py"])
    assert (await fresh.terminal("ls -A"))["output"] == ""

    async def read_text(context: RewardContext) -> float:
        with pytest.raises(OSError, match="larger than"):
            await context.read_file("solution.py")
        return 0.0

    async def graded_sandbox() -> Sandbox:
        return ctx.sandbox

    row, trajectory = TaskRow("k", ("Go.",)), ended[1].trajectory
    assert await score(read_text, row, trajectory, graded_sandbox) == 0.0
    assert peak_bytes() - before < 512 << 20
    assert list(tmp_path.glob("out")) == list(tmp_path.glob("copied/*")) == []
    await ctx.cleanup()


async def test_nothing_of_the_agents_runs_any_more_when_hidden_tests_are_placed(
    ended: tuple[Workbench, AgentResult],
) -> None:
    bench = ended[0]
    (process,) = bench.processes.values()
    assert process.exit_code is None
    ctx = await ToolContext.after(bench)
    assert process.exit_code is not None
    await ctx.terminal("rm -f stolen.txt")
    await ctx.write_file("hidden.py", "secret tests")
    await ctx.terminal("sleep 0.2")
    assert "error" in await ctx.read_file("stolen.txt")
    await ctx.cleanup()


async def test_a_fresh_sandbox_holds_only_what_was_copied_there(
    ended: tuple[Workbench, AgentResult],
) -> None:
    ctx = await ToolContext.after(ended[0])
    await ctx.write_file("conftest.py", "raise SystemExit(0)")
    fresh = await ctx.fresh(["answer.txt", "missing.txt"])
    assert (await fresh.terminal("ls -A"))["output"].split() == ["answer.txt"]
    assert fresh.sandbox.isolated
    await fresh.write_file("grader.py", "x")
    assert "error" in await ctx.read_file("grader.py")
    workspaces = ended[0].resources["home"] / "workspaces"  # type: ignore[operator]
    assert len(list(workspaces.iterdir())) == 2
    await ctx.cleanup()
    assert len(list(workspaces.iterdir())) == 1


async def test_a_rollout_without_isolation_still_grades_in_isolation(tmp_path: Path) -> None:
    """It had no tool to isolate; a grader that runs the answer must not do so on the bare machine."""
    async with rollout(tmp_path, (Message.assistant("Done."),), ("math",)) as (bench, _):
        assert bench.sandbox.backend == "local"
        ctx = await ToolContext.after(bench)
        with pytest.raises(UsageError, match="no isolated sandbox"):
            _ = ctx.sandbox
        assert (await ctx.terminal(f"ls {tmp_path}"))["exit_code"] != 0
        assert ctx.sandbox.isolated
        await ctx.cleanup()


@pytest.mark.skipif(
    registry.get("browser_navigate").unavailable(None, {}) is not None,  # type: ignore[arg-type]
    reason="needs a browser",
)
async def test_a_grader_can_look_at_pages_with_the_browser(tmp_path: Path) -> None:
    shop = page(
        '<title>Shop</title><a href="/pot">A pot</a><input aria-label="Glaze"><img src="/cup" alt="A cup">'
        "<script>console.log('hello')</script><div style='height: 3000px'></div>"
    )
    with Site({"/": shop, "/pot": page("<title>Pot</title><h1>Blue</h1>")}) as site:
        settings = {"web.allow_hosts": [site.host]}
        async with rollout(tmp_path, (Message.assistant(""),), ("math",), **settings) as (bench, _):
            ctx = await ToolContext.after(bench)
            outline = (await ctx.browser_navigate(site.url("/")))["content"]
            ref = outline.partition("[ref=")[2].partition("]")[0]
            assert "A pot" in outline and ref
            pages = await ctx.web_extract([site.url("/pot")])
            assert "Blue" in pages["results"][0]["content"]
            link = (
                (await ctx.browser_snapshot())["content"].partition('link "A pot" [ref=')[2].partition("]")[0]
            )
            assert "Pot" in (await ctx.browser_click(link))["content"]
            assert "A pot" in (await ctx.browser_back())["content"]
            assert "error" in await ctx.browser_click("e999")
            shown = (await ctx.browser_snapshot())["content"]
            field = shown.partition('textbox "Glaze" [ref=')[2].partition("]")[0]
            assert "content" in await ctx.browser_type(field, "celadon")
            assert "celadon" in (await ctx.browser_snapshot())["content"]
            assert (await ctx.browser_scroll("down"))["content"].startswith("at ")
            assert "content" in await ctx.browser_press("Home")
            assert "A cup" in (await ctx.browser_get_images())["content"]
            assert "hello" in (await ctx.browser_console())["content"]
            await ctx.cleanup()


async def test_a_grader_can_search_the_web(tmp_path: Path) -> None:
    hits = {"results": [{"title": "Clay", "url": "http://clay.example/", "content": "Soft."}]}
    with Site({"/search": Page(json.dumps(hits).encode(), "application/json")}) as site:
        settings = {"web.searxng_url": site.url("")}
        async with rollout(tmp_path, (Message.assistant(""),), ("math",), **settings) as (bench, _):
            ctx = await ToolContext.after(bench)
            (found,) = (await ctx.web_search("clay"))["results"]
            await ctx.cleanup()
    assert (found["title"], found["url"]) == ("Clay", "http://clay.example/")


async def test_plain_functions_get_results_and_the_event_loop_goes_on(
    ended: tuple[Workbench, AgentResult],
) -> None:
    bench, result = ended
    waiting = threading.Event()
    threads: list[int] = []

    def compute_reward(item: Any, result: AgentResult, ctx: ToolContext) -> float:
        threads.append(threading.get_ident())
        waiting.set()
        # Ends only when the loop, which must be free for that, has written the file.
        assert ctx.terminal("until [ -e go ]; do sleep 0.02; done; echo x")["output"] == "x\n"
        fresh = ctx.fresh(["answer.txt"])
        assert fresh.read_file("answer.txt")["content"] == "blue ☕\n"
        return 1.0

    async def let_it_go() -> None:
        await asyncio.to_thread(waiting.wait)
        await bench.sandbox.write_file("go", b"")

    helping = asyncio.create_task(let_it_go())
    assert (await grade(compute_reward, {}, result, bench, UNIT)).value == 1.0
    await helping
    assert threads[0] != threading.get_ident()


async def test_more_graders_than_the_loop_has_threads_do_not_wait_for_each_other_for_ever(
    ended: tuple[Workbench, AgentResult],
) -> None:
    """Each waits for work that needs a thread of the loop's pool; none may hold one meanwhile."""
    bench, result = ended
    many = 40  # the pool never has more than 32
    together = threading.Barrier(many)

    def compute_reward(item: Any, result: AgentResult, ctx: ToolContext) -> float:
        together.wait()
        return float(ctx.read_file("answer.txt")["content"] == "blue ☕\n")

    async def old_style(item: Any, result: AgentResult, ctx: ToolContext) -> float:
        together.wait()
        found = ctx.read_file("answer.txt")
        return float(found["content"] == "blue ☕\n")

    for function in (compute_reward, old_style):
        graded = asyncio.gather(*(grade(function, {}, result, bench, UNIT) for _ in range(many)))
        assert {reward.value for reward in await asyncio.wait_for(graded, 60)} == {1.0}


@pytest.mark.parametrize("way_out", [sys.exit, lambda: next(iter(()))])
async def test_a_grader_that_leaves_by_the_back_door_is_a_grader_failure(
    ended: tuple[Workbench, AgentResult], way_out: Any
) -> None:
    bench, result = ended

    def compute_reward(item: Any, result: AgentResult, ctx: ToolContext) -> float:
        way_out()
        return 1.0

    async def awaiting(item: Any, result: AgentResult, ctx: ToolContext) -> float:
        await ctx.read_file("answer.txt")
        way_out()
        return 1.0

    for function in (compute_reward, awaiting):
        with pytest.raises(GraderError, match="compute_reward raised"):
            await grade(function, {}, result, bench, UNIT)


async def test_a_coroutine_of_the_old_style_runs_off_the_loop(
    ended: tuple[Workbench, AgentResult],
) -> None:
    bench, result = ended
    threads: list[int] = []

    async def compute_reward(item: Any, result: AgentResult, ctx: ToolContext) -> float:
        threads.append(threading.get_ident())
        await asyncio.sleep(0)
        ran = ctx.terminal("cat answer.txt")
        return 1.0 if ran["exit_code"] == 0 else 0.0

    assert uses_results_directly(compute_reward)
    assert (await grade(compute_reward, {}, result, bench, UNIT)).value == 1.0
    assert threads[0] != threading.get_ident()


async def test_a_coroutine_that_awaits_runs_on_the_loop(ended: tuple[Workbench, AgentResult]) -> None:
    bench, result = ended

    async def compute_reward(item: Any, result: AgentResult, ctx: ToolContext) -> RewardResult:
        one, two = await asyncio.gather(ctx.terminal("echo 1"), ctx.read_file("answer.txt"))
        return RewardResult(0.5, {"one": float(one["output"]), "two": float("content" in two)})

    assert not uses_results_directly(compute_reward)
    assert dict((await grade(compute_reward, {}, result, bench, UNIT)).parts) == {"one": 1.0, "two": 1.0}


async def test_a_result_used_without_await_is_a_grader_failure_that_says_so(
    ended: tuple[Workbench, AgentResult],
) -> None:
    bench, result = ended

    async def compute_reward(item: Any, result: AgentResult, ctx: ToolContext) -> float:
        return helper(ctx)

    def helper(context: ToolContext) -> float:
        return float(context.terminal("true")["exit_code"] == 0)

    with pytest.raises(GraderError, match="terminal was used without being awaited") as caught:
        await grade(compute_reward, {}, result, bench, UNIT)
    assert "await" in caught.value.hint


async def test_a_sandbox_that_gives_way_while_grading_is_not_the_graders_failure(
    ended: tuple[Workbench, AgentResult],
) -> None:
    bench, result = ended

    async def compute_reward(item: Any, result: AgentResult, ctx: ToolContext) -> float:
        await bench.sandbox.close()
        await ctx.terminal("true")
        return 1.0

    with pytest.raises(SandboxError):
        await grade(compute_reward, {}, result, bench, UNIT)


def test_rewards_are_numbers_within_their_range() -> None:
    import numpy as np

    assert validate_reward(True, UNIT).value == 1.0
    assert validate_reward(np.float32(0.5), UNIT).value == 0.5
    assert validate_reward(-1, (-1.0, 1.0)).value == -1.0
    for wrong in (float("nan"), float("inf"), "1.0", None, [1.0], 1.01, -0.5, RewardResult(2.0)):
        with pytest.raises(GraderError):
            validate_reward(wrong, UNIT)


async def test_what_the_agent_did_is_told_in_openais_form(ended: tuple[Workbench, AgentResult]) -> None:
    _, result = ended
    assert [message["role"] for message in result.messages] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "tool",
        "assistant",
    ]
    asked = result.messages[1]["tool_calls"][0]
    assert asked["function"]["name"] == "write_file"
    assert result.messages[2]["tool_call_id"] == asked["id"]
    assert (result.turns_used, result.finished_naturally, result.final_response) == (3, True, "Done.")
    assert next(result.tool_calls()) == ("write_file", {"path": "answer.txt", "content": "blue ☕\n"})
    assert "gave no token ids" in (result.exactness.inexact or "")
    assert result.sequences == ()


async def test_failed_tool_calls_are_listed_with_their_turn(tmp_path: Path) -> None:
    broken = replace(_asks("calculator").tool_calls[0], id="b", arguments="{" * 500, error="no JSON")
    both = Message.assistant(tool_calls=(*_asks("nothing", x=1).tool_calls, broken))
    said = (_asks("calculator", expression="2"), both, Message.assistant(""))
    async with rollout(tmp_path, said, ("math",)) as (_, result):
        errors = sorted(result.tool_errors, key=lambda each: each.error)
    assert [(each.turn, each.error, len(each.arguments)) for each in errors] == [
        (2, "bad_arguments", 200),
        (2, "unknown_tool", 8),
    ]
    assert "no tool is named" in errors[1].tool_result
