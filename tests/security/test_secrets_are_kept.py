"""Known secrets reach no file, page, table or log, however a tool prints them."""

from __future__ import annotations

import base64
import html
import json
import os
import stat
import textwrap
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes.config.secrets import find, looks_secret
from hermes.core import (
    Header,
    Message,
    Outcome,
    Source,
    Step,
    StepKind,
    StopReason,
    ToolCall,
    ToolResult,
    new_id,
)
from hermes.envs.config import BaseEnvConfig
from hermes.envs.groups import GroupWriter
from hermes.envs.modes import metrics, redaction
from hermes.envs.modes.evaluate import evaluate_log
from hermes.envs.modes.process import generate_html
from hermes.safety.redact import Redactor
from hermes.store import Writer
from tests.cli.process import hermes
from tests.fakes.provider import FakeProvider, text

SECRET = "s3cr3t/Of+the_kiln-0451"

_SECRET_NAMES = """
OPENROUTER_API_KEY OPENAI_API_KEY ANTHROPIC_API_KEY HF_TOKEN GITHUB_TOKEN GITHUB_PAT GH_TOKEN GITLAB_TOKEN
AWS_SECRET_ACCESS_KEY AWS_ACCESS_KEY_ID AWS_SESSION_TOKEN AZURE_CLIENT_SECRET AZURE_STORAGE_CONNECTION_STRING
AZURE_STORAGE_SAS_TOKEN GOOGLE_API_KEY WANDB_API_KEY TINKER_API_KEY HERMES_ENGINE_TOKEN DB_PASSWORD DB_PASS
DB_PWD PGPASSWORD MYSQL_ROOT_PASSWORD MYSQL_PWD REDIS_PASSWORD REDIS_AUTH MONGO_INITDB_ROOT_PASSWORD
DJANGO_SECRET_KEY SECRET_KEY_BASE JWT_SECRET JWT SESSION_SECRET COOKIE_SECRET NPM_TOKEN NPM_AUTH_TOKEN
PYPI_TOKEN TWINE_PASSWORD DOCKER_PASSWORD DOCKER_AUTH_CONFIG SLACK_BOT_TOKEN SLACK_WEBHOOK_URL
SLACK_SIGNING_SECRET DISCORD_TOKEN TELEGRAM_BOT_TOKEN TWILIO_AUTH_TOKEN SENDGRID_API_KEY STRIPE_SECRET_KEY
STRIPE_WEBHOOK_SECRET SENTRY_DSN SENTRY_AUTH_TOKEN SSH_PRIVATE_KEY SSH_KEY_PASSPHRASE GPG_PASSPHRASE
ENCRYPTION_KEY MASTER_KEY VAULT_TOKEN CONSUL_HTTP_TOKEN CLOUDFLARE_API_TOKEN DIGITALOCEAN_ACCESS_TOKEN
HEROKU_API_KEY ALGOLIA_ADMIN_KEY PASSWORD_HASH SECRET_V2 API_KEY_PROD TOKEN_GITHUB APIKEY dbPassword
accessToken clientSecret X_API_KEY_2 BASIC_AUTH HTTP_AUTHORIZATION WALLET_MNEMONIC KAGGLE_KEY github_token
CREDENTIALS_JSON
"""
SECRET_NAMES = _SECRET_NAMES.split()
_ORDINARY_NAMES = """
TOKENIZERS_PARALLELISM KEYBOARD_LAYOUT MAX_TOKENS MAX_TOKEN_LENGTH NUM_TOKENS TOKEN_LIMIT KEYTIMEOUT MONKEY
TURKEY PASSENGER_COUNT COMPASS_MODE BYPASS_PROXY SSH_AUTH_SOCK GIT_AUTHOR_NAME GIT_AUTHOR_EMAIL XAUTHORITY PWD
OLDPWD PATH PYTHONPATH HOME LANG TERM SHELL USER DBUS_SESSION_BUS_ADDRESS SSH_PUBLIC_KEY STRIPE_PUBLIC_KEY
TOKEN_URL AUTH_URL AUTH_TYPE KEY_FILE SECRET_NAME PASSWORD_FILE TOKEN_TTL_S XKB_KEYMAP KEYCLOAK_HOST SECRETARY
AUTHOR KEYWORDS HOTKEY key_env max_tokens COOKIE_DOMAIN PATIENCE PATTERN EDITOR HISTFILE COLORTERM
"""
ORDINARY_NAMES = _ORDINARY_NAMES.split()


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_common_names_of_secrets_are_recognised(name: str) -> None:
    assert looks_secret(name) and find({name: SECRET}) == {name: SECRET}


