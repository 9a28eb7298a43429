from __future__ import annotations

from email.utils import formatdate

import pytest

from hermes.core import JSON
from hermes.errors import AuthError, ContextOverflowError, ProviderError
from hermes.models.remote.failures import EndpointRef, concerns_model, from_status, retry_after_s

PLACE = EndpointRef("http://127.0.0.1:9/v1", "lab/fake", "LAB_API_KEY")


def failure(status: int, body: JSON = None, headers: dict[str, str] | None = None) -> ProviderError:
    return from_status(status, body, headers or {}, PLACE)


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504, 529])
def test_what_may_pass_is_retryable(status: int) -> None:
    assert failure(status).retryable


@pytest.mark.parametrize("status", [301, 400, 401, 402, 403, 404, 405, 413, 422])
def test_what_would_happen_again_is_not(status: int) -> None:
    assert not failure(status).retryable


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_is_named_by_its_variable(status: int) -> None:
    error = failure(status, {"message": "bad key"})
    assert isinstance(error, AuthError)
    assert "http://127.0.0.1:9/v1" in error.message and "bad key" in error.message
    assert "LAB_API_KEY" in error.hint


@pytest.mark.parametrize("key", ["x", "local", "anything"])
def test_a_word_that_stands_for_a_key_does_not_change_the_message(key: str) -> None:
    endpoint = EndpointRef("http://127.0.0.1:9/v1", "lab/fake", None, key)
    assert (
        "an extra local file, or anything"
        in from_status(500, {"message": "an extra local file, or anything"}, {}, endpoint).message
    )
    hidden = EndpointRef("http://127.0.0.1:9/v1", "lab/fake", None, "sk-0123456789")
    assert "sk-0123" not in from_status(500, {"message": "sk-0123456789 failed"}, {}, hidden).message


def test_an_endpoint_that_wants_a_key_it_was_not_given_says_where_to_name_one() -> None:
    assert "key_env" in from_status(401, None, {}, EndpointRef("http://x/v1", "x/y", None)).hint


@pytest.mark.parametrize(
    "body",
    [
        {"message": "This model's maximum context length is 8192 tokens.", "code": None},
        {"message": "too big", "code": "context_length_exceeded"},
        {"message": "the request exceeds the available context size", "type": "exceed_context_size_error"},
        {"message": "prompt is too long: 250000 tokens > 200000 maximum"},
        {"message": "Please reduce the length of the messages."},
    ],
)
def test_a_conversation_that_is_too_long_is_recognised_by_its_wording(body: JSON) -> None:
    error = failure(400, body)
    assert isinstance(error, ContextOverflowError)
    assert "lab/fake" in error.message


def test_a_rate_limit_on_tokens_is_not_mistaken_for_a_full_context() -> None:
    error = failure(429, {"message": "too many tokens per minute, reduce the length"})
    assert type(error) is ProviderError and error.retryable


@pytest.mark.parametrize(
    ("status", "body"), [(402, {"message": "pay"}), (429, {"message": "x", "code": "insufficient_quota"})]
)
def test_an_exhausted_account_is_not_retried(status: int, body: JSON) -> None:
    error = failure(status, body)
    assert not error.retryable
    assert "credit" in error.hint


def test_a_redirect_names_the_address_to_use() -> None:
    error = failure(308, None, {"location": "https://example.org/v1"})
    assert "https://example.org/v1" in error.message


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"message": "it\n broke"}, "it broke"),
        ({"detail": "not here"}, "not here"),
        ("plain words", "plain words"),
        ("<html><body>Bad gateway</body></html>", "a web page"),
        ({"message": "upstream", "metadata": {"raw": "why"}}, "upstream why"),
        ({"odd": 1}, "{'odd': 1}"),
    ],
)
def test_what_the_server_said_is_quoted_on_one_line(body: JSON, said: str) -> None:
    assert failure(500, body).message == f"http://127.0.0.1:9/v1 answered 500: {said}"


def test_a_long_quotation_is_cut() -> None:
    assert len(failure(500, {"message": "x" * 10_000}).message) < 600


def test_credentials_in_an_address_are_not_shown() -> None:
    error = from_status(500, None, {}, EndpointRef("http://user:secret@host/v1", "lab/fake", None))
    assert "secret" not in error.message and "http://host/v1" in error.message


NOW_S = 1_700_000_000.0


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.25"}, 0.25),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after": formatdate(NOW_S + 30, usegmt=True)}, 30.0),
        ({"retry-after": formatdate(NOW_S - 30, usegmt=True)}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": ""}, None),
        ({}, None),
    ],
)
def test_retry_after_is_read_in_all_its_forms(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after_s(headers, NOW_S) == seconds


def test_a_missing_model_is_told_from_other_refusals() -> None:
    assert concerns_model(failure(404))
    assert concerns_model(failure(400, {"message": "x/y is not a valid model ID"}))
    assert not concerns_model(failure(400, {"message": "temperature is too high"}))
    assert not concerns_model(failure(500, {"message": "unknown model"}))


def test_a_key_that_the_server_repeats_is_not_shown() -> None:
    key = "sk-lab-0123456789abcdef"
    place = EndpointRef("http://127.0.0.1:9/v1", "lab/fake", "LAB_API_KEY", key)
    bodies = ({"message": f"Incorrect API key: {key}."}, {"detail": "x" * 490 + key}, f"{key} is wrong")
    for body in bodies:
        error = from_status(401, body, {}, place)
        assert key[:8] not in f"{error.message} {error.hint} {error!r}"
    assert "[REDACTED:LAB_API_KEY]" in from_status(401, {"message": key}, {}, place).message
    assert key not in repr(place)
