"""image_generate: generates an image with an OpenAI-compatible model and writes it to the workspace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

from hermes.core import JSONObject, new_id
from hermes.errors import ToolError
from hermes.tools.base import Tool, Workbench, object_schema
from hermes.tools.builtin.vision import fetch_image
from hermes.tools.images import decode_base64, media_type
from hermes.tools.workspace import os_errors, permit_path

if TYPE_CHECKING:
    from openai.types import ImagesResponse

    from hermes.config.load import Config
    from hermes.config.providers import ModelTarget
    from hermes.config.settings import Settings

CALL_TIMEOUT_S = 280.0


async def image_generate(arguments: JSONObject, bench: Workbench) -> str:
    from hermes.config.providers import resolve_model

    config = cast("Config", bench.resources["config"])
    target = resolve_model(bench.settings, config.environ, bench.settings.media.image_model or "")
    response = await _draw(target, arguments["prompt"], arguments.get("size"))
    data = await _image_bytes(response, target, bench.settings)
    path = f"images/{new_id()}.{media_type(data).removeprefix('image/')}"
    with os_errors(path):
        await bench.sandbox.write_file(await permit_path(bench, path, "write"), data)
    return f"{bench.sandbox.workspace}/{path}"


async def _draw(target: ModelTarget, prompt: str, size: str | None) -> ImagesResponse:
    from openai import AsyncOpenAI, OpenAIError, omit
    from openai.types import ImagesResponse

    try:
        # The package requires a key, even for a server that needs none.
        async with AsyncOpenAI(
            base_url=target.base_url, api_key=target.api_key or "none", timeout=CALL_TIMEOUT_S, max_retries=2
        ) as client:
            response = await client.images.generate(model=target.model, prompt=prompt, size=size or omit, n=1)
    except (OpenAIError, ValueError) as error:
        raise ToolError(f"{target.base_url}: {type(error).__name__}: {error}") from error
    if not isinstance(response, ImagesResponse):
        raise ToolError(f"{target.base_url} did not answer like an image model.")
    return response


async def _image_bytes(response: ImagesResponse, target: ModelTarget, settings: Settings) -> bytes:
    """Some models return the image, others an address to fetch it from."""
    image = response.data[0] if response.data else None
    if image and image.b64_json:
        return decode_base64(image.b64_json)
    if image and image.url:
        own_host = urlsplit(target.base_url).netloc
        return await fetch_image(image.url, (*settings.web.allow_hosts, own_host))
    raise ToolError("the image model answered without an image.")


def _unavailable(settings: Settings, environ: Mapping[str, str]) -> str | None:
    if settings.media.image_model is None:
        return "no image model is set: hermes config set media.image_model PROVIDER/NAME"
    return None


TOOLS: tuple[Tool, ...] = (
    Tool(
        name="image_generate",
        toolset="image_gen",
        description="Draw an image from a description. Returns the path of the image file.",
        parameters=object_schema(
            "prompt",
            prompt={
                "type": "string",
                "minLength": 1,
                "description": "What the image shows, and its style.",
            },
            size={
                "type": "string",
                "pattern": "^[0-9]{2,4}x[0-9]{2,4}$",
                "description": "Width x height, such as 1024x1024; left out: the model's default.",
            },
        ),
        handler=image_generate,
        unavailable=_unavailable,
        timeout_s=300.0,
    ),
)