@pytest.mark.parametrize("name", ORDINARY_NAMES)
def test_common_names_of_other_variables_are_not(name: str) -> None:
    assert not looks_secret(name)


def _coloured(text: str) -> str:
    return text[:5] + "\x1b[01;31m\x1b[K" + text[5:9] + "\x1b[m\x1b[K" + text[9:]


PRINTED = {
    "hex with spaces": lambda s: s.encode().hex(" "),
    "hex with colons": lambda s: s.encode().hex(":").upper(),
    "hex in pairs": lambda s: s.encode().hex(" ", 2),
    "hex as a list": lambda s: ", ".join(f"0x{byte:02x}" for byte in s.encode()),
    "escaped bytes": lambda s: "".join(f"\\x{byte:02x}" for byte in s.encode()),
    "octal": lambda s: "".join(f"\\{byte:03o}" for byte in s.encode()),
    "base32": lambda s: base64.b32encode(s.encode()).decode(),
    "base32 inside": lambda s: base64.b32encode(f"key={s}!".encode()).decode().lower(),
    "HTML": html.escape,
    "HTML numbers": lambda s: "".join(f"&#{ord(char)};" for char in s),
    "HTML hex": lambda s: "".join(f"&#x{ord(char):X};" for char in s),
    "wrapped": lambda s: "\n".join(textwrap.wrap(s, 10, break_on_hyphens=False)),
    "wrapped and indented": lambda s: "\n    ".join(s[i : i + 7] for i in range(0, len(s), 7)),
    "continued": lambda s: f"{s[:8]}\\\n{s[8:]}",
    "coloured": _coloured,
}


@pytest.mark.parametrize("printed", PRINTED)
@settings(max_examples=25)
@given(
    secret=st.text(st.characters(codec="ascii", categories=["L", "N", "P", "S"]), min_size=10, max_size=40),
    before=st.sampled_from(["", "key=", "\n", "(", "a b "]),
    after=st.sampled_from(["", "\n", ")", " end"]),
)
def test_a_secret_is_found_as_tools_print_it(printed: str, secret: str, before: str, after: str) -> None:
    output = f"{before}{PRINTED[printed](secret)}{after}"
    redactor = Redactor({"THE_KEY": secret})
    assert "[REDACTED:THE_KEY]" in redactor.text(output)
    assert "[REDACTED:THE_KEY]" in redactor.text(json.dumps({"output": output}))


def test_what_is_stored_about_a_step_has_no_secret_in_any_column(tmp_path: Path) -> None:
    header = Header(
        new_id(), Source.CHAT, "m", 1, tools=(f"tool_{SECRET}",), config={"a": SECRET}, metadata={"b": SECRET}
    )
    result = ToolResult("c", f"run_{SECRET}", ok=True, duration_ms=1.0, saved_path=f"x/{SECRET}")
    message = Message.tool(ToolCall("c", f"run_{SECRET}", "{}"), f"out {SECRET}")
    with Writer(tmp_path / "db", Redactor({"K": SECRET}).text) as writer:
        writer.begin(header).result()
        writer.append(header.id, Step(0, StepKind.TOOL, message, 1, result=result)).result()
        writer.finish(header.id, Outcome(StopReason.COMPLETED, detail=SECRET)).result()
    for file in tmp_path.iterdir():
        assert SECRET.encode() not in file.read_bytes(), file.name


