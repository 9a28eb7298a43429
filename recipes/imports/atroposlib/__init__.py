"""`import atroposlib` for a plain `python my_env.py`: install the folder above, or put it on PYTHONPATH.

Importing it installs the shim of Hermes, which then is the package. See docs/compat.md.
"""

import importlib
import sys

from hermes.compat import atropos

atropos.install()
# The import system takes the module from here when this file has run.
sys.modules.pop(__name__, None)
sys.modules[__name__] = importlib.import_module(__name__)
