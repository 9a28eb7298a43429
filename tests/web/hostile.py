"""Trajectories that try to run, load or break something in the page that shows them."""

from __future__ import annotations

import base64
from collections.abc import Iterator

from hermes.core import Message, ToolCall

PAYLOADS = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<img src='http://evil.example/a.png'>",
    "<svg onload=alert(1)><script>alert(1)</script></svg>",
    "<svg><foreignObject><iframe src='http://evil.example'></iframe></foreignObject></svg>",
    "<style>body{display:none;background:url(http://evil.example/b)}</style>",
    "<link rel=stylesheet href=http://evil.example/c.css>",
    "<meta http-equiv=refresh content='0;url=http://evil.example'>",
    "<base href='http://evil.example/'>",
    "<iframe srcdoc='<script>parent.alert(1)</script>'></iframe>",
    "<object data='http://evil.example/d'></object><embed src='http://evil.example/e'>",
    "<form action='http://evil.example'><button formaction='javascript:alert(1)'>x</button></form>",
    "<a href='javascript:alert(1)'>click</a>",
    "[link](javascript:alert(1)) ![image](http://evil.example/f.png)",
    '"><script>alert(1)</script>',
    "' onmouseover=alert(1) x='",
    "</pre></div></main></body></html><script>alert(1)</script>",
    "<!-- --><script>alert(1)</script><!--",
    "<![CDATA[<script>alert(1)</script>]]>",
    "{{ 7 * 7 }} {% include 'error.html' %} ${alert(1)}",
    "<div hx-get='http://evil.example' hx-trigger='load' hx-swap='outerHTML'></div>",
    "<div hx-on:load='alert(1)' hx-vals='js:{x: alert(1)}' data-hx-get='/runs'></div>",
    "<template><script>alert(1)</script></template><math><mtext><script>alert(1)</script></mtext></math>",
    "\x1b]8;;http://evil.example\x07click\x1b]8;;\x07 \x1b[31;1mred\x1b[0m \x1b[38;2;1;2;3mrgb\x1b[99999999m",
    "\x1b[<script>alert(1)</script>m \x9b31m \x1b",
    "\x00\x01\x02\x08\x0b\x0c\x7f\x80\x9f\u202e\u2066abc\u2069\u200b\ufeff\U000e0041",
    "\ud800 lone \udfff surrogates",
    "a\r\nb\rc\u2028d\u2029e",
    "[REDACTED:<script>alert(1)</script>] [REDACTED:OPENAI_API_KEY]",
    "e\u0301" * 400 + "\u0489" * 200,
    "\u0627\u0644\u0639\u0631\u0628\u064a\u0629 \U0001f600" * 50,
    "<" * 3000 + "&" * 3000 + "&lt;script&gt;" * 100,
    "\n" * 5000,
    "\t" * 2000 + "x",
    " " * 10_000 + "x",
    "x" * 5_000_000,
    ("y" * 200 + "\n") * 5000,
    "",
    '{"a":' * 3000,
    "null",
)


def conversations() -> Iterator[list[Message]]:
    """Two hundred: each payload in every place where a trajectory has text."""
    svg = base64.b64encode(b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>").decode()
    for payload in PAYLOADS:
        short = payload[:2000]
        call = ToolCall("c1", short[:100] or "x", payload)
        named = ToolCall("c2", "terminal", '{"command": "ls", "<b>x</b>": "y"}')
        broken = ToolCall("c3", "terminal", payload, error=short[:500] or "bad")
        picture = Message(
            Message.user("x").role, "Look", images=(payload[:5000], f"data:image/svg+xml;base64,{svg}")
        )
        yield [Message.system(payload), Message.user(payload), Message.assistant(payload)]
        yield [Message.user("Go"), Message.assistant(payload, reasoning=payload, tool_calls=(call, broken))]
        yield [Message.user("Go"), Message.assistant("", tool_calls=(named,)), Message.tool(named, payload)]
        yield [picture, Message.assistant("Seen", reasoning=payload)]
        yield [Message.user(short), Message.assistant("", tool_calls=(call,)), Message.tool(call, payload)]