class _Bytes:
    """A tokenizer whose ids are bytes."""

    @staticmethod
    def decode(ids: Any) -> str:
        return bytes(ids).decode()


@pytest.fixture
def kiln_key(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("KILN_API_KEY", SECRET)
    redaction.process_redactor.cache_clear()
    yield SECRET
    redaction.process_redactor.cache_clear()


def test_groups_and_their_page_hold_no_secret_and_are_private(tmp_path: Path, kiln_key: str) -> None:
    texts = ["harmless", f"the key is {kiln_key}"]
    group = {
        "tokens": [list(text.encode()) for text in texts],
        "masks": [list(text.encode()) for text in texts],
        "inference_logprobs": [[0.0] * len(text) for text in texts],
        "scores": [0.0, 1.0],
        "messages": [[{"role": "assistant", "content": text}] for text in texts],
        "overrides": None,
    }
    os.umask(0o022)
    clean = redaction.clean_group(group, _Bytes.decode)
    assert (clean["tokens"][0], clean["tokens"][1], clean["masks"][1]) == (group["tokens"][0], [], [])
    assert clean["tokens_withheld"] == [1] and clean["scores"] == [0.0, 1.0]
    only_tokens = redaction.clean_group({**group, "messages": None}, _Bytes.decode)
    assert only_tokens["tokens"][1] == [] and only_tokens["inference_logprobs"][1] == []
    writer = GroupWriter(tmp_path / "groups.jsonl")
    writer.write(clean)
    writer.close()
    page = generate_html(writer.path)
    for file in (writer.path, page):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert kiln_key not in file.read_text() and "REDACTED:KILN_API_KEY" in file.read_text()
    assert json.dumps(group["tokens"][1])[1:-1] not in writer.path.read_text()


def test_samples_of_an_evaluation_hold_no_secret_and_are_private(tmp_path: Path, kiln_key: str) -> None:
    evaluate_log(
        {"score": 1.0}, str(tmp_path), "t", samples=[{"answer": kiln_key, "score": 1}], verbose=False
    )
    for name in ("samples.jsonl", "metrics.json"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    assert "[REDACTED:KILN_API_KEY]" in (tmp_path / "samples.jsonl").read_text()


def test_tables_for_wandb_hold_no_secret(kiln_key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    table = metrics.rollout_table(BaseEnvConfig(), [[(f"key {kiln_key}", 1.0)]])
    assert table.data == [["key [REDACTED:KILN_API_KEY]", 1.0]]


def test_a_stored_key_in_an_answer_reaches_no_file_of_hermes_env_process(tmp_path: Path) -> None:
    home, output = tmp_path / "home", tmp_path / "out/groups.jsonl"
    home.mkdir()
    (home / ".env").write_text(f"KILN_API_KEY={SECRET}\n")
    with FakeProvider(
        lambda body: text(f"The key is {SECRET}, in hex {SECRET.encode().hex(':')}.")
    ) as provider:
        server = ("--openai.base_url", provider.base_url, "--openai.server_type", "openai")
        run = ("--env.group_size", "2", "--env.total_steps", "1", "--env.use_wandb", "false")
        done = hermes(
            home,
            *("env", "process", "calculator", *server, "--openai.model_name", "m", *run),
            *("--env.tokenizer_name", "no/such-tokenizer", "--env.data_path_to_save_groups", str(output)),
            *("--env.ensure_scores_are_not_same", "false"),
            env={"HF_HUB_OFFLINE": "1"},
        )
    assert done.returncode == 0, done.stderr
    for file in (output, output.with_suffix(".html")):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        written = file.read_text()
        assert SECRET not in written and SECRET.encode().hex(":") not in written
        assert "[REDACTED:KILN_API_KEY]" in written
    (group,) = [json.loads(line) for line in output.read_text().splitlines()]
    assert group["tokens_withheld"] == [0, 1]
