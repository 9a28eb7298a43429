"""Measures the structure of the code: lines by package, import arrows, cycles, small files, vague names.

    python scripts/structure.py [ROOT] [--json]

ROOT is a checkout (default: this one), so that two commits can be compared. The source is parsed and not
imported, but for the command line of this checkout, whose commands, options and flags are counted.
tests/test_structure.py holds the limits.
"""

from __future__ import annotations

import argparse
import ast
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

VAGUE = frozenset(
    [
        "answer",
        "asked",
        "each",
        "every",
        "found",
        "given",
        "gone",
        "heard",
        "held",
        "kept",
        "known",
        "made",
        "meant",
        "one",
        "ones",
        "other",
        "others",
        "own",
        "place",
        "said",
        "seen",
        "shown",
        "spoken",
        "such",
        "taken",
        "thing",
        "things",
        "told",
        "wanted",
        "what",
        "which",
        "who",
        "whoever",
        "why",
    ]
)
"""Names of variables that leave the reader to find out the noun."""

FRAGMENT_LINES = 90

Graph = Mapping[str, frozenset[str]]


@dataclass(frozen=True, slots=True)
class Binding:
    """A variable of a function: an argument, an assignment, a loop or a `with` target."""

    name: str
    path: Path
    line: int
    function_lines: int


@dataclass(frozen=True, slots=True)
class Structure:
    """The figures of one checkout."""

    files: int
    lines: int
    packages: dict[str, int]
    """Lines of each package; `hermes` has those of the files beside the packages."""
    arrows: dict[str, int]
    """Import arrows between the modules of a package, lazy imports counted."""
    cycles: list[list[str]]
    bindings: int
    vague_bindings: int
    single_importer: int
    """Modules that exactly one other module imports."""
    fragments: list[str]
    """Of these, the ones under 90 lines whose importer is in the same folder."""
    commands: int | None = None
    """Of the installed `hermes`, as its help lists them; None: another checkout is measured."""
    options: int | None = None
    flags: int | None = None
    """Distinct long flags; an option that is not listed, or a former spelling of one, does not count."""


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def sources(root: Path) -> dict[str, Path]:
    """Module name to path, for everything under src/ but the scripts of skills, which nobody imports."""
    base = root / "src"
    library = base / "hermes" / "skills" / "library"
    return {
        ".".join(path.relative_to(base).with_suffix("").parts).removesuffix(".__init__"): path
        for path in sorted(base.rglob("*.py"))
        if not path.is_relative_to(library)
    }


def import_graph(modules: Mapping[str, Path]) -> Graph:
    """Which module imports which, at its head or inside a function."""
    graph: dict[str, frozenset[str]] = {}
    for module, path in modules.items():
        targets: set[str] = set()
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.Import):
                targets.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    submodule = f"{node.module}.{alias.name}"
                    targets.add(submodule if submodule in modules else node.module)
        graph[module] = frozenset(target for target in targets if target in modules and target != module)
    return graph


def cycles(graph: Graph) -> list[list[str]]:
    """Strongly connected components of more than one module (Kosaraju)."""
    order: list[str] = []
    visited: set[str] = set()

    def visit(start: str, edges: Graph, into: list[str]) -> None:
        stack = [(start, iter(sorted(edges[start])))]
        visited.add(start)
        while stack:
            node, neighbours = stack[-1]
            following = next((name for name in neighbours if name not in visited), None)
            if following is None:
                into.append(node)
                stack.pop()
            else:
                visited.add(following)
                stack.append((following, iter(sorted(edges[following]))))

    for module in sorted(graph):
        if module not in visited:
            visit(module, graph, order)
    reverse: dict[str, set[str]] = {module: set() for module in graph}
    for module, targets in graph.items():
        for target in targets:
            reverse[target].add(module)
    backwards = {module: frozenset(names) for module, names in reverse.items()}
    visited.clear()
    components: list[list[str]] = []
    for module in reversed(order):
        if module not in visited:
            component: list[str] = []
            visit(module, backwards, component)
            if len(component) > 1:
                components.append(sorted(component))
    return sorted(components)


