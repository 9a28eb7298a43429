"""The former path of `hermes.envs.agent.env`: environments written for earlier versions import it."""

from hermes.envs.agent.env import HermesAgentBaseEnv

__all__ = ["HermesAgentBaseEnv"]
