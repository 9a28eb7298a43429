"""What counts as a secret, and that none is shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hermes.config.load import load
from hermes.config.secrets import find, looks_secret
from hermes.config.show import entries, setting
from tests.config.conftest import Home


@pytest.mark.parametrize(
    "name",
    [
        "OPENROUTER_API_KEY",
        "GITHUB_TOKEN",
        "github_token",
        "CLIENT_SECRET",
        "PGPASSWORD",
        "DB_PASS",
        "APIKEY",
    ],
)
def test_names_that_end_like_a_key_are_secret(name: str) -> None:
    assert looks_secret(name)
    assert find({name: "0123456789"}) == {name: "0123456789"}


@pytest.mark.parametrize(
    "name",
    ["PATH", "TOKENIZERS_PARALLELISM", "HERMES_LIMITS__MAX_TOKENS", "KEYBOARD", "PWD", "COMPASS", "EDITOR"],
)
def test_ordinary_names_are_not(name: str) -> None:
    assert not looks_secret(name)


def test_values_that_cannot_be_secrets_are_left_out(tmp_path: Path) -> None:
    credentials = tmp_path / "credentials.json"
    credentials.write_text("{}")
    assert find({"A_TOKEN": "short", "B_TOKEN": "true", "C_TOKEN": "Disabled"}) == {}
    assert find({"GOOGLE_CREDENTIALS": str(credentials)}) == {}
    assert find({"B64_SECRET": "/abcdefgh+0123456789"}) == {"B64_SECRET": "/abcdefgh+0123456789"}


def test_passwords_inside_urls_are_secrets() -> None:
    url = "postgres://ada:correct%20horse@db/x"
    assert find({"DATABASE_URL": url}) == {"DATABASE_URL": "correct horse"}
    assert find({"PAGE": "https://host:8443/a@b", "TIME": "12:30:15@noon"}) == {}


SECRETS = ["sk-or-v1-aaaaaaaa", "hunter2hunter2", "ghp_bbbbbbbbbbbb", "lab-access-cccccc"]


def test_no_secret_reaches_what_is_shown(home: Home) -> None:
    config = load(
        environ=home(
            "providers:\n"
            "  lab: {base_url: 'http://ada:hunter2hunter2@lab/v1', key_env: LAB_ACCESS}\n"
            "mcp_servers:\n"
            "  hub: {command: hub, args: [ghp_bbbbbbbbbbbb], env: {GH_TOKEN: ghp_bbbbbbbbbbbb, LANG: C}}\n"
            "system_prompt: use sk-or-v1-aaaaaaaa\n",
            "OPENROUTER_API_KEY=sk-or-v1-aaaaaaaa\nLAB_ACCESS=lab-access-cccccc\nNOTE=x\n",
        )
    )
    assert sorted(config.secrets.values()) == sorted(SECRETS)
    shown = json.dumps([(entry.key, entry.text, entry.to_json()) for entry in entries(config)])
    for key in (
        "mcp_servers",
        "mcp_servers.hub",
        "mcp_servers.hub.env.GH_TOKEN",
        "providers",
        "system_prompt",
    ):
        shown += json.dumps(setting(config, key))
    for secret in SECRETS:
        for length in range(6, len(secret) + 1):
            assert secret[-length:] not in shown
    assert "http://ada:(hidden)@lab/v1" in shown
    by_key = {entry.key: entry for entry in entries(config)}
    assert by_key["OPENROUTER_API_KEY"].text == "set (from .env)"
    assert by_key["LAB_ACCESS"].text == "set (from .env)"
    assert by_key["NOTE"].text == "set (from .env)"
    assert by_key["OPENAI_API_KEY"].text == "unset"
    assert by_key["mcp_servers.hub.env.LANG"].value == "C"