def bindings(paths: Iterator[Path] | list[Path]) -> Iterator[Binding]:
    """The variables of all functions. A nested function's are counted once, for itself."""
    for path in paths:
        functions = [
            node for node in ast.walk(parse(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        for function in functions:
            size = (function.end_lineno or function.lineno) - function.lineno + 1
            for name, line in _names(function):
                yield Binding(name, path, line, size)


def _names(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[str, int]]:
    counted: set[str] = set()
    pending: list[ast.AST] = [function.args, *function.body]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        name = None
        if isinstance(node, ast.arg):
            name = node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        if name is not None and name not in counted:
            counted.add(name)
            yield name, node.lineno  # type: ignore[attr-defined]
        pending.extend(ast.iter_child_nodes(node))


def package_lines(root: Path) -> dict[str, int]:
    """Lines of each package, the files that skills carry included."""
    lines: Counter[str] = Counter()
    base = root / "src" / "hermes"
    for path in base.rglob("*.py"):
        parts = path.relative_to(base).parts
        lines[parts[0] if len(parts) > 1 else "hermes"] += _line_count(path)
    return dict(sorted(lines.items()))


def fragments(modules: Mapping[str, Path], graph: Graph) -> list[str]:
    """Short modules that only one module imports, which is in the same folder: most could be part of it."""
    importers: dict[str, list[str]] = defaultdict(list)
    for module, targets in graph.items():
        for target in targets:
            importers[target].append(module)
    return [
        module
        for module, path in modules.items()
        if len(importers[module]) == 1
        and path.name != "__init__.py"
        and modules[importers[module][0]].parent == path.parent
        and _line_count(path) < FRAGMENT_LINES
    ]


def _line_count(path: Path) -> int:
    return len(path.read_text("utf-8").splitlines())


def measure(root: Path) -> Structure:
    modules = sources(root)
    graph = import_graph(modules)
    packages = package_lines(root)
    arrows: Counter[str] = Counter()
    importers: Counter[str] = Counter()
    for module, targets in graph.items():
        importers.update(targets)
        for target in targets:
            if _package(module) == _package(target):
                arrows[_package(module)] += 1
    counted = list(bindings(list(modules.values())))
    return Structure(
        files=len(modules),
        lines=sum(packages.values()),
        packages=packages,
        arrows=dict(sorted(arrows.items())),
        cycles=cycles(graph),
        bindings=len(counted),
        vague_bindings=sum(binding.name in VAGUE for binding in counted),
        single_importer=sum(count == 1 for count in importers.values()),
        fragments=fragments(modules, graph),
    )


def count_commands() -> tuple[int, int, int]:
    """Commands, options and distinct flags that the help of the installed `hermes` lists."""
    import click

    from hermes.cli.main import cli
    from hermes.cli.options import RenamedOption

    commands = options = 0
    flags: set[str] = set()
    pending: list[click.Command] = [cli]
    while pending:
        command = pending.pop()
        context = click.Context(command)
        is_group = isinstance(command, click.Group)
        commands += not is_group or command.invoke_without_command
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                options += 1
                names = parameter.opts[:1] if isinstance(parameter, RenamedOption) else parameter.opts
                flags.update(name for name in (*names, *parameter.secondary_opts) if name.startswith("--"))
        if isinstance(command, click.Group):
            listed = (command.get_command(context, name) for name in command.list_commands(context))
            pending += [subcommand for subcommand in listed if subcommand and not subcommand.hidden]
    return commands, options, len(flags)


def _package(module: str) -> str:
    return ".".join(module.split(".")[:2])


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures the structure of a checkout.")
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--json", action="store_true", help="print every figure as JSON")
    arguments = parser.parse_args()
    structure = measure(arguments.root)
    if arguments.root.resolve() == Path(__file__).resolve().parents[1]:
        commands, options, flags = count_commands()
        structure = replace(structure, commands=commands, options=options, flags=flags)
    if arguments.json:
        print(json.dumps(asdict(structure), indent=1))
        return
    print(f"files                       {structure.files:,}")
    print(f"lines                       {structure.lines:,}")
    for package, lines in sorted(structure.packages.items(), key=lambda item: -item[1]):
        print(f"    {package:<24}{lines:,}")
    for package in ("engine", "envs"):
        print(f"import arrows in {package:<11}{structure.arrows.get(f'hermes.{package}', 0):,}")
    print(f"import cycles               {len(structure.cycles)}")
    for cycle in structure.cycles:
        print(f"    {' '.join(name.removeprefix('hermes.') for name in cycle)}")
    share = structure.vague_bindings / structure.bindings
    print(f"vague local names           {structure.vague_bindings:,} of {structure.bindings:,} ({share:.1%})")
    print(f"modules with one importer   {structure.single_importer}")
    if structure.commands is not None:
        print(f"commands, options, flags    {structure.commands}, {structure.options}, {structure.flags}")
    print(f"short ones in its folder    {len(structure.fragments)}")


if __name__ == "__main__":
    main()
