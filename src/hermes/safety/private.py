"""Files that an agent reads or writes only after a person agreed, even inside the workspace.

They are our own home (settings, keys, confirmed MCP servers, recorded runs), the dotfiles of the user's home,
and files that usually hold credentials, wherever they are. Names decide, of the path with its links resolved:
a credential in a file with an ordinary name is not recognised, nor is a hard link.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_FOLDERS = frozenset((".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".password-store"))
_FILES = re.compile(
    r"\.env(rc)?|\.env\.(?!example$|sample$|template$|dist$|defaults?$).+|[._]netrc|\.pgpass|\.my\.cnf"
    r"|\.git-credentials|\.pypirc|\.dockercfg|\.htpasswd|\.vault-token|\.boto|\.s3cfg"
    r"|id_(rsa|dsa|ecdsa|ed25519)(_sk)?|authorized_keys|mcp_pins\.json"
)
_KEY_FILES = re.compile(r".+\.(pem|key|p12|pfx|jks|keystore|kdbx)")
"""Often a public certificate, so they do not make a whole tree private."""
_FILE_GLOBS = (
    *(".env", ".env.*", ".envrc", ".netrc", "_netrc", ".pgpass", ".my.cnf", ".git-credentials", ".pypirc"),
    *(".dockercfg", ".htpasswd", ".vault-token", ".boto", ".s3cfg", "id_rsa*", "id_dsa*", "id_ecdsa*"),
    *("id_ed25519*", "authorized_keys", "mcp_pins.json", "*.pem", "*.key", "*.p12", "*.pfx", "*.jks"),
    *("*.keystore", "*.kdbx"),
)
"""The same for `find`, which leaves out a few more."""
_MAX_ENTRIES = 50_000


@dataclass(frozen=True, slots=True)
class PrivatePlaces:
    user_home: Path
    hermes_home: Path
    workspaces: Path | None = None
    """Folder in our home with the directories that agents work in."""

    @classmethod
    def of(cls, hermes_home: Path) -> PrivatePlaces:
        """Those of this user, with all links resolved."""
        from hermes.config.paths import workspaces_dir

        return cls(Path.home().resolve(), hermes_home.resolve(), workspaces_dir(hermes_home).resolve())

    @classmethod
    def of_this_user(cls) -> PrivatePlaces:
        from hermes.config.paths import home

        return cls.of(home())

    def reason(self, real: Path, workspace: Path | None = None) -> str | None:
        """Why the path, with its links resolved, is private; None if it is not.

        A dotfolder of the home that the user chose as the workspace is not private for that reason.
        """
        in_workspaces = self._is_workspace(real)
        if real.is_relative_to(self.hermes_home) and not in_workspaces:
            return "it belongs to Hermes"
        chosen = workspace is not None and self._same_dotfolder(real, workspace)
        if self._is_dotfile(real) and not in_workspaces and not chosen:
            return "it is a dotfile of your home"
        if not _FOLDERS.isdisjoint(part.lower() for part in real.parts) or is_credential(real.name):
            return "it usually holds credentials"
        return None

    def within(self, folder: Path) -> bool:
        """Whether a command that reads the folder recursively could read something private.

        True, too, if the folder is too large to tell."""
        if self.user_home.is_relative_to(folder) or self.hermes_home.is_relative_to(folder):
            return True
        for number, entry in enumerate(_entries(folder)):
            name = entry.name.lower()
            if number >= _MAX_ENTRIES or name in _FOLDERS or _FILES.fullmatch(name):
                return True
        return False

    def exclusions(self, root: str, real: Path) -> list[str]:
        """Tests of `find` for what is private below a folder; `root` is the folder as find is given it."""
        if self.reason(real) is not None:
            return []  # a person agreed to this very folder
        tests = [f"-iname {shlex.quote(name)}" for name in (*sorted(_FOLDERS), *_FILE_GLOBS)]
        for folder, below in ((self.user_home, "/.*"), (self.hermes_home, "")):
            if folder.is_relative_to(real):
                path = "/".join(("", *folder.relative_to(real).parts))
                escaped = re.sub(r"([*?\[\\])", r"\\\1", f"{root}{path}")
                tests.append(f"-path {shlex.quote(escaped + below)}")
        return tests

    def _is_dotfile(self, path: Path) -> bool:
        if not path.is_relative_to(self.user_home) or path == self.user_home:
            return False
        return path.relative_to(self.user_home).parts[0].startswith(".")

    def _same_dotfolder(self, path: Path, workspace: Path) -> bool:
        if not workspace.is_relative_to(self.user_home) or workspace == self.user_home:
            return False
        first = workspace.relative_to(self.user_home).parts[0]
        return path.is_relative_to(workspace) and path.is_relative_to(self.user_home / first)

    def _is_workspace(self, path: Path) -> bool:
        folder = self.workspaces
        return folder is not None and path != folder and path.is_relative_to(folder)


def is_imported_from(real: Path) -> bool:
    """Whether this process imports modules from there, so that a file written there would run in it."""
    folders = (sys.prefix, *(entry for entry in sys.path if entry))
    return any(real.is_relative_to(Path(folder).resolve()) for folder in folders)


def is_credential(name: str) -> bool:
    """Whether files of this name usually hold credentials."""
    return bool(_FILES.fullmatch(name.lower()) or _KEY_FILES.fullmatch(name.lower()))


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Everything below the folder; links are not followed, and git's own files are left out."""
    pending = [str(folder)]
    while pending:
        try:
            with os.scandir(pending.pop()) as listing:
                entries = list(listing)
        except OSError:
            continue
        for entry in entries:
            yield entry
            if entry.name != ".git" and entry.is_dir(follow_symlinks=False):
                pending.append(entry.path)
