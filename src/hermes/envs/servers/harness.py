"""The test harness behind the `testing` setting: responses from a table instead of a server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hermes.envs.servers.slots import AsyncSemWithAdaptiveWeight
from hermes.errors import UsageError

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion
    from openai.types.completion import Completion


class ServerHarness:
    """Returns the responses that a test has set for its prompts; sends no request."""

    server_healthy = True

    def __init__(self) -> None:
        self.response_map: dict[str, Any] = {}
        self.tokens_and_logprobs_map: dict[str, tuple[Any, ...]] = {}
        self.sem = AsyncSemWithAdaptiveWeight(1)
        self.eval_sem = AsyncSemWithAdaptiveWeight(1)

    def conv_to_dictkey(self, input_message: Sequence[dict[str, Any]]) -> str:
        return "\n".join(f"role:{message['role']}\ncontent:{message['content']}" for message in input_message)

    def set_desired_response(
        self, input_message: Sequence[dict[str, Any]], desired_response: ChatCompletion
    ) -> None:
        self.response_map[self.conv_to_dictkey(input_message)] = desired_response

    def set_desired_completion(self, input_message: str, completion: Completion) -> None:
        self.response_map[input_message] = completion

    def set_tokens_and_logprobs_response(
        self,
        prompt: str,
        prompt_tokens: list[int],
        output_tokens_list: list[list[int]],
        output_logprobs_list: list[list[float]],
        finish_reasons: list[str],
    ) -> None:
        self.tokens_and_logprobs_map[prompt] = (
            prompt_tokens,
            output_tokens_list,
            output_logprobs_list,
            finish_reasons,
        )

    async def chat_completion(self, **kwargs: Any) -> ChatCompletion:
        response: ChatCompletion = _look_up(self.response_map, self.conv_to_dictkey(kwargs["messages"]))
        return response

    async def completion(self, **kwargs: Any) -> Completion:
        response: Completion = _look_up(self.response_map, kwargs["prompt"])
        return response

    async def tokens_and_logprobs_completion(self, **kwargs: Any) -> tuple[Any, ...]:
        response: tuple[Any, ...] = _look_up(self.tokens_and_logprobs_map, kwargs["prompt"])
        return response

    async def update_weight(self, weight: float) -> None:
        """Has no effect: there is no concurrency to share."""

    async def wandb_metrics(self, metrics_dict: dict[str, Any], server_name: str) -> dict[str, Any]:
        return metrics_dict

    async def close(self) -> None:
        """Has no effect: there are no connections."""


def _look_up(table: dict[str, Any], prompt: str) -> Any:
    if prompt not in table:
        raise UsageError(f"no response is set for the prompt '{prompt[:200]}'.")
    return table[prompt]
