"""Signals count whichever thread the system delivers them to, also while the main thread is blocked."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, signal, sys, threading, time
from hermes.envs.modes import shutdown

shutdown._EXIT_TIMEOUT_S = 0.1

def send_signals_to_this_thread():
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.pthread_kill(threading.get_ident(), number)

async def main():
    stop = shutdown.StopRequest()
    with shutdown.stop_on_signals(stop, lambda: print("saved", flush=True)):
        threading.Timer(0.2, send_signals_to_this_thread).start()
        if sys.argv[1] == "blocked":
            time.sleep(600)
        await stop.immediate.wait()
        print("requested", stop.requested.is_set())

asyncio.run(main())
before = signal.getsignal(signal.SIGTERM)
print("restored", before is signal.SIG_DFL, signal.set_wakeup_fd(-1))
"""


@pytest.mark.parametrize(
    ("case", "code", "printed"),
    [("blocked", 1, "saved\n"), ("waiting", 0, "requested True\nrestored True -1\n")],
)
def test_signals_that_another_thread_gets_count(case: str, code: int, printed: str) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, case], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (code, printed), done.stderr
