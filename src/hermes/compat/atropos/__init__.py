"""`import atroposlib` without atroposlib: its names resolve to Hermes's.

    from hermes.compat import atropos
    atropos.install()
    from atroposlib.envs.base import BaseEnv        # hermes.envs.base.BaseEnv

An installed atroposlib is not used while the shim is installed. `wandb`, which many environment files import
at the top, gets a stand-in that discards everything where it is not installed.
"""

from hermes.compat.atropos.finder import install, uninstall

__all__ = ["install", "uninstall"]
