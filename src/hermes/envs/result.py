"""The former path of `hermes.envs.agent.result`: environments written for earlier versions import it."""

from hermes.envs.agent.result import AgentResult

__all__ = ["AgentResult"]
