"""Command lines for bubblewrap, as pure functions.

Two sandboxes nest. The *outer* one is created once: the visible part of the host's files, the workspace, a
temporary directory and, unless it shares the host's, a private network; the keeper runs in it. Each *command*
gets its own namespaces for processes, users, IPC and mounts inside the outer one. So commands share files and
loopback servers, and each can be ended completely by ending its first process.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from hermes.sandbox.guards.bare_python import bare_python
from hermes.sandbox.workspace import INNER_ID, WORKSPACE, Mount

HOSTNAME = "sandbox"
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ETC_DIRECTORIES = ("/etc/alternatives", "/etc/ssl/certs", "/etc/pki/ca-trust", "/etc/pki/tls/certs")
_ETC_FILES = (
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/nsswitch.conf",
    "/etc/os-release",
    "/etc/protocols",
    "/etc/services",
    "/etc/ssl/openssl.cnf",
)
_HOST_NETWORK_FILES = ("/etc/hosts", "/etc/resolv.conf")
_SYNTHETIC_FILES = {
    "/etc/group": f"agent:x:{INNER_ID}:\nnogroup:x:65534:\n",
    "/etc/hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "/etc/passwd": f"agent:x:{INNER_ID}:{INNER_ID}::{WORKSPACE}:/bin/sh\nnobody:x:65534:65534::/:\n",
}


@dataclass(frozen=True, slots=True)
class MountLayout:
    """The part of the host's files that commands can see, besides the workspace."""

    binds: tuple[str, ...]
    """Files and directories, read-only, under the same name."""
    links: tuple[tuple[str, str], ...]
    """Symbolic links: path and target."""
    files: Mapping[str, bytes]
    """Small files that are synthetic, or copied because each bind mount slows down every command."""
    path: str
    """The PATH of the visible programs."""
    hidden: tuple[str, ...] = ()
    """Directories under the binds that are covered with an empty one."""


@dataclass(frozen=True, slots=True)
class Bwrap:
    """The installed bubblewrap."""

    program: str
    features: frozenset[str]
    """The options it supports."""

    def if_supported(self, *option: str) -> tuple[str, ...]:
        return option if option[0] in self.features else ()


def host_layout(
    *, shares_network: bool, resolver: str | None = None, shown_paths: Sequence[str] = ()
) -> MountLayout:
    """The system's programs and libraries, a bare Python, and the harmless part of /etc.

    `resolver` is the address of the name server, if the sandbox has a network of its own with one.
    `shown_paths` are further files and directories; what is hidden stays hidden, unless it is one of them.
    """
    build = _host_layout.__wrapped__ if shares_network else _host_layout  # the host's network may change
    return build(shares_network, resolver, tuple(shown_paths))


@cache
def _host_layout(shares_network: bool, resolver: str | None, shown_paths: tuple[str, ...]) -> MountLayout:
    system = [Path(path) for path in _SYSTEM]
    links = [(str(path), str(path.readlink())) for path in system if path.is_symlink()]
    binds = [str(path) for path in system if path.is_dir() and not path.is_symlink()]
    binds += [path for path in _ETC_DIRECTORIES if Path(path).is_dir()]
    python = bare_python()
    binds += python.binds
    hidden = tuple(path for path in python.hidden if any(Path(path).is_relative_to(bind) for bind in binds))
    binds += [path for path in shown_paths if not any(Path(path).is_relative_to(bind) for bind in binds)]
    programs = [python.programs] if python.programs else []
    path = ":".join(
        [*programs, "/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin"]
    )
    files = {path: text.encode() for path, text in _SYNTHETIC_FILES.items()}
    if resolver is not None:
        files["/etc/resolv.conf"] = f"nameserver {resolver}\n".encode()
    for name in (*_ETC_FILES, *(_HOST_NETWORK_FILES if shares_network else ())):
        if Path(name).is_file():
            files[name] = Path(name).read_bytes()
    return MountLayout(tuple(binds), tuple(links), files, path, hidden)


def library_argv(bwrap: Bwrap, paths: Sequence[Path]) -> list[str]:
    """A command prefix for a program that calculates: it sees the system's libraries and these paths.

    No network, no other processes, nothing to write but an empty /tmp. It does not end with its parent, whose
    thread may end earlier.
    """
    system = [Path(path) for path in _SYSTEM]
    argv = [bwrap.program, "--unshare-all", "--unshare-user", "--new-session"]
    argv += ["--perms", "1777", *bwrap.if_supported("--size", str(1 << 20)), "--tmpfs", "/tmp"]
    for path in system:
        if path.is_symlink():
            argv += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            argv += ["--ro-bind", str(path), str(path)]
    for path in dict.fromkeys(paths):
        argv += ["--ro-bind", str(path), str(path)]
    return [*argv, "--proc", "/proc", "--dev", "/dev", "--remount-ro", "/", "--"]


