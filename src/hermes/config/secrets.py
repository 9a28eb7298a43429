"""Which values are secrets, and how a value is shown without them.

Names decide, not the look of values: a variable is a secret if one of the words of its name says so, and the
last word does not say that it only describes one. Too short values are left out of `find`, since hiding them
would hide ordinary words as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from hermes.core import JSON

if TYPE_CHECKING:
    from hermes.config.settings import Settings

MIN_LENGTH = 8
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SECRET_WORDS = frozenset(
    (
        *("KEY", "KEYS", "TOKEN", "SECRET", "SECRETS", "PASSWORD", "PASSWORDS", "PASSWD", "PASSPHRASE"),
        *("PASSCODE", "PASS", "PWD", "PW", "CREDENTIAL", "CREDENTIALS", "CREDS", "CRED", "PAT", "AUTH"),
        *("AUTHORIZATION", "BEARER", "JWT", "DSN", "COOKIE", "COOKIES", "WEBHOOK", "MNEMONIC", "SAS", "HMAC"),
    )
)
_SECRET_ENDINGS = (
    *("KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "CREDENTIALS", "APIKEYS"),
)
"""Endings of a word that make it a secret: PGPASSWORD, GHTOKEN."""
_SECRET_PHRASES = (
    "CONNECTION_STRING",
    "CONNECTIONSTRING",
    "CONN_STR",
    "CONNSTR",
    "SEED_PHRASE",
    "WEBHOOK_URL",
)
_ORDINARY_NAME_WORDS = frozenset(("MONKEY", "TURKEY", "DONKEY", "HOTKEY", "HOCKEY", "JOCKEY", "WHISKEY"))
_DESCRIBING = frozenset(
    (
        *(
            "LIMIT",
            "COUNT",
            "LENGTH",
            "LEN",
            "SIZE",
            "BUDGET",
            "TYPE",
            "MODE",
            "METHOD",
            "ENABLED",
            "DISABLED",
        ),
        *("URL", "URI", "ENDPOINT", "HOST", "PORT", "DOMAIN", "TTL", "EXPIRY", "EXPIRES", "TIMEOUT", "NAME"),
        *("PATH", "FILE", "DIR", "SOCK", "ENV", "LAYOUT", "REPEAT", "DELAY", "MAP", "ALGORITHM", "FORMAT"),
        *("PREFIX", "HEADER", "PROVIDER", "SERVICE", "COLUMN", "RATE", "AGE", "USER", "USERNAME", "EMAIL"),
        *("ROTATION", "VERSION", "POLICY", "PROMPT", "S", "MS", "MIN", "MAX"),
    )
)
"""Last words of names that describe a secret, or say where it is, without being one."""
_ORDINARY_WORDS = frozenset(
    {"anything", "disabled", "not-needed", "optional", "placeholder", "required", "undefined", "whatever"}
)
_URL_PASSWORD = re.compile(r"(://[^/\s:@]*:)([^/\s@]+)(?=@)")
HIDDEN = "(hidden)"


def looks_secret(name: str) -> bool:
    """True for OPENROUTER_API_KEY, github_token, PGPASSWORD, AWS_ACCESS_KEY_ID, dbPassword and their like;
    False for MAX_TOKENS, KEYBOARD_LAYOUT, TOKEN_URL."""
    words = [word.upper() for word in _WORD.findall(name)]
    joined = "_".join(words)
    if joined in ("PWD", "OLDPWD", "OLD_PWD"):  # the shell's directory
        return False
    if any(phrase in joined for phrase in _SECRET_PHRASES):
        return True
    if not words or words[-1] in _DESCRIBING or "PUBLIC" in words:
        return False
    return any(map(_is_secret_word, words))


def _is_secret_word(word: str) -> bool:
    if word in _ORDINARY_NAME_WORDS:
        return False
    return word in _SECRET_WORDS or word.endswith(_SECRET_ENDINGS)


def find(environ: Mapping[str, str], settings: Settings | None = None) -> dict[str, str]:
    """Every secret value by the name of the variable or setting that holds it.

    Variables named by a provider's `key_env` count whatever their names. A value that is the path of
    an existing file (a credentials file) is not itself a secret.
    """
    key_envs = {p.key_env for p in settings.providers.values()} if settings else set()
    secrets: dict[str, str] = {}
    for name, value in environ.items():
        if looks_secret(name) or name in key_envs:
            secrets[name] = value
        elif password := url_password(value):
            secrets[name] = password
    if settings:
        secrets.update(_in_settings(settings))
    return {name: value for name, value in secrets.items() if can_be_secret(value)}


def url_password(value: str) -> str | None:
    """The password inside `scheme://user:password@host`, if there is one."""
    match = _URL_PASSWORD.search(value)
    return unquote(match[2]) if match else None


def hide(key: str, value: JSON, secrets: Iterable[str]) -> JSON:
    """The value as it may be shown: whole, or without the secrets in it."""
    if isinstance(value, dict):
        return {name: hide(name, item, secrets) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [hide(key, item, secrets) for item in value]
    if not isinstance(value, str):
        return value
    visible = _URL_PASSWORD.sub(rf"\1{HIDDEN}", value)
    if looks_secret(key.rpartition(".")[2]) or any(secret in visible for secret in secrets):
        return HIDDEN
    return visible


def _in_settings(settings: Settings) -> dict[str, str]:
    secrets: dict[str, str] = {}
    for name, server in settings.mcp_servers.items():
        for variable, value in server.env.items():
            if looks_secret(variable):
                secrets[f"mcp_servers.{name}.env.{variable}"] = value
    urls = {f"providers.{name}.base_url": p.base_url for name, p in settings.providers.items()}
    urls |= {f"mcp_servers.{name}.url": server.url or "" for name, server in settings.mcp_servers.items()}
    for key, url in urls.items():
        if password := url_password(url):
            secrets[key] = password
    return secrets


def can_be_secret(value: str) -> bool:
    """False for what stands in for a key at servers that need none: a short value, or an ordinary word."""
    return len(value) >= MIN_LENGTH and value.lower() not in _ORDINARY_WORDS and not _is_file(value)


def _is_file(value: str) -> bool:
    if not value.startswith(("/", "~/")):
        return False
    try:
        return Path(value).expanduser().exists()
    except (OSError, RuntimeError, ValueError):  # too long for a name, no home, a NUL: not a path
        return False
