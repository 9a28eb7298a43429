"""Whether reading git commands run nothing and read nothing outside the workspace in a repository.

A repository configures programs that such commands run (`core.fsmonitor`, filters, `textconv`, external
diffs, a hook on a change of the index, programs of a promisor remote) and can point elsewhere
(`core.worktree`, alternates, included configuration). A repository is plain if it is inside the workspace,
its own configuration has only keys that are known to do neither, and it has no such hook, no alternates and
no checked-out repository within. The user's own configuration, in the home, is trusted.

What was committed once can be shown later: `has_committed_credentials` looks for files that usually hold
credentials in the index and in every commit that a branch, a tag, the stash or a reflog reaches. Contents
under ordinary names are not recognised, nor are objects that nothing reaches.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from hermes.safety.private import credential_pathspecs, is_credential, is_in_credential_folder

_TIMEOUT_S = 10.0
_PLAIN_KEYS = re.compile(
    r"core\.(repositoryformatversion|filemode|bare|logallrefupdates|ignorecase|precomposeunicode|symlinks"
    r"|autocrlf|eol|safecrlf|quotepath|abbrev|whitespace|untrackedcache|preloadindex|sharedrepository"
    r"|compression|bigfilethreshold|commentchar)"
    r"|remote\..+\.(url|pushurl|fetch|tagopt|prune|push|mirror|skipdefaultupdate)"
    r"|branch\..+\.(remote|merge|rebase|pushremote|description|vscode-merge-base|gh-merge-base)"
    r"|user\.(name|email|useconfigonly)|init\.defaultbranch|extensions\.objectformat"
    r"|(color|advice|column)\..+|pull\.(rebase|ff)|push\.(default|autosetupremote|followtags)"
    r"|fetch\.(prune|prunetags)|gc\.(auto|autodetach|autopacklimit)|rerere\.(enabled|autoupdate)"
    r"|status\.(showuntrackedfiles|short|branch)|commit\.(gpgsign|verbose)|tag\.(gpgsign|sort)"
    r"|diff\.(renames|renamelimit|algorithm|colormoved|context|mnemonicprefix|noprefix)"
    r"|log\.(date|abbrevcommit|decorate|follow)|lfs\.repositoryformatversion"
)
"""Keys of a repository's own configuration that name no program and no place."""
_ENVIRONMENT = {
    "GIT_CONFIG_COUNT": "2",
    "GIT_CONFIG_KEY_0": "safe.bareRepository",
    "GIT_CONFIG_VALUE_0": "explicit",
    "GIT_CONFIG_KEY_1": "core.fsmonitor",
    "GIT_CONFIG_VALUE_1": "false",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_TERMINAL_PROMPT": "0",
}


def is_plain_repository(directory: str, workspace: str) -> bool:
    """True, too, if there is no repository: git then does nothing."""
    if not Path(directory).is_dir():
        return True
    output = _git(directory, "rev-parse", "--absolute-git-dir", "--git-common-dir", "--show-toplevel")
    if output is None:
        return False
    if not output:
        return _has_no_repository(directory)
    git_folder, common, top = (Path(directory, line).resolve() for line in output.splitlines())
    root = Path(workspace).resolve()
    if not all(path.is_relative_to(root) for path in (git_folder, common, top)):
        return False
    if (common / "objects/info/alternates").exists() or _is_program(common / "hooks/post-index-change"):
        return False
    return _has_plain_configuration(directory) and not _has_inner_repository(top)


def has_committed_credentials(directory: str) -> bool:
    """True, too, if the history is too long to tell."""
    if not Path(directory).is_dir() or _has_no_repository(directory):
        return False
    specs = credential_pathspecs()
    listings = (
        _git(directory, "ls-files", "-z", "--full-name", "--", *specs),
        _git(directory, "log", "--all", "--reflog", "-m", "-z", "--format=", "--name-only", "--", *specs),
    )
    paths = [path.strip() for listing in listings for path in (listing or "").split("\0")]
    return None in listings or any(
        is_credential(path.rpartition("/")[2]) or is_in_credential_folder(path) for path in paths
    )


def _has_no_repository(directory: str) -> bool:
    """Whether no directory above has a `.git` or is one: git failed because there is nothing."""
    return not any((folder / ".git").exists() for folder in (Path(directory), *Path(directory).parents))


def _has_plain_configuration(directory: str) -> bool:
    listing = _git(directory, "config", "--list", "--includes", "--show-scope", "-z")
    if not listing:
        return False
    fields = listing.split("\0")
    for scope, entry in zip(fields[::2], fields[1::2], strict=False):
        key, _, value = entry.partition("\n")
        if scope in ("local", "worktree") and not _PLAIN_KEYS.fullmatch(key.lower()):
            return False
        if key == "core.bare" and scope == "local" and value != "false":
            return False
    return True


def _has_inner_repository(top: Path) -> bool:
    """Whether a submodule is checked out: git would read it, with a configuration of its own."""
    listing = _git(str(top), "ls-files", "--stage", "-z")
    if listing is None:
        return True
    links = (entry.partition("\t")[2] for entry in listing.split("\0") if entry.startswith("160000 "))
    return any((top / path / ".git").exists() for path in links)


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _git(directory: str, *arguments: str) -> str | None:
    """Its output; empty if it fails, None if it cannot be run to its end."""
    environ = {name: os.environ[name] for name in ("PATH", "HOME", "XDG_CONFIG_HOME") if name in os.environ}
    try:
        done = subprocess.run(
            ["git", "-C", directory, *arguments],
            env={**environ, **_ENVIRONMENT},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode("utf-8", "surrogateescape") if done.returncode == 0 else ""
