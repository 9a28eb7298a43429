"""A request of another user of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
linux = pytest.mark.skipif(sys.platform != "linux", reason="the peer's user is known on Linux only")

_OTHER_USER = """
import os, socket, sys
os.setgid(59998); os.setuid(59998)
address = sys.argv[3]
client = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
client.connect((address, int(sys.argv[1])))
client.sendall(b"GET / HTTP/1.1\\r\\nhost: localhost\\r\\nconnection: close\\r\\n\\r\\n")
if sys.argv[2] == "close": client.close(); sys.exit()
reply = b""
while chunk := client.recv(65536): reply += chunk
print(reply.decode())
"""


def as_other_user(url: str, how: str = "read", address: str = "127.0.0.1") -> str:
    port = url.rpartition(":")[2]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        program = Path(folder, "client.py")
        program.write_text(_OTHER_USER)
        command = ["/usr/bin/env", "python3", str(program), port, how, address]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
