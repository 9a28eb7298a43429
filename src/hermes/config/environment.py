"""The variables stored in `.env`, given to the libraries of this process through its environment.

Our own code reads `Config.environ`. Libraries (W&B, the hub's client, an environment file) read
`os.environ`, so each process that runs one calls `export_stored` when it starts. A variable that the process
was started with wins, also an empty one.

The exported names are listed in a variable of their own. A process that inherits them reads `.env` again
instead of keeping values that may have changed since, and what must not have them (a sandbox, a supervisor)
is started with `without_stored`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping

from hermes.config import env_file, paths
from hermes.config.secrets import looks_secret
from hermes.disk.files import read_text

PREFIX = "HERMES_"
_EXPORTED = "_HERMES_EXPORTED"
"""Lists the names that `export_stored` has set; not named like a setting."""
RL_RUN_VARIABLE = "_HERMES_RL_RUN"
"""Holds the id of the RL run whose environment a process is: its rollouts are recorded under that id."""
RL_POLICY_VARIABLE = "_HERMES_RL_POLICY"
"""Holds the name of the policy that rollouts of a run, or its evaluation, ask: `RUN@newest`, `RUN@step-7`."""
ENV_REPLICA_VARIABLE = "_HERMES_ENV_REPLICA"
"""Which of several equal environment processes a process is: "2/8" is the second of eight."""


def export_stored(environ: MutableMapping[str, str] | None = None) -> None:
    """Sets the variables of `.env` that the process was not started with; to be called before libraries load.

    Settings (HERMES_SANDBOX__BACKEND and its like) are left out: `config.load` reads them. ConfigError names
    the line of a file that cannot be read.
    """
    environ = os.environ if environ is None else environ
    inherited = without_stored(environ)
    path = paths.env_path(paths.home(inherited))
    stored = env_file.parse(read_text(path) or "", str(path))
    for name in environ.keys() - inherited.keys():
        del environ[name]
    added = {
        name: value
        for name, value in stored.items()
        if value and name not in inherited and name != paths.HOME_VARIABLE and not is_setting_name(name)
    }
    if added:
        environ.update(added)
        environ[_EXPORTED] = " ".join(added)


def without_stored(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment less what `export_stored` has added to it."""
    added = {_EXPORTED, *environ.get(_EXPORTED, "").split()}
    return {name: value for name, value in environ.items() if name not in added}


def is_setting_name(variable: str) -> bool:
    """True for HERMES_ variables that should name a setting."""
    return variable.startswith(PREFIX) and variable != paths.HOME_VARIABLE and not looks_secret(variable)
