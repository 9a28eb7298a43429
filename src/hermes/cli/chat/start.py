"""`hermes` without a command: interactive chat, or one question with -q."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from typing import Any

from hermes.cli.chat.options import ChatOptions, apply_template
from hermes.errors import UsageError


def start(**params: Any) -> None:
    from hermes.cli.chat.inputs import compose, read_piped
    from hermes.config.environment import export_stored

    export_stored()
    options = ChatOptions(**params)
    if options.continue_last and options.resume is not None:
        raise UsageError("--continue and --resume exclude each other", "choose one")
    piped = read_piped()
    if options.query is None and sys.stdin.isatty() and not options.template:
        if options.as_json or options.schema:
            flag = "--json" if options.as_json else "--schema"
            raise UsageError(f"{flag} needs a question", f"hermes -q 'your question' {flag}")
        from hermes.cli.chat.repl import run_repl

        asyncio.run(run_repl(options))
        return
    typed = options.query
    if options.template is not None and typed is None and piped:
        typed, piped = piped, ""  # the template's $input
    options = apply_template(replace(options, query=typed))
    question = compose(options.query or "", options.fragments, piped)
    if not question.strip():
        raise UsageError("the question is empty", "hermes -q 'your question'")
    from hermes.cli.chat.query import run_query

    sys.exit(asyncio.run(run_query(question, options)))
