"""vision_analyze and image_generate against real servers on loopback."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from hermes.core import JSON
from hermes.errors import ToolError
from hermes.tools import registry
from hermes.tools.images import MAX_IMAGE_BYTES, media_type
from tests.fakes.provider import FakeProvider, status
from tests.fakes.provider import text as says
from tests.fakes.site import Page, Site
from tests.tools.bench import error, text
from tests.tools.services import open_service_bench


def png() -> bytes:
    """One red pixel."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"\0\xff\0\0")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


PNG = png()
DATA_URL = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
JPEG = b"\xff\xd8\xff\xe0" + bytes(20)


@pytest.fixture
def provider() -> Iterator[FakeProvider]:
    with FakeProvider([says("a red pixel")]) as running:
        yield running


def settings(provider: FakeProvider, **more: JSON) -> dict[str, JSON]:
    return {"providers.eyes.base_url": provider.base_url, "media.vision_model": "eyes/see-1", **more}


def sent(provider: FakeProvider) -> list[JSON]:
    (request,) = provider.requests
    (message,) = request.json["messages"]
    assert request.json["model"] == "see-1"
    return message["content"]


async def test_a_file_of_the_workspace_is_sent_as_data_with_the_question(
    tmp_path: Path, provider: FakeProvider
) -> None:
    async with open_service_bench(tmp_path, settings(provider)) as bench:
        await bench.sandbox.write_file("shots/one.txt", PNG)
        answer = await text(bench, "vision_analyze", image="shots/one.txt", question="What is it?")
    assert answer == "a red pixel"
    parts = {part["type"]: part for part in sent(provider)}
    assert parts["text"]["text"] == "What is it?"
    assert parts["image_url"]["image_url"]["url"] == DATA_URL


async def test_an_address_is_fetched_here_and_sent_as_data(tmp_path: Path, provider: FakeProvider) -> None:
    with Site({"/i": Page(PNG, "text/html")}) as site:
        known = settings(provider, **{"web.allow_hosts": [site.host]})
        async with open_service_bench(tmp_path, known) as bench:
            await text(bench, "vision_analyze", image=site.url("/i"), question="?")
    assert site.paths == ["/i"]
    assert DATA_URL in json.dumps(sent(provider))


async def test_a_data_url_is_sent_by_what_its_bytes_are(tmp_path: Path, provider: FakeProvider) -> None:
    async with open_service_bench(tmp_path, settings(provider)) as bench:
        claimed = DATA_URL.replace("image/png", "text/html")
        await text(bench, "vision_analyze", image=claimed, question="?")
    assert DATA_URL in json.dumps(sent(provider))


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        ("missing.png", "cannot read 'missing.png'"),
        (".", "cannot read"),
        ("note.txt", "not a PNG, JPEG, GIF or WebP"),
        ("large.png", "larger than"),
        ("data:image/png,abc", "must be base64"),
        ("data:image/png;base64,%%%", "not valid base64"),
        ("{site}/private.png", "not a public address"),
    ],
)
async def test_what_is_no_image_never_reaches_the_model(
    tmp_path: Path, provider: FakeProvider, image: str, reason: str
) -> None:
    with Site({"/private.png": Page(PNG, "image/png")}) as site:
        async with open_service_bench(tmp_path, settings(provider)) as bench:
            await bench.sandbox.write_file("note.txt", b"hello")
            await bench.sandbox.write_file("large.png", PNG + bytes(MAX_IMAGE_BYTES))
            _, message = await error(
                bench, "vision_analyze", image=image.format(site=site.url("").rstrip("/")), question="?"
            )
        assert reason in message
        assert (site.requests, provider.requests) == ([], [])


async def test_a_vision_model_that_fails_is_a_failed_tool(tmp_path: Path) -> None:
    with FakeProvider([status(400)]) as provider:
        async with open_service_bench(tmp_path, settings(provider)) as bench:
            kind, message = await error(bench, "vision_analyze", image=DATA_URL, question="?")
    assert kind == "failed" and "400" in message


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (PNG, "image/png"),
        (JPEG, "image/jpeg"),
        (b"GIF89a....", "image/gif"),
        (b"RIFF\x10\0\0\0WEBPVP8 ", "image/webp"),
    ],
)
def test_images_are_known_by_their_first_bytes(data: bytes, kind: str) -> None:
    assert media_type(data) == kind


