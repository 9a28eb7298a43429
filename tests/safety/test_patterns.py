"""Secrets nobody told us about: what is found, and what must be left alone."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes.data.redaction.redact import RedactionLevel, Scrubber
from hermes.safety.patterns import RedactionLayer, find
from hermes.safety.redact import Redactor

ALNUM = "aB3dE5gH7jK9mN1pQ2sT4vW6yZ8"
SHAPED = {
    "anthropic-key": f"sk-ant-api03-{ALNUM}",
    "openai-key": f"sk-proj-{ALNUM}",
    "github-token": f"ghp_{ALNUM}{ALNUM}"[:44],
    "gitlab-token": f"glpat-{ALNUM}",
    "aws-key-id": "AKIAQ3EGRZ7MNBV5C2XD",
    "google-key": "AIza" + (ALNUM * 2)[:35],
    "huggingface-token": f"hf_{ALNUM}{ALNUM}"[:37],
    "slack-token": f"xoxb-123456789012-{ALNUM}",
    "stripe-key": f"sk_live_{ALNUM}",
    "npm-token": "npm_" + (ALNUM * 2)[:36],
    "jwt": f"eyJ{ALNUM}.eyJ{ALNUM}.{ALNUM}",
    "private-key": f"-----BEGIN RSA PRIVATE KEY-----\n{ALNUM}{ALNUM}\n-----END RSA PRIVATE KEY-----",
}
NAMED = [
    ("API_KEY={}", "named"),
    ('"password": "{}"', "named"),
    ("export DB_PASSWORD='{}'", "named"),
    ('{{\\"client_secret\\": \\"{}\\"}}', "named"),
    ("token: {}", "named"),
    ("mytool --api-key {} --verbose", "flag"),
    ("Authorization: Bearer {}", "bearer"),
    ("postgres://admin:{}@db.example.org/x", "url-password"),
]
HARMLESS = [
    "tokens = 1234567890",
    "max_tokens: 4096",
    'primary_key = "user_id"',
    "password = os.environ['DB_PASSWORD']",
    "api_key=your-api-key-here",
    "API_KEY=${API_KEY}",
    'secret = "changeme"',
    "token: string",
    "the password is case-sensitive",
    "secret_key=hashlib.sha256",
    "api_key = settings.api_key",
    "API_KEY=[REDACTED:API_KEY]",
    "password: ********",
    "https://example.org/a:b@c",
    "sha256: 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "sk-learn and ghp_short",
]


@pytest.mark.parametrize("rule", SHAPED)
def test_values_that_say_what_they_are_are_found(rule: str) -> None:
    text = f"before {SHAPED[rule]} after"
    (hit,) = find(text, RedactionLayer.SHAPES)
    assert hit.rule == rule
    assert text.encode()[hit.start : hit.end].decode() == SHAPED[rule]


@pytest.mark.parametrize(("form", "rule"), NAMED)
def test_values_with_a_telling_name_are_found(form: str, rule: str) -> None:
    value = "Zq93kfLs02mXyz"
    text = "é " + form.format(value)
    (hit,) = find(text, RedactionLayer.NAMES)
    assert (hit.rule, text.encode()[hit.start : hit.end].decode()) == (rule, value)


@pytest.mark.parametrize("text", HARMLESS)
def test_words_numbers_and_placeholders_are_left_alone(text: str) -> None:
    assert not [*find(text, RedactionLayer.NAMES), *find(text, RedactionLayer.SHAPES)]


@pytest.mark.parametrize("form", [form for form, _ in NAMED])
def test_redacting_twice_is_redacting_once(form: str) -> None:
    scrubber = Scrubber(Redactor({}), RedactionLevel.SHAPES)
    once = scrubber.text(form.format("Zq93kfLs02mXyz"))
    assert "Zq93kfLs02mXyz" not in once
    assert Scrubber(Redactor({}), RedactionLevel.SHAPES).text(once) == once


@given(st.text(), st.sampled_from(list(SHAPED.values())), st.text())
@settings(deadline=None)
def test_whatever_stands_around_a_secret_stays(before: str, secret: str, after: str) -> None:
    scrubber = Scrubber(Redactor({}), RedactionLevel.SHAPES)
    text = f"{before} {secret} {after}"
    redacted = scrubber.text(text)
    assert secret not in redacted
    assert scrubber.report.hits
    if not list(find(before + after, RedactionLayer.NAMES)):
        assert redacted.startswith(before) or list(find(f"{before} {secret}", RedactionLayer.NAMES))


@given(
    st.dictionaries(st.text(max_size=8), st.sampled_from([*SHAPED.values(), "plain"]) | st.text(), max_size=4)
)
@settings(deadline=None)
def test_json_stays_json_with_the_same_keys(value: dict[str, str]) -> None:
    redacted = Scrubber(Redactor({}), RedactionLevel.SHAPES).json(value)
    assert redacted.keys() == value.keys()
    assert (
        json.loads(Scrubber(Redactor({}), RedactionLevel.SHAPES).text(json.dumps(value))).keys()
        == value.keys()
    )


def test_a_value_is_judged_by_its_key() -> None:
    scrubber = Scrubber(Redactor({}), RedactionLevel.NAMES)
    assert scrubber.json({"db": {"password": "Zq93kfLs02mXyz", "host": "Zq93kfLs02mXyz"}}) == {
        "db": {"password": "[REDACTED:named]", "host": "Zq93kfLs02mXyz"}
    }
    assert scrubber.report.hits == {"names:named": 1}
