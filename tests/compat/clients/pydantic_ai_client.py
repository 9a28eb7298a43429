"""pydantic-ai: a tool that an agent may call, and a streamed answer. Runs where no Hermes is."""

import asyncio
import importlib.metadata
import sys

from pydantic_ai import Agent
from pydantic_ai.exceptions import UnexpectedModelBehavior, UsageLimitExceeded
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import UsageLimits

url, name = sys.argv[1:3]
model = OpenAIChatModel(name, provider=OpenAIProvider(base_url=url, api_key="none"))
agent = Agent(model, instructions="Answer briefly.", model_settings=ModelSettings(max_tokens=24, seed=1))


@agent.tool_plain
def double(number: int) -> int:
    """Double a number."""
    return 2 * number


async def main() -> None:
    limits = UsageLimits(request_limit=3)
    try:
        result = await agent.run("What is double 4?", usage_limits=limits)
        print("ANSWERED", repr(result.output), result.usage)
    except (UsageLimitExceeded, UnexpectedModelBehavior) as error:
        print("ENDED", type(error).__name__, error)
    plain = Agent(model, model_settings=ModelSettings(max_tokens=16))
    async with plain.run_stream("Say hello.") as stream:
        pieces = [piece async for piece in stream.stream_text(delta=True, debounce_by=None)]
    assert pieces, "nothing was streamed"
    print("STREAMED", len(pieces))


asyncio.run(main())
print("OK", importlib.metadata.version("pydantic-ai-slim"))
