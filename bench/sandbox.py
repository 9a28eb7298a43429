"""What a sandbox costs: opening it, one file that is read, one `echo`, closing it. CPU of all its processes.

    python bench/sandbox.py [--count 30] [--docker-image IMAGE] [--json]

`bwrap` runs the same echo in namespaces of the same kinds, and nothing else: the floor. `subprocess` is a
plain child. docker (or podman) is measured with an image that is there. The first sandbox of a process also
probes the machine, so one is opened before measuring. CPU is user and system time of everything that runs in
a control group made for it, so load on the machine does not count; the daemon of docker does not either.
Where no such group can be made, only processes that were waited for count, which is less. Linux only.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from hermes.config.settings import SandboxSettings  # noqa: E402
from hermes.sandbox import open_sandbox  # noqa: E402
from hermes.sandbox.open import unusable_reason  # noqa: E402

ROUNDS = 5
BWRAP = "bwrap --unshare-all --die-with-parent --ro-bind /usr /usr --symlink usr/bin /bin"
MOUNTS = "--symlink usr/lib /lib --symlink usr/lib64 /lib64 --proc /proc --dev /dev"
GROUP = f"hermes-bench-{os.getpid()}"
FOLDERS = (Path("/sys/fs/cgroup/cpuacct") / GROUP, Path("/sys/fs/cgroup") / GROUP)


def enter_group() -> Path | None:
    """The file with the CPU time of this process and all it starts from now on."""
    for folder, figure in zip(FOLDERS, ("cpuacct.usage", "cpu.stat"), strict=True):
        try:
            folder.mkdir()
            (folder / "cgroup.procs").write_text("0")
        except OSError:
            continue
        if (folder / figure).exists():
            return folder / figure
    return None


def cpu_s(usage: Path | None) -> float:
    if usage is not None:
        words = usage.read_text().split()
        return int(words[0]) / 1e9 if len(words) == 1 else int(words[1]) / 1e6
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def plain() -> None:
    subprocess.run(["/bin/sh", "-c", "echo ok"], stdout=subprocess.PIPE, check=True)


def bare_bwrap() -> None:
    subprocess.run(
        [*BWRAP.split(), *MOUNTS.split(), "/bin/sh", "-c", "echo ok"], stdout=subprocess.PIPE, check=True
    )


def bare_python() -> None:
    subprocess.run([sys.executable, "-I", "-S", "-c", "pass"], check=True)


def sandboxed(settings: SandboxSettings, *, command: bool) -> Callable[[], Awaitable[None]]:
    async def work() -> None:
        sandbox = await open_sandbox(settings, interactive=False)
        try:
            await sandbox.write_file("notes.txt", b"blue\n")
            assert await sandbox.read_file("notes.txt") == b"blue\n"
            if command:
                assert (await sandbox.run("echo ok")).output == "ok\n"
        finally:
            await sandbox.close()

    return work


def measure(work: Callable[[], Awaitable[None] | None], count: int, usage: Path | None) -> dict[str, float]:
    async def once() -> None:
        if (pending := work()) is not None:
            await pending

    async def repeat() -> list[float]:
        await once()
        costs = []
        for _ in range(ROUNDS):
            begun_s = cpu_s(usage)
            for _ in range(count):
                await once()
            costs.append((cpu_s(usage) - begun_s) / count * 1000)
        return costs

    costs = asyncio.run(repeat())
    return {"cpu_ms": round(statistics.median(costs), 1), "lowest": round(min(costs), 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--count", type=int, default=10, help="sandboxes in each of five rounds")
    parser.add_argument("--docker-image", help="also measure docker (or podman) with this image")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    works: dict[str, Callable[[], Awaitable[None] | None]] = {"subprocess": plain, "bare Python": bare_python}
    if shutil.which("bwrap"):
        works["bwrap"] = bare_bwrap
    for backend in ("local", "bubblewrap", *(("docker",) if options.docker_image else ())):
        image = {"docker_image": options.docker_image} if backend == "docker" else {}
        settings = SandboxSettings(backend=backend, **image)
        if backend == "local" or unusable_reason(backend) is None:
            works[f"{backend}, files only"] = sandboxed(settings, command=False)
            works[f"{backend}, files and echo"] = sandboxed(settings, command=True)
    usage = enter_group()
    results = {name: measure(work, options.count, usage) for name, work in works.items()}
    if options.json:
        print(json.dumps(results, indent=2))
        return
    for name, figures in results.items():
        print(f"{name:28} {figures['cpu_ms']:8.1f} ms (lowest {figures['lowest']:.1f})")


if __name__ == "__main__":
    main()