def outer_argv(
    bwrap: Bwrap,
    layout: MountLayout,
    workspace: Path,
    *,
    shares_network: bool,
    tmp_bytes: int,
    files: Mapping[str, int],
    drop_to: tuple[int, int] | None,
    mounts: Sequence[Mount] = (),
) -> list[str]:
    """A command prefix that creates the outer sandbox. `files` are the layout's, as open descriptors.

    `drop_to` is the user and group to switch to, if Hermes is root and the workspace is not root's. Then root
    creates the mounts, since only root can access all of them, and the sandbox is entered as that user.
    """
    namespaces = [
        "--unshare-user",
        "--uid",
        str(INNER_ID),
        "--gid",
        str(INNER_ID),
        "--unshare-ipc",
        "--unshare-uts",
    ]
    namespaces += [] if shares_network else ["--unshare-net"]
    tree = _mounts(bwrap, layout, workspace, tmp_bytes, files, mounts)
    start = [bwrap.program, "--die-with-parent"]
    if drop_to is None:
        return [*start, *namespaces, *tree, "--"]
    user, group = map(str, drop_to)
    setpriv = ["/usr/bin/setpriv", "--reuid", user, "--regid", group, "--clear-groups", "--"]
    return [*start, *tree, "--", *setpriv, *start, *namespaces, "--dev-bind", "/", "/", "--"]


def _mounts(
    bwrap: Bwrap,
    layout: MountLayout,
    workspace: Path,
    tmp_bytes: int,
    files: Mapping[str, int],
    mounts: Sequence[Mount],
) -> list[str]:
    # First, since this Python may be installed under /tmp and must stay visible.
    argv = ["--perms", "1777", *bwrap.if_supported("--size", str(tmp_bytes)), "--tmpfs", "/tmp"]
    for parent in _parents([mount.target for mount in mounts]):
        argv += ["--perms", "0755", "--dir", parent]
    for mount in mounts:  # before the paths that are shown, which may lie in one
        argv += ["--bind" if mount.writable else "--ro-bind", str(mount.source), mount.target]
    for parent in _parents((*layout.binds, *files)):
        argv += ["--perms", "0755", "--dir", parent]  # traversable for every user, not only the owner
    for path in layout.binds:
        argv += ["--ro-bind", path, path]
    for path in layout.hidden:
        argv += ["--perms", "0755", "--tmpfs", path, "--remount-ro", path]
    for path, target in layout.links:
        argv += ["--symlink", target, path]
    for path, descriptor in files.items():
        argv += ["--perms", "0644", "--file", str(descriptor), path]
    argv += ["--bind", str(workspace), WORKSPACE]
    # The host's /proc is required to mount a fresh one for each command.
    return [*argv, "--dev", "/dev", "--bind", "/proc", "/proc"]


def _parents(paths: Sequence[str]) -> list[str]:
    """Every directory above the paths, outermost first."""
    parents = {str(parent) for path in paths for parent in Path(path).parents}
    return sorted(parents - {"/", "/tmp"})


def command_argv(
    bwrap: Bwrap,
    layout: MountLayout,
    argv: Sequence[str],
    *,
    cwd: str,
    env: Mapping[str, str],
    shm_bytes: int,
    filtered: bool = False,
    read_only: Sequence[str] = (),
    mounts: Sequence[Mount] = (),
) -> list[str]:
    """Runs a program in its own namespaces inside the outer sandbox; start it with an empty environment.

    bubblewrap's first process keeps the environment it was started with, readable for the command.
    `filtered`: descriptor 3 holds a system call filter. `read_only`: paths in the workspace that stay as they
    are.
    """
    wrap = [bwrap.program, "--unshare-all", "--share-net", "--unshare-user"]  # the outer sandbox's network
    wrap += ["--uid", str(INNER_ID), "--gid", str(INNER_ID), "--hostname", HOSTNAME]
    wrap += ["--die-with-parent", "--new-session", *bwrap.if_supported("--disable-userns"), "--clearenv"]
    for name, value in env.items():
        wrap += ["--setenv", name, value]
    for path in _top_directories(layout.binds):
        wrap += ["--ro-bind", path, path] if path != "/tmp" else []  # it is bound below, writable
    for path, target in layout.links:
        wrap += ["--symlink", target, path]
    wrap += ["--seccomp", "3"] if filtered else []
    wrap += ["--bind", WORKSPACE, WORKSPACE, "--bind", "/tmp", "/tmp"]
    for mount in mounts:
        wrap += ["--bind" if mount.writable else "--ro-bind", mount.target, mount.target]
    for path in read_only:
        inside = posixpath.join(WORKSPACE, path)
        wrap += ["--ro-bind-try", inside, inside]
    wrap += [
        "--dev",
        "/dev",
        "--perms",
        "1777",
        *bwrap.if_supported("--size", str(shm_bytes)),
        "--tmpfs",
        "/dev/shm",
    ]
    # /proc/sys is writable for a user that is root outside as well, even without capabilities.
    wrap += ["--proc", "/proc", "--remount-ro", "/proc", "--remount-ro", "/dev", "--remount-ro", "/"]
    return [*wrap, "--chdir", cwd, "--", *argv]


def _top_directories(paths: Sequence[str]) -> list[str]:
    """The first directory of each path: everything below it in the outer sandbox may be visible."""
    return list(dict.fromkeys(f"/{Path(path).parts[1]}" for path in paths))
