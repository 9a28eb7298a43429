"""Write an Ollama Modelfile for a GGUF file and, with --create, make the model in a running Ollama.

Checks first that the file is GGUF and that the parameters are names that Ollama's options have.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

MAGIC = b"GGUF"


def render(model: Path, adapter: Path | None, system: str | None, parameters: dict[str, str]) -> str:
    lines = [f"FROM {model.resolve()}"]
    if adapter:
        lines.append(f"ADAPTER {adapter.resolve()}")
    lines += [f"PARAMETER {name} {value}" for name, value in parameters.items()]
    if system:
        lines.append(f'SYSTEM """{system}"""')
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, help="GGUF file")
    parser.add_argument("--adapter", type=Path, help="LoRA adapter in GGUF or safetensors")
    parser.add_argument("--system", help="System message")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="num_ctx=16384")
    parser.add_argument("--output", type=Path, default=Path("Modelfile"))
    parser.add_argument("--create", metavar="NAME", help="Also run: ollama create NAME -f OUTPUT")
    options = parser.parse_args()
    with options.model.open("rb") as stream:
        if stream.read(4) != MAGIC:
            print(f"{options.model} is not a GGUF file.")
            return 1
    parameters = dict(item.split("=", 1) for item in options.set)
    if parameters:
        from ollama import Options

        unknown = sorted(set(parameters) - set(Options.model_fields))
        if unknown:
            print(f"Ollama has no parameter {', '.join(unknown)}.")
            return 1
    options.output.write_text(render(options.model, options.adapter, options.system, parameters))
    print(f"{options.output} is written.")
    if options.create:
        command = ["ollama", "create", options.create, "-f", str(options.output)]
        return subprocess.run(command, check=False).returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
