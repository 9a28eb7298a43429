"""The one alias for 'any JSON value'; `Any` is allowed here and nowhere else in core."""

from __future__ import annotations

from typing import Any, TypeAlias

JSON: TypeAlias = Any
JSONObject: TypeAlias = dict[str, Any]
