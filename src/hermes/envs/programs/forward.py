"""Passes connections to a port of a sandbox's own loopback on to a Unix socket. Runs inside the sandbox.

    python3 -I -S forward.py SOCKET PORT

Standard library only: it is the only way out of a sandbox without a network, and leads to one server.
"""

import socket
import sys
import threading

READY = "forwarding"
_CHUNK_BYTES = 65_536


def main(path: str, port: int) -> None:
    with socket.create_server(("127.0.0.1", port), backlog=128) as server:
        sys.stdout.write(f"{READY}\n")
        sys.stdout.flush()
        while True:
            client, _ = server.accept()
            threading.Thread(target=_serve, args=(client, path), daemon=True).start()


def _serve(client: socket.socket, path: str) -> None:
    upstream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with client, upstream:
        try:
            upstream.connect(path)
        except OSError:
            return  # the model's server has ended: the client sees a closed connection
        back = threading.Thread(target=_copy, args=(upstream, client), daemon=True)
        back.start()
        _copy(client, upstream)
        back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(_CHUNK_BYTES):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # one side is gone; the other copy ends by it


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
