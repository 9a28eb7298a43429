"""Detection of unknown secrets, by the names they are assigned to and by the format of the values.

Two layers, each one linear-time RE2 expression. *Names*: a value assigned to something called a key, token,
secret or password (`API_KEY=…`, `"password": "…"`, `--token …`, `Authorization: Bearer …`). *Shapes*: values
with a recognisable format (`ghp_…`, `AKIA…`, a private key's block, a URL with a password).

Placeholders (`your-key`, `${KEY}`, `xxxx`), words and numbers are ignored, since a false positive loses data.
A secret with neither such a name nor such a format is not found; `safety.redact` finds the known values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any


class RedactionLayer(StrEnum):
    NAMES = "names"
    SHAPES = "shapes"


@dataclass(frozen=True, slots=True)
class PatternHit:
    rule: str
    start: int
    """In bytes of the UTF-8 text."""
    end: int


_SHAPES = {
    "anthropic-key": r"\bsk-ant-[A-Za-z0-9_-]{20,}",
    "openai-key": r"\bsk-(?:proj-|svcacct-|admin-|or-v1-)?[A-Za-z0-9_-]{20,}",
    "github-token": r"\b(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{50,})",
    "gitlab-token": r"\bgl(?:pat|ptt|rt|dt|soat|ft)-[A-Za-z0-9_.-]{20,}",
    "aws-key-id": r"\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16}\b",
    "google-key": r"\bAIza[A-Za-z0-9_-]{35}",
    "google-oauth": r"\b(?:ya29\.[A-Za-z0-9_-]{20,}|GOCSPX-[A-Za-z0-9_-]{28})",
    "huggingface-token": r"\bhf_[A-Za-z0-9]{30,}",
    "slack-token": r"\bxox[abeprs]-[A-Za-z0-9-]{10,}",
    "slack-webhook": r"hooks\.slack\.com/services/T[A-Za-z0-9_]+/B[A-Za-z0-9_]+/[A-Za-z0-9_]{20,}",
    "stripe-key": r"\b[rs]k_(?:live|test)_[A-Za-z0-9]{16,}",
    "sendgrid-key": r"\bSG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{32,}",
    "npm-token": r"\bnpm_[A-Za-z0-9]{36}",
    "pypi-token": r"\bpypi-[A-Za-z0-9_-]{50,}",
    "docker-token": r"\bdckr_(?:pat|oat)_[A-Za-z0-9_-]{20,}",
    "digitalocean-token": r"\bdo[opr]_v1_[a-f0-9]{64}",
    "databricks-token": r"\bdapi[a-f0-9]{32}",
    "telegram-token": r"\b[0-9]{8,10}:AA[A-Za-z0-9_-]{33}",
    "discord-token": r"\b[MNO][A-Za-z0-9_-]{23,25}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,}",
    "shopify-token": r"\bshp(?:at|ca|pa|ss)_[a-fA-F0-9]{32}",
    "groq-key": r"\bgsk_[A-Za-z0-9]{40,}",
    "replicate-token": r"\br8_[A-Za-z0-9]{37}",
    "tinker-key": r"\btml-[A-Za-z0-9_-]{20,}",
    "age-key": r"\bAGE-SECRET-KEY-1[A-Z0-9]{58}",
    "jwt": r"\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}",
    "private-key": (
        r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----[A-Za-z0-9+/=\s\\:,()-]{32,}?"
        r"-----END (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----"
    ),
}
_WORDS = (
    r"api[_-]?key|apikey|secret[_-]?key|access[_-]?key|private[_-]?key|encryption[_-]?key|signing[_-]?key"
    r"|auth[_-]?token|access[_-]?token|refresh[_-]?token|bot[_-]?token|token|client[_-]?secret|secret"
    r"|password|passwd|passphrase|pwd|credentials?"
)
_VALUE = r"([A-Za-z0-9_\-+/=.~!@#%^*]{8,512})"
_QUOTE = r"""(?:\\*["'`])"""
_NAMED = rf"(?i)(?:{_WORDS}){_QUOTE}?\s{{0,3}}(?:=>|:=|[=:])\s{{0,3}}{_QUOTE}?{_VALUE}"
_FLAG = rf"(?i)--(?:[a-z]+-)*(?:{_WORDS})[= ]{_QUOTE}?{_VALUE}"
_HEADER = rf"(?i)authorization{_QUOTE}?\s{{0,3}}[:=]\s{{0,3}}{_QUOTE}?(?:bearer|basic|token)\s+{_VALUE}"
_URL = r"[a-z][a-z0-9+.-]{1,20}://[^\s/:@\"'<>]{1,64}:([^\s/@\"'<>]{3,128})@"
_NAMES = {"bearer": _HEADER, "flag": _FLAG, "named": _NAMED, "url-password": _URL}
_ORDINARY = re.compile(
    r"(?i)^[a-z]+(?:[._-][a-z]+)*[._-]?$"  # words
    r"|^[a-z_]+\.[a-z0-9_.]+$"  # attributes
    r"|^[0-9._-]+$|^(?:true|false|null|none)$"
    r"|your|example|placeholder|changeme|change_me|dummy|redacted|xxxx|\*\*\*\*|\.\.\.|<|\$\{|%\("
    r"|^(?:os|process|self|env|config|settings|args|ctx|request|req|this|data|params?|string|str|int|len)[._]"
    r"|\($|\)$|\[$|^0x0+$"
)


def find(text: str, layer: RedactionLayer) -> Iterator[PatternHit]:
    """Every secret-looking value of this layer, left to right."""
    data = text.encode("utf-8", "surrogatepass")
    rules, pattern = _compile(layer)
    for match in pattern.finditer(data):
        index = next(i for i, group in enumerate(match.groups()) if group is not None)
        value = match.group(index + 1).decode("utf-8", "replace")
        if layer is RedactionLayer.SHAPES or _is_secret(rules[index], value):
            yield PatternHit(rules[index], match.start(index + 1), match.end(index + 1))


def may_match(text: str, layer: RedactionLayer) -> bool:
    """False only if `find` finds nothing in the text, nor in any line of it."""
    return _compile(layer)[1].search(text.encode("utf-8", "surrogatepass")) is not None


def _is_secret(rule: str, value: str) -> bool:
    """Whether a named value is a secret, and not a word, a number or a placeholder."""
    if _ORDINARY.search(value):
        return False
    if rule == "url-password":
        return True
    kinds = (
        any(c.islower() for c in value),
        any(c.isupper() for c in value),
        any(c.isdigit() for c in value),
    )
    return sum(kinds) >= 2 and len(set(value)) >= 6


@cache
def _compile(layer: RedactionLayer) -> tuple[list[str], Any]:
    """The rules' names, and one expression with one group per rule around the text to redact."""
    import re2  # type: ignore[import-untyped]

    table = (
        _NAMES if layer is RedactionLayer.NAMES else {name: f"({shape})" for name, shape in _SHAPES.items()}
    )
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1  # bytes, so that lone surrogates are accepted
    options.log_errors = False
    options.max_mem = 1 << 28
    expression = "|".join(f"(?:{pattern})" for pattern in table.values())
    return list(table), re2.compile(expression.encode("latin-1"), options)
