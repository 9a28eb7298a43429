from __future__ import annotations

from pathlib import Path

import pytest

from hermes.config.load import Config, load
from hermes.errors import ConfigError, LimitError, UsageError
from hermes.models.budget import Budget
from hermes.models.open import open_model
from tests.fakes.provider import FakeProvider, text
from tests.models.clients import asking


def config_in(home: Path, yaml: str = "", **environ: str) -> Config:
    home.mkdir(exist_ok=True)
    (home / "config.yaml").write_text(yaml)
    return load(environ={"HERMES_HOME": str(home), **environ})


async def test_a_configured_provider_is_called_with_its_key_price_and_options(tmp_path: Path) -> None:
    with FakeProvider([text("hi")], api_key="sk-lab-123") as provider:
        config = config_in(
            tmp_path,
            f"""
model: lab/some/model
providers:
  lab:
    base_url: {provider.base_url}
    key_env: LAB_API_KEY
    extra_body: {{top_k: 4}}
prices:
  some/model: {{input: 1, output: 2}}
""",
            LAB_API_KEY="sk-lab-123",
        )
        model = open_model(config)
        reply = await model.complete(asking())
        await model.close()
    assert model.name == reply.call.model == "lab/some/model"
    assert reply.call.cost_usd == pytest.approx(20e-6)
    assert provider.requests[0].json["model"] == "some/model"
    assert provider.requests[0].json["top_k"] == 4


@pytest.mark.parametrize(("environ", "cost_usd"), [({}, 0.0), ({"OPENAI_API_KEY": "sk-lab-123"}, None)])
async def test_any_address_can_be_named_instead_of_a_provider(
    tmp_path: Path, environ: dict[str, str], cost_usd: float | None
) -> None:
    """On loopback and without a key it is a model of this machine; a proxy with a key may cost something."""
    with FakeProvider([text("hi")]) as provider:
        model = open_model(config_in(tmp_path, **environ), "qwen3", base_url=provider.base_url)
        reply = await model.complete(asking())
    assert model.name == "custom/qwen3"
    assert reply.call.cost_usd == cost_usd


async def test_the_budget_given_at_opening_is_enforced(tmp_path: Path) -> None:
    with FakeProvider([text("hi")]) as provider:
        model = open_model(config_in(tmp_path), "x", provider.base_url, Budget(max_calls=1))
        await model.complete(asking())
        with pytest.raises(LimitError):
            await model.complete(asking())
        assert len(provider.requests) == 1


async def test_a_model_in_this_process_obeys_the_budget_too(tmp_path: Path) -> None:
    model = open_model(config_in(tmp_path), "hermes/smollm2", budget=Budget(max_calls=0, max_cost_usd=0.01))
    assert model.name == "hermes/smollm2"
    with pytest.raises(LimitError, match="0 model calls"):
        await model.complete(asking())
    await model.close()


def test_what_cannot_be_resolved_is_an_error_before_any_call(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere"):
        open_model(config_in(tmp_path), "nowhere/x")
    with pytest.raises(ConfigError, match="OPENROUTER_API_KEY"):
        open_model(config_in(tmp_path), "openrouter/x")


def test_an_unknown_parser_is_refused_with_the_file_and_the_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.yaml:1:.*got the text 'hermez'") as refused:
        config_in(tmp_path, "providers: {lab: {base_url: 'http://127.0.0.1:9/v1', parser: hermez}}")
    assert "hermes" in refused.value.hint
