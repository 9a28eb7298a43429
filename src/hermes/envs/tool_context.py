"""The former path of `hermes.envs.agent.tool_context`: environments of earlier versions import it."""

from hermes.envs.agent.tool_context import ToolContext

__all__ = ["ToolContext"]
