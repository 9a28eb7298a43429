"""Where commands run: local, bubblewrap, docker, or a plug-in."""

from hermes.sandbox.open import open_sandbox, sandbox_names, usable

__all__ = ["open_sandbox", "sandbox_names", "usable"]
