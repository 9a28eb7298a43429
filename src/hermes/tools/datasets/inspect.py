"""dataset_inspect: a dataset's splits, columns, sizes and first rows, on the hub or in files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from hermes.core import JSONObject, ToolErrorKind
from hermes.errors import ToolError
from hermes.tools.base import Tool, Workbench, object_schema
from hermes.tools.datasets.view import to_text

_ROWS = 3
_MAX_ROWS = 20


async def _dataset_inspect(arguments: JSONObject, bench: Workbench) -> str:
    split, offset = arguments.get("split"), arguments.get("offset", 0)
    limit = arguments.get("rows", _ROWS)
    if ("dataset" in arguments) == ("path" in arguments):
        raise ToolError(
            "give either dataset (a name on the hub) or path (a file of the workspace)",
            kind=ToolErrorKind.BAD_ARGUMENTS,
        )
    if "path" in arguments:
        from hermes.tools.datasets.files import inspect_file

        if "config" in arguments:
            raise ToolError("files have splits, but no config", kind=ToolErrorKind.BAD_ARGUMENTS)
        return to_text(await inspect_file(bench, arguments["path"], split, offset, limit))
    from hermes.tools.datasets.hub import DatasetHub

    hub = DatasetHub(bench.settings, cast("Mapping[str, str]", bench.resources["environ"]))
    return to_text(await hub.inspect(arguments["dataset"], arguments.get("config"), split, offset, limit))


TOOLS = (
    Tool(
        name="dataset_inspect",
        toolset="datasets",
        description=(
            "Look at a dataset without downloading it: licence, configurations and splits with their sizes, "
            "the columns with their types, and a few rows. Returns a JSON object; long values are clipped."
        ),
        parameters=object_schema(
            dataset={
                "type": "string",
                "minLength": 1,
                "description": "Name on the Hugging Face hub, such as openai/gsm8k.",
            },
            path={
                "type": "string",
                "minLength": 1,
                "description": "Instead: a .jsonl, .json, .csv, .parquet or .arrow file.",
            },
            config={
                "type": "string",
                "description": "Configuration (subset); the default one if unset.",
            },
            split={"type": "string", "description": "Such as train or test; train if unset."},
            offset={"type": "integer", "minimum": 0, "description": "First row to show; 0 if unset."},
            rows={
                "type": "integer",
                "minimum": 0,
                "maximum": _MAX_ROWS,
                "description": f"Number of rows to show; {_ROWS} if unset.",
            },
        ),
        handler=_dataset_inspect,
        stateless=True,
    ),
)
