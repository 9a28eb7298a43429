"""`import atroposlib` without atroposlib: its names, answered by Hermes.

    from hermes.compat import atropos
    atropos.install()
    from atroposlib.envs.base import BaseEnv        # hermes.envs.base.BaseEnv

An installed atroposlib is not used while the shim is in place. `wandb`, which half of all environment files
import at their top, gets a silent stand-in where it is not installed.
"""

from hermes.compat.atropos.finder import install, uninstall

__all__ = ["install", "uninstall"]
