"""The module paths that environments of earlier versions import still lead to the same classes."""

from __future__ import annotations

import importlib

import pytest


@pytest.mark.parametrize(
    ("former", "present", "name"),
    [
        ("hermes.envs.agent_env", "hermes.envs.agent.env", "HermesAgentBaseEnv"),
        ("hermes.envs.agent_config", "hermes.envs.agent.config", "HermesAgentEnvConfig"),
        ("hermes.envs.result", "hermes.envs.agent.result", "AgentResult"),
        ("hermes.envs.tool_context", "hermes.envs.agent.tool_context", "ToolContext"),
    ],
)
def test_a_former_path_is_an_alias(former: str, present: str, name: str) -> None:
    assert getattr(importlib.import_module(former), name) is getattr(importlib.import_module(present), name)
