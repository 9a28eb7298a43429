"""vision_analyze: asks a vision model about one image.

The image is always sent as data, never as an address: a file of the sandbox, a data URL, or an image fetched
here with SSRF protection. Its type is determined from its bytes, not from its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from hermes.core import JSONObject, Message, Role
from hermes.errors import ToolError
from hermes.tools.base import Tool, Workbench, object_schema
from hermes.tools.images import MAX_IMAGE_BYTES, data_url, decode_base64
from hermes.tools.workspace import permit_path

if TYPE_CHECKING:
    from hermes.config.load import Config
    from hermes.config.settings import Settings
    from hermes.models.budget import Budget

FETCH_TIMEOUT_S = 30.0
CALL_TIMEOUT_S = 110.0


async def vision_analyze(arguments: JSONObject, bench: Workbench) -> str:
    from hermes.models.base import ChatRequest
    from hermes.models.open import open_model

    image = data_url(await _load(arguments["image"], bench))
    message = Message(Role.USER, arguments["question"], images=(image,))
    config = cast("Config", bench.resources["config"])
    budget = cast("Budget | None", bench.resources.get("budget"))
    model = open_model(config, bench.settings.media.vision_model, budget=budget)
    try:
        reply = await model.complete(ChatRequest((message,), timeout_s=CALL_TIMEOUT_S))
    finally:
        await model.close()
    return reply.message.content


async def _load(image: str, bench: Workbench) -> bytes:
    if image.startswith("data:"):
        head, _, data = image.partition(",")
        if not head.endswith(";base64"):
            raise ToolError("a data URL of an image must be base64.", kind="bad_arguments")
        return decode_base64(data)
    if image.startswith(("http://", "https://")):
        return await fetch_image(image, bench.settings.web.allow_hosts)
    allowed = await permit_path(bench, image, "read and send to the vision model")
    try:
        return await bench.sandbox.read_file(allowed, MAX_IMAGE_BYTES + 1)
    except OSError as error:
        raise ToolError(f"cannot read '{image}': {error.strerror or type(error).__name__}.") from error


async def fetch_image(url: str, allow_hosts: tuple[str, ...]) -> bytes:
    from hermes.safety.fetch import fetch

    fetched = await fetch(url, allow_hosts=allow_hosts, max_bytes=MAX_IMAGE_BYTES, timeout_s=FETCH_TIMEOUT_S)
    if fetched.status >= 400:
        raise ToolError(f"{url}: the server answered {fetched.status}.")
    return fetched.body


def _unavailable(settings: Settings, environ: Mapping[str, str]) -> str | None:
    if settings.media.vision_model is None:
        return "no vision model is set: hermes config set media.vision_model PROVIDER/NAME"
    return None


TOOLS: tuple[Tool, ...] = (
    Tool(
        name="vision_analyze",
        toolset="vision",
        description="Look at an image and answer a question about it.",
        parameters=object_schema(
            "image",
            "question",
            image={
                "type": "string",
                "description": "Path of an image file, or its http(s) address, or a data URL.",
            },
            question={"type": "string", "description": "What to find out about the image."},
        ),
        handler=vision_analyze,
        stateless=True,
        unavailable=_unavailable,
    ),
)
