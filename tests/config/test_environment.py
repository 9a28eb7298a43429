"""Stored variables in the environment of a process."""

from __future__ import annotations

import pytest

from hermes.config.environment import export_stored, without_stored
from hermes.config.load import SettingOrigin, load
from hermes.errors import ConfigError
from tests.config.conftest import Home


def test_stored_variables_are_exported_and_those_of_the_process_win(home: Home) -> None:
    environ = home(
        env="WANDB_API_KEY=stored\nHF_TOKEN=stored\nEMPTY=\nMASKED=stored\n", HF_TOKEN="own", MASKED=""
    )
    started_with = dict(environ)
    export_stored(environ)
    assert environ["WANDB_API_KEY"] == "stored"
    assert (environ["HF_TOKEN"], environ["MASKED"]) == ("own", "")
    assert "EMPTY" not in environ
    assert without_stored(environ) == started_with


def test_settings_and_the_home_are_not_exported(home: Home) -> None:
    environ = home(env="HERMES_SANDBOX__BACKEND=local\nHERMES_ENGINE_TOKEN=secret-token\n")
    export_stored(environ)
    assert "HERMES_SANDBOX__BACKEND" not in environ
    assert environ["HERMES_ENGINE_TOKEN"] == "secret-token", "a token that processes read, not a setting"


def test_a_process_that_inherits_exported_variables_reads_the_file_again(home: Home) -> None:
    environ = home(env="KEY_A=old\nKEY_B=old\n")
    export_stored(environ)
    home(env="KEY_A=new\n")
    export_stored(environ)
    assert environ["KEY_A"] == "new" and "KEY_B" not in environ


def test_the_configuration_still_knows_what_comes_from_the_file(home: Home) -> None:
    environ = home(env="OPENROUTER_API_KEY=sk-or-stored\n")
    export_stored(environ)
    config = load(environ=environ)
    assert config.variable_origin("OPENROUTER_API_KEY") is SettingOrigin.DOTENV
    assert config.secrets == {"OPENROUTER_API_KEY": "sk-or-stored"}
    home(env="OPENROUTER_API_KEY=sk-or-changed\n")
    assert load(environ=environ).environ["OPENROUTER_API_KEY"] == "sk-or-changed"


def test_without_a_file_nothing_changes_and_a_broken_one_is_named(home: Home) -> None:
    environ = home(LANG="C")
    export_stored(environ)
    assert environ == home(LANG="C")
    with pytest.raises(ConfigError, match=r"\.env:1: expected NAME=VALUE"):
        export_stored(home(env="not a line\n"))
