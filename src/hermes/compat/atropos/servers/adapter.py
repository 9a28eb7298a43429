"""A managed server in the shape of an AsyncOpenAI client, for libraries that want one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hermes.compat.atropos.servers.managed import ManagedServer


class ManagedServerAdapter:
    """Offers `chat.completions.create`, `completions.create` and `base_url`."""

    def __init__(self, managed_server: ManagedServer, base_url: str) -> None:
        self.base_url = base_url
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=managed_server.chat_completion))
        self.completions = SimpleNamespace(create=managed_server.completion)

    async def post(self, path: str, body: dict[str, Any], cast_to: type) -> Any:
        raise NotImplementedError(f"a managed server cannot post to '{path}'; use chat completions.")

    def copy(self, **kwargs: Any) -> ManagedServerAdapter:
        raise NotImplementedError("a managed server's client cannot be copied.")
