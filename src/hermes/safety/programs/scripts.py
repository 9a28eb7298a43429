"""Which small programs of awk, sed and jq only compute on their input.

Each of these languages can run commands, read other files or write them. A program is accepted if it consists
of parts that cannot; everything else is unknown. Where implementations read a text differently (a slash in
brackets), it is not accepted.
"""

from __future__ import annotations

import re

_REGEX_BODY = r"(?:[^/\\\n\[]|\\.|\[\^?\]?[^/\]\n\\]*\])*"
_AWK_TOKEN = re.compile(
    rf"""\s+|\#[^\n]*
    |(?P<string>"(?:[^"\\\n]|\\.)*")
    |(?P<regex>/{_REGEX_BODY}/)
    |(?P<word>[A-Za-z_]\w*)
    |(?P<number>\d+(?:\.\d+)?|\.\d+)
    |(?P<operator>&&|\|\||[<>=!+\-*%^]=|\+\+|--|!~|[-+*/%^!~<>=?:,;(){{}}\[\]$])""",
    re.VERBOSE,
)
_AWK_FORBIDDEN = frozenset(
    (
        *("system", "getline", "close", "fflush", "function", "func", "ENVIRON", "PROCINFO", "SYMTAB"),
        *("FUNCTAB", "ARGV", "ARGC", "ARGIND"),
    )
)
_AWK_KEYWORDS = frozenset(
    ("print", "printf", "return", "in", "else", "do", "exit", "next", "delete", "length")
)
_BEFORE_REGEX = frozenset(("", "(", ",", "{", "}", ";", "!", "~", "!~", "&&", "||", "=", "\n", "condition"))
_QUOTED_SLASHES = re.compile(r"/(?:[^/\\\n]|\\.)*[\"#](?:[^/\\\n]|\\.)*/")
"""Between slashes: as an expression it would be one token, as code it would begin a string."""
_SED_ADDRESS = rf"(?:\d+(?:~\d+)?|\$|/{_REGEX_BODY}/I?)"
_SED_SUBSTITUTE = rf"s/{_REGEX_BODY}/(?:[^/\\\n]|\\[^\n])*/[gpiI0-9]*"
_SED_COMMAND = rf"(?:{_SED_ADDRESS}(?:,{_SED_ADDRESS})?\s*!?)?\s*(?:[pdPDq=]|{_SED_SUBSTITUTE})"
_SED_SCRIPT = re.compile(rf"\s*{_SED_COMMAND}\s*(?:[;\n]\s*{_SED_COMMAND}\s*)*;?\s*")
_JQ_FORBIDDEN = re.compile(
    r"\b(env|import|include|modulemeta|get_search_list|input_filename|debug|stderr)\b"
    r"|\$ENV|\$__|\$[A-Z]"
)


def is_plain_awk(program: str) -> bool:
    """True if the program neither starts a command nor opens a file or the environment."""
    previous, at = "", 0
    braces = 0
    parentheses: list[bool] = []  # whether each open one belongs to a condition
    while at < len(program):
        token = _AWK_TOKEN.match(program, at)
        if token is None:
            return False
        text = token[0]
        if text.startswith("/"):
            if previous in _AWK_KEYWORDS or _QUOTED_SLASHES.match(program, at):
                return False  # whether this is an expression or a division decides what follows
            if token.lastgroup == "regex" and previous not in _BEFORE_REGEX:
                text = "/"  # a division
        at += len(text)
        if text.isspace() or text.startswith("#"):
            previous = "\n" if "\n" in text else previous
            continue
        if token.lastgroup == "word" and text in _AWK_FORBIDDEN:
            return False
        if text == "(":
            parentheses.append(previous in ("if", "while", "for"))
        elif text == ")" and parentheses and parentheses.pop():
            text = "condition"
        braces += (text == "{") - (text == "}")
        # Behind print a > opens a file; it compares in a pattern and in a condition.
        if text in (">", ">=") and braces and not any(parentheses):
            return False
        previous = text
    return True


def is_plain_sed(script: str) -> bool:
    """True if the script only prints, deletes and substitutes."""
    return _SED_SCRIPT.fullmatch(script) is not None


def is_plain_jq(program: str) -> bool:
    """True if the filter reads nothing but its input."""
    return _JQ_FORBIDDEN.search(program) is None
