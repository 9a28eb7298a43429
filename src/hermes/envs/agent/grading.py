"""Calls an environment's `compute_reward`, and validates what it returns.

It may be a plain function (run in a thread; ToolContext methods return results), a coroutine that awaits
ToolContext's methods (run on the event loop), or, in older environments, a coroutine that uses them without
`await`. The last kind is recognised by its source and runs in a thread with its own event loop, so that it
does not block other rollouts.

An exception, and any value but a finite number within the declared range, is a failure of the grader: the
rollout then has no reward, rather than a reward of 0.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import math
import textwrap
from collections.abc import Callable
from functools import cache
from numbers import Real
from typing import TYPE_CHECKING, Any

from hermes.batch.reward import GraderError
from hermes.envs.agent.pending import in_own_thread
from hermes.envs.agent.tool_context import ToolContext
from hermes.envs.author_code import GRADER_WATCH, error_location
from hermes.envs.rewards.result import RewardResult
from hermes.errors import HermesError, HostError, ProviderError, SandboxError

if TYPE_CHECKING:
    from hermes.envs.agent.result import AgentResult
    from hermes.tools.base import Workbench

ComputeReward = Callable[[Any, "AgentResult", ToolContext], Any]
Range = tuple[float, float]


async def grade(
    compute_reward: ComputeReward, item: Any, result: AgentResult, bench: Workbench, allowed: Range
) -> RewardResult:
    """The reward. GraderError if the grader failed; an infrastructure error is raised as it is."""
    context = await ToolContext.after(bench)
    try:
        value = await _call(compute_reward, item, result, context)
    except (ProviderError, SandboxError, HostError):
        raise
    except HermesError as error:
        raise GraderError(f"compute_reward failed: {error.message}", error.hint) from error
    except (Exception, SystemExit) as error:  # sys.exit in a grader must not end the run
        location = error_location(error)
        where = f" ({location})" if location else ""
        raise GraderError(f"compute_reward raised {type(error).__name__}: {error}{where}") from error
    finally:
        await context.cleanup()
    return validate_reward(value, allowed)


def validate_reward(value: object, allowed: Range) -> RewardResult:
    """The value as a reward; GraderError if it is not a valid one."""
    reward = value if isinstance(value, RewardResult) else None
    if reward is None:
        if not isinstance(value, Real) or not math.isfinite(value):
            raise GraderError(
                f"compute_reward returned {_abbreviate(value)}, not a finite number.",
                "Return a float; raise if the answer cannot be graded.",
            )
        reward = RewardResult(float(value))
    low, high = allowed
    if not low <= reward.value <= high:
        raise GraderError(
            f"compute_reward returned {reward.value:g}, outside of {low:g} … {high:g}.",
            "Clamp it, or declare the range as 'reward_range' of the environment.",
        )
    return reward


async def _call(compute_reward: ComputeReward, item: Any, result: AgentResult, context: ToolContext) -> Any:
    if not inspect.iscoroutinefunction(compute_reward):
        blocking = context.blocking()

        def call() -> Any:
            with GRADER_WATCH.watch(compute_reward):
                return compute_reward(item, result, blocking)

        return await in_own_thread(call)
    if not uses_results_directly(getattr(compute_reward, "__func__", compute_reward)):
        work = compute_reward(item, result, context)
        with GRADER_WATCH.watch(compute_reward, work):
            return await work
    blocking = context.blocking()

    def run() -> Any:
        work = compute_reward(item, result, blocking)
        with GRADER_WATCH.watch(compute_reward, work):
            return asyncio.run(work)

    return await in_own_thread(run)


@cache
def uses_results_directly(function: Callable[..., Any]) -> bool:
    """True if a coroutine uses ToolContext's methods as if they returned their results, and awaits none."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return False
    definition = tree.body[0]
    if not isinstance(definition, ast.AsyncFunctionDef):
        return False
    names = [argument.arg for argument in definition.args.args if argument.arg != "self"]
    context = names[2] if len(names) > 2 else None
    nodes = list(ast.walk(definition))
    awaited = [node.value for node in nodes if isinstance(node, ast.Await)]
    used = [call for node in nodes if isinstance(call := _used_by(node), ast.Call)]
    return any(_is_method_of(context, call) for call in used) and not any(
        _is_method_of(context, call) for call in awaited
    )


def _used_by(node: ast.AST) -> ast.AST | None:
    """The expression whose value a statement or expression uses."""
    match node:
        case ast.Subscript(value=value) | ast.Attribute(value=value) | ast.Assign(value=value):
            return value
        case ast.Expr(value=value) | ast.Return(value=value) | ast.Compare(left=value):
            return value
    return None


def _is_method_of(name: str | None, call: ast.AST) -> bool:
    match call:
        case ast.Call(func=ast.Attribute(value=ast.Name(id=owner))):
            return owner == name
    return False


def _abbreviate(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"
