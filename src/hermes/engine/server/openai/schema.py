"""Request bodies of the OpenAI and SGLang endpoints.

A sampling parameter that the engine does not support is rejected unless its value has no effect, so that a
response is never sampled differently from what the request says. All other unknown fields are ignored.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request

from hermes.engine.server.openai.errors import invalid_request
from hermes.engine.server.responses import read_json

MAX_TOP_LOGPROBS = 20
MAX_CHOICES = 128

_NO_EFFECT: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "chat_template_kwargs": ({},),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none",),
    "functions": ([],),
    "guided_json": (),
    "guided_regex": (),
    "ignore_eos": (False,),
    "include_stop_str_in_output": (False,),
    "json_schema": (),
    "logit_bias": ({},),
    "min_new_tokens": (0,),
    "min_p": (0,),
    "min_tokens": (0,),
    "presence_penalty": (0,),
    "prompt_logprobs": (0, False),
    "regex": (),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
    "top_logprobs_num": (0,),
}
"""Parameters that are not supported, with the values that have no effect; null never has one."""

Body = TypeVar("Body", bound="RequestBody")
TopCount = Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)]


class RequestBody(BaseModel):
    model_config = ConfigDict(extra="allow", protected_namespaces=(), allow_inf_nan=True)

    def check(self) -> None:
        """OpenAIRequestError: it has a parameter that is not supported."""
        for name, value in (self.model_extra or {}).items():
            if name in _NO_EFFECT and value is not None and value not in _NO_EFFECT[name]:
                raise invalid_request(f"'{name}' is not supported by this engine: leave it out", name)


class SamplingFields(RequestBody):
    """Parameters of all three endpoints; null is the default."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None


class StreamOptions(BaseModel):
    include_usage: bool = False


class Completion(SamplingFields):
    model: str
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    seed: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None


class ChatCompletions(Completion):
    messages: list[dict[str, Any]] = Field(min_length=1)
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    max_completion_tokens: Annotated[int, Field(ge=0)] | None = None
    chat_template_kwargs: dict[str, bool | int | float | str] | None = None
    logprobs: bool | None = None
    top_logprobs: TopCount | None = None


class Completions(Completion):
    prompt: str | list[int] | list[str] | list[list[int]]
    logprobs: TopCount | None = None
    echo: bool | None = None


class GenerateParams(SamplingFields):
    max_new_tokens: Annotated[int, Field(ge=0)] | None = None
    sampling_seed: int | None = None
    skip_special_tokens: bool = True


class Generate(RequestBody):
    input_ids: list[int] | list[list[int]] | None = None
    text: str | list[str] | None = None
    sampling_params: GenerateParams | None = None
    return_logprob: bool | None = None
    logprob_start_len: Annotated[int, Field(ge=-1)] | None = None
    stream: bool | None = None
    model: str | None = None
    lora_path: str | None = None


async def read_request(request: Request, schema: type[Body]) -> Body:
    """The validated body.

    RequestError: it does not match the schema. OpenAIRequestError: it has a parameter that is not supported.
    """
    body = await read_json(request, schema)
    body.check()
    return body
