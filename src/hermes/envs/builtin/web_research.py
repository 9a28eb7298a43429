"""web_research: questions that are answered by one to three pages of a small web.

Teaches research: search, read, follow, answer briefly. The web is an invented encyclopaedia served on this
machine, so that no answer can be memorised beforehand. Graded 0.6 by a judge, 0.2 by the use of search and
pages, 0.2 by the number of turns, and 0 unless the response names the fact and nothing else of its kind.
Without a judge model, word overlap with the right answer is used instead: the part is `word_overlap`, not
`judge`, and `fallback` is 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from hermes.config.load import Config
from hermes.core import Message, Sampling
from hermes.envs.agent.result import AgentResult
from hermes.envs.agent.tool_context import ToolContext
from hermes.envs.builtin.generated import GeneratedEnvConfig, tool_uses
from hermes.envs.builtin.solvable import SolvableEnv, tool_call_turn
from hermes.envs.rewards.combine import Weighted, combine, efficiency, gated, tool_usage
from hermes.envs.rewards.judge import Judge, JudgeRequest, Question, Verdicts
from hermes.envs.rewards.result import RewardResult
from hermes.envs.rewards.text import mentions
from hermes.envs.tasks.corpus.pages import CorpusServer, Lookup, make_lookup
from hermes.envs.tasks.split import Split, draw
from hermes.models.base import ChatModel, ChatRequest
from hermes.models.open import open_model

_TOOLS = ("web_search", "web_extract")
_MAX_WORDS = 40
_RUBRIC = "whether the answer to the question is correct and brief, given the correct answer."


class WebResearchConfig(GeneratedEnvConfig):
    max_agent_turns: int = Field(default=12, ge=8, description="Most model calls of one rollout.")
    max_token_length: int = Field(default=512, description="Longest answer of one call, in tokens.")
    system_prompt: str | None = Field(
        default="Find the answer by searching and reading pages. Then answer in a few words.",
        description="System prompt.",
    )
    judge_model: str | None = Field(default=None, description="The judge, as provider/name; unset: no judge.")
    judge_base_url: str | None = Field(
        default=None, description="The judge's endpoint, if not the provider's."
    )
    judge_cache: Path | None = Field(default=None, description="File that caches the judge's verdicts.")


class WebResearchEnv(SolvableEnv):
    """Questions to be looked up in a small web; graded by a judge, tool use and turns."""

    name = "web_research"
    env_config_cls: ClassVar[Any] = WebResearchConfig
    config: WebResearchConfig
    default_toolsets: ClassVar[Sequence[str]] = ("web",)

    async def setup(self) -> None:
        self._web = CorpusServer()
        self._web.start()
        self._judge_model: ChatModel | None = None
        self._judge = Judge(
            self._judge_request(),
            self.config.judge_model or "none",
            _RUBRIC,
            Verdicts(self.config.judge_cache),
        )
        await super().setup()

    def generate(self, split: Split) -> Iterator[Lookup]:
        return draw(make_lookup, split, self.seed_of(split))

    def format_prompt(self, item: Lookup) -> str:
        return item.question

    def hermes_config(self) -> Config:
        """Search goes to the encyclopaedia, whose host is allowed in addition to the open web."""
        config = super().hermes_config()
        web = config.settings.web.model_copy(
            update={
                "search_backend": "searxng",
                "searxng_url": self._web.url,
                "allow_hosts": (*config.settings.web.allow_hosts, self._web.host),
            }
        )
        return replace(config, settings=config.settings.model_copy(update={"web": web}))

    async def grade(self, item: Lookup, result: AgentResult, ctx: ToolContext) -> RewardResult:
        response = result.final_response
        fact = mentions(response, item.answer, item.distractors, max_words=_MAX_WORDS)
        judged = await self._judge.grade(Question(item.question, item.answer), response)
        by_judge = not judged.parts.get("fallback")
        reward = combine(
            {
                "judge" if by_judge else "word_overlap": Weighted(judged, 0.6),
                "tools": Weighted(tool_usage(tool_uses(result), _TOOLS), 0.2),
                "efficiency": Weighted(self._efficiency(item, result), 0.2),
            }
        )
        extra = {"success": fact.value, "fallback": judged.parts.get("fallback", 0.0)}
        return gated(fact, reward).with_parts(extra)

    def _efficiency(self, item: Lookup, result: AgentResult) -> RewardResult:
        """Free are a search and a page visit for each page of the item, and the answer."""
        free = 2 * len(item.pages) + 1
        return efficiency(result.turns_used, free=free, limit=max(free, self.config.max_agent_turns) + 1)

    def _judge_request(self) -> JudgeRequest | None:
        if self.config.judge_model is None:
            return None
        model = open_model(super().hermes_config(), self.config.judge_model, self.config.judge_base_url)
        self._judge_model = model

        async def request(system: str, user: str) -> str:
            messages = (Message.system(system), Message.user(user))
            reply = await model.complete(ChatRequest(messages, sampling=Sampling(temperature=0.0)))
            return reply.message.content

        return request

    def gold(self, item: Lookup) -> Sequence[Message]:
        steps = []
        for title in item.pages:
            steps.append(tool_call_turn(("web_search", {"query": title})))
            steps.append(tool_call_turn(("web_extract", {"urls": [self._web.page_url(title)]})))
        return [*steps, Message.assistant(item.answer)]

    async def close(self) -> None:
        self._web.stop()
        if self._judge_model is not None:
            await self._judge_model.close()
        await super().close()


if __name__ == "__main__":
    WebResearchEnv.cli()
