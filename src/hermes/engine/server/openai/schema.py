"""The JSON of the OpenAI and SGLang requests, as types.

Fields that say how to sample and that the engine does not have are refused unless they ask for nothing, so
that nobody gets an answer sampled otherwise than they asked. All other unknown fields are ignored.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request

from hermes.engine.server.openai.errors import wrong
from hermes.engine.server.responses import read_json

MOST_TOP_LOGPROBS = 20
MOST_CHOICES = 128

_WITHOUT_EFFECT: dict[str, tuple[Any, ...]] = {
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
"""What the engine does not do, with the values that ask for nothing; null is always one."""

Shape = TypeVar("Shape", bound="RequestBody")
TopCount = Annotated[int, Field(ge=0, le=MOST_TOP_LOGPROBS)]


class RequestBody(BaseModel):
    model_config = ConfigDict(extra="allow", protected_namespaces=(), allow_inf_nan=True)

    def check(self) -> None:
        """Problem: it asks for something that is not offered."""
        for name, value in (self.model_extra or {}).items():
            if name in _WITHOUT_EFFECT and value is not None and value not in _WITHOUT_EFFECT[name]:
                raise wrong(f"'{name}' is not offered by this engine: leave it out", name)


class SamplingFields(RequestBody):
    """What all three ask for; null is the default."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES)] | None = None


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


async def read_asked(request: Request, shape: type[Shape]) -> Shape:
    """Problem or Refused: it has another shape, or asks for what is not offered."""
    asked = await read_json(request, shape)
    asked.check()
    return asked
