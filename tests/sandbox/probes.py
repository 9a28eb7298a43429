"""Attempts to get out of a sandbox, and the things on the host that they are after."""

from __future__ import annotations

import ctypes
import os
import pty
import socket
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

CANARY = "canary-5b1f0c9e"
LIBC = "import ctypes, os, sys; libc = ctypes.CDLL(None, use_errno=True)\n"
REACHED = "print('REACHED')\n"


@dataclass(frozen=True)
class Probe:
    name: str
    script: str
    """Python, in which <names> stand for what the world has by these names."""
    needs_root: bool = False
    """True if only root gets there in `local`, so that only root can show that it works."""


def _reading(path: str) -> str:
    return f"assert '{CANARY}' in open(f'{path}', errors='replace').read()\n" + REACHED


PROBES = [
    Probe("a private key in the home directory", _reading("<home>/.ssh/id_ed25519")),
    Probe("the settings of Hermes", _reading("<home>/.hermes/.env")),
    Probe(
        "the home directory through a process of the host",
        _reading("/proc/<victim>/root<home>/.ssh/id_ed25519"),
    ),
    Probe("a variable of its own environment", "import os; assert os.environ['PROBE_CANARY']\n" + REACHED),
    Probe("its environment at its start", _reading("/proc/self/environ")),
    Probe("the environment of a process of the host", _reading("/proc/<victim>/environ")),
    Probe(
        "the environment of any process it can see",
        "import glob\nseen = ''\n"
        "for path in glob.glob('/proc/[0-9]*/environ'):\n"
        "    try: seen += open(path, errors='replace').read()\n"
        "    except OSError: pass\n"
        f"assert '{CANARY}' in seen\n" + REACHED,
    ),
    Probe("the command line of a process of the host", "open('/proc/<victim>/cmdline').read()\n" + REACHED),
    Probe(
        "a server on the host's loopback",
        "import socket; s = socket.create_connection(('127.0.0.1', <port>), 3)\n"
        f"assert s.recv(100) == b'{CANARY}'\n" + REACHED,
    ),
    Probe(
        "a socket of the host with an abstract name",
        "import socket; s = socket.socket(socket.AF_UNIX); s.connect(chr(0) + '<abstract>')\n"
        f"assert s.recv(100) == b'{CANARY}'\n" + REACHED,
    ),
    Probe(
        "a socket of a daemon such as docker's",
        "import socket; s = socket.socket(socket.AF_UNIX); s.connect('<run>/docker.sock')\n"
        f"assert s.recv(100) == b'{CANARY}'\n" + REACHED,
    ),
    Probe("a signal to a process of the host", "import os; os.kill(<victim>, 0)\n" + REACHED),
    Probe("a signal to Hermes", "import os; os.kill(<hermes>, 0)\n" + REACHED),
    Probe(
        "the priority of a process of the host",
        "import os; os.getpriority(os.PRIO_PROCESS, <victim>)\n" + REACHED,
    ),
    Probe(
        "the limits of a process of the host",
        "import resource as r; r.prlimit(<victim>, r.RLIMIT_CPU)\n" + REACHED,
    ),
    Probe(
        "tracing a process of the host",
        LIBC
        + "assert libc.ptrace(16, <victim>, 0, 0) == 0\nos.waitpid(<victim>, 0)\n"
        + "libc.ptrace(17, <victim>, 0, 0)\n"
        + REACHED,
    ),
    Probe("a file outside the workspace", "open('<outside>/written', 'w').write('x')\n" + REACHED),
    Probe(
        "a file outside, over a link",
        "import os; os.symlink('<outside>', 'l'); open('l/w', 'w').write('x')\n" + REACHED,
    ),
    Probe(
        "a file in /usr", "import os; p = '/usr/<name>'; open(p, 'w').close(); os.remove(p)\n" + REACHED, True
    ),
    Probe(
        "a file in /etc", "import os; p = '/etc/<name>'; open(p, 'w').close(); os.remove(p)\n" + REACHED, True
    ),
    Probe("a file in /", "import os; p = '/<name>'; open(p, 'w').close(); os.remove(p)\n" + REACHED, True),
    Probe("shared memory of the host by name", _reading("/dev/shm/<name>")),
    Probe(
        "shared memory of the host by number", LIBC + "assert libc.shmget(<shm_key>, 0, 0) >= 0\n" + REACHED
    ),
    Probe(
        "a kernel setting",
        "p = '/proc/sys/kernel/core_pattern'; v = open(p).read(); open(p, 'w').write(v)\n" + REACHED,
        True,
    ),
    Probe("the kernel's log", "open('/dev/kmsg', 'rb').close()\n" + REACHED, True),
    Probe("the host's devices", "import os; assert os.listdir('/sys/class')\n" + REACHED),
    Probe(
        "a device node of its own", "import os; os.mknod('node', 0o20600, os.makedev(1, 3))\n" + REACHED, True
    ),
    Probe(
        "mounting",
        LIBC
        + "os.mkdir('m'); assert libc.mount(b'x', b'm', b'tmpfs', 0, None) == 0\nlibc.umount(b'm')\n"
        + REACHED,
        True,
    ),
    Probe("a user namespace", LIBC + "assert libc.unshare(0x10000000) == 0\n" + REACHED),
    Probe("the host's name", "import socket as s; s.sethostname(s.gethostname())\n" + REACHED, True),
    Probe("another user's identity", "import os; os.setresuid(12345, 12345, 12345)\n" + REACHED, True),
    Probe(
        "more rights by running a set-uid program",
        "assert 'NoNewPrivs:\\t0' in open('/proc/self/status').read()\n" + REACHED,
    ),
    Probe(
        "typing into a terminal of the host",
        "import fcntl, os, termios\nfd = os.open('<terminal>', os.O_RDWR)\n"
        "fcntl.ioctl(fd, termios.TIOCSTI, b'x')\n" + REACHED,
        True,
    ),
    Probe(
        "hundreds of processes",
        "import os, signal, time\nchildren = []\n"
        "try:\n"
        "    for _ in range(150):\n"
        "        pid = os.fork()\n"
        "        if pid == 0:\n"
        "            time.sleep(60); os._exit(0)\n"
        "        children.append(pid)\n"
        "    print('REACHED')\n"
        "finally:\n"
        "    for pid in children: os.kill(pid, signal.SIGKILL)\n",
    ),
    Probe("more memory than allowed", "x = bytearray(200_000_000); x[::4096] = x[::4096]\n" + REACHED),
    Probe(
        "a huge file in /tmp",
        "import tempfile; f = tempfile.TemporaryFile(dir='/tmp'); f.write(bytes(200_000_000))\n" + REACHED,
    ),
    Probe(
        "a huge file in /dev/shm",
        "import tempfile; f = tempfile.TemporaryFile(dir='/dev/shm'); f.write(bytes(150_000_000))\n"
        + REACHED,
    ),
]


