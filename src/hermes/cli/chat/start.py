"""`hermes` without a command: interactive chat, or one question with -q."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from hermes.cli.chat.options import ChatOptions
from hermes.errors import UsageError


def start(**params: Any) -> None:
    from hermes.config.environment import export_stored

    export_stored()
    options = ChatOptions(**params)
    query = options.query
    if query is None and not sys.stdin.isatty():
        query = sys.stdin.read()
    if query is None:
        if options.as_json:
            raise UsageError("--json needs a question", "hermes -q 'your question' --json")
        from hermes.cli.chat.repl import run_repl

        asyncio.run(run_repl(options))
        return
    if not query.strip():
        raise UsageError("the question is empty", "hermes -q 'your question'")
    from hermes.cli.chat.query import run_query

    sys.exit(asyncio.run(run_query(query, options)))
