"""The former path of `hermes.envs.agent.config`: environments written for earlier versions import it."""

from hermes.envs.agent.config import HermesAgentEnvConfig

__all__ = ["HermesAgentEnvConfig"]