class World:
    """Things on the host that no command in a sandbox should get at."""

    def __init__(self, top: Path) -> None:
        self.home, self.outside, self.run = top / "home", top / "outside", top / "run"
        for directory in (self.home / ".ssh", self.home / ".hermes", self.outside, self.run):
            directory.mkdir(parents=True)
        (self.home / ".ssh" / "id_ed25519").write_text(CANARY)
        (self.home / ".hermes" / ".env").write_text(f"OPENAI_API_KEY={CANARY}")
        self.name = f"hermes-probe-{uuid4().hex}"
        self.shared = Path("/dev/shm", self.name)
        self.shared.write_text(CANARY)
        self.shm_key = uuid4().int % 2**30 + 1
        self.shm = ctypes.CDLL(None).shmget(self.shm_key, 4096, 0o1666)
        self.victim = subprocess.Popen(
            ["sleep", "300"], env={"PROBE_CANARY": CANARY, "PATH": os.environ["PATH"]}
        )
        self.sockets = [socket.create_server(("127.0.0.1", 0))]
        for path in (f"\0{self.name}", str(self.run / "docker.sock")):
            server = socket.socket(socket.AF_UNIX)
            server.bind(path)
            server.listen()
            self.sockets.append(server)
        for server in self.sockets:
            threading.Thread(target=_greet, args=(server,), daemon=True).start()
        self.controller, self.terminal = pty.openpty()

    def fill(self, script: str) -> str:
        known = {
            "home": self.home,
            "outside": self.outside,
            "run": self.run,
            "name": self.name,
            "shm_key": self.shm_key,
            "victim": self.victim.pid,
            "hermes": os.getpid(),
            "port": self.sockets[0].getsockname()[1],
            "abstract": self.name,
            "terminal": os.ttyname(self.terminal),
        }
        for name, value in known.items():
            script = script.replace(f"<{name}>", str(value))
        return script

    def close(self) -> None:
        self.victim.kill()
        self.victim.wait()
        self.shared.unlink()
        ctypes.CDLL(None).shmctl(self.shm, 0, None)
        for server in self.sockets:
            server.close()
        os.close(self.controller)
        os.close(self.terminal)


def _greet(server: socket.socket) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        with connection:
            connection.sendall(CANARY.encode())