@pytest.mark.parametrize("data", [b"", b"<svg/>", b"RIFF\x10\0\0\0WAVE", b"\x89PNX\r\n\x1a\n"])
def test_other_bytes_are_no_image(data: bytes) -> None:
    with pytest.raises(ToolError):
        media_type(data)


def drawing(answer: JSON, code: int = 200) -> Site:
    return Site({"/v1/images/generations": Page(json.dumps(answer).encode(), "application/json", code)})


def draw_settings(site: Site, **more: JSON) -> dict[str, JSON]:
    return {
        "providers.brush.base_url": site.url("/v1"),
        "providers.brush.key_env": "BRUSH_API_KEY",
        "media.image_model": "brush/draw-1",
        **more,
    }


KEY = {"BRUSH_API_KEY": "brush-secret-key"}


async def test_a_drawn_image_lies_in_the_workspace(tmp_path: Path) -> None:
    with drawing({"created": 1, "data": [{"b64_json": base64.b64encode(PNG).decode()}]}) as site:
        async with open_service_bench(tmp_path, draw_settings(site), KEY) as bench:
            path = await text(bench, "image_generate", prompt="a pixel", size="64x64")
    assert path.startswith(f"{tmp_path}/workspace/images/") and path.endswith(".png")
    assert Path(path).read_bytes() == PNG
    (request,) = site.requests
    assert json.loads(request.body) == {"model": "draw-1", "prompt": "a pixel", "size": "64x64", "n": 1}
    assert request.headers["authorization"] == "Bearer brush-secret-key"


async def test_an_image_given_by_its_address_is_fetched_from_the_provider(tmp_path: Path) -> None:
    with Site() as site:
        answer = {"created": 1, "data": [{"url": site.url("/made")}]}
        site.pages["/v1/images/generations"] = Page(json.dumps(answer).encode(), "application/json")
        site.pages["/made"] = Page(JPEG, "image/jpeg")
        async with open_service_bench(tmp_path, draw_settings(site), KEY) as bench:
            path = await text(bench, "image_generate", prompt="a pixel")
    assert path.endswith(".jpeg") and Path(path).read_bytes() == JPEG
    assert "size" not in json.loads(site.requests[0].body)


async def test_an_address_elsewhere_on_this_machine_is_refused(tmp_path: Path) -> None:
    with Site({"/made": Page(JPEG, "image/jpeg")}) as other:
        with drawing({"created": 1, "data": [{"url": other.url("/made")}]}) as site:
            async with open_service_bench(tmp_path, draw_settings(site), KEY) as bench:
                kind, _ = await error(bench, "image_generate", prompt="a pixel")
        assert (kind, other.requests) == ("refused", [])


@pytest.mark.parametrize(
    ("answer", "code", "reason"),
    [
        ({"error": {"message": "no such model"}}, 404, "no such model"),
        ({"created": 1, "data": []}, 200, "without an image"),
        ({"created": 1, "data": [{"b64_json": "PHN2Zy8+"}]}, 200, "not a PNG"),
        ("drawn", 200, "did not answer like an image model"),
    ],
)
async def test_an_image_model_that_fails_is_a_failed_tool(
    tmp_path: Path, answer: JSON, code: int, reason: str
) -> None:
    with drawing(answer, code) as site:
        async with open_service_bench(tmp_path, draw_settings(site), KEY) as bench:
            kind, message = await error(bench, "image_generate", prompt="a pixel")
    assert kind == "failed" and reason in message


async def test_without_a_model_the_tools_say_what_to_set(tmp_path: Path) -> None:
    async with open_service_bench(tmp_path) as bench:
        for name, key in (("vision_analyze", "media.vision_model"), ("image_generate", "media.image_model")):
            why = registry.get(name).unavailable(bench.settings, {})
            assert why is not None and f"hermes config set {key}" in why
