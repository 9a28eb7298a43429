"""`from environments.hermes_base_env import …` for a plain `python my_env.py`: see atroposlib beside this.

Folders `environments` of your own, without an `__init__.py`, stay part of the package.
"""

from pkgutil import extend_path

from hermes.compat import atropos

__path__ = extend_path(__path__, __name__)
atropos.install()
