"""Identifies image data by its first bytes, never by its name or declared type."""

from __future__ import annotations

import base64
import binascii

from hermes.errors import ToolError

MAX_IMAGE_BYTES = 10_000_000


def media_type(data: bytes) -> str:
    """One of the four types that vision models accept; ToolError for any other."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    raise ToolError("this is not a PNG, JPEG, GIF or WebP image.")


def data_url(data: bytes) -> str:
    if len(data) > MAX_IMAGE_BYTES:
        raise ToolError(f"the image is larger than {MAX_IMAGE_BYTES} bytes.")
    return f"data:{media_type(data)};base64,{base64.b64encode(data).decode('ascii')}"


def decode_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ToolError(f"the image data is not valid base64 ({error}).") from error
