"""Sandboxes: local, bubblewrap, docker, or a plug-in."""

from hermes.sandbox.open import open_sandbox, sandbox_names, unusable_reason

__all__ = ["open_sandbox", "sandbox_names", "unusable_reason"]
