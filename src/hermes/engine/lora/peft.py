r"""Reads and writes adapters in PEFT's file format, without PEFT.

Files written here load with `PeftModel.from_pretrained`. Files written by PEFT load here if they are a plain
LoRA on linear layers of this base model, with any targets, ranks and scales, also if those differ by layer.
Anything else (DoRA, biases, retrained modules) is rejected. Writing is not atomic: `checkpoints.adapter_io`
replaces folders atomically.

Module patterns of an adapter's configuration (`alpha_pattern`) are matched in time linear in the path. PEFT
reads them as regular expressions, and an adapter may come from anyone: a regular expression can run for
hours. Read here are names with `.`, `.*`, `.+`, `\d`, `\w`, [classes], escaped characters, `*`, `+` and `?`
after one of these, anchors at the ends, and (one|level|of|alternatives). Anything else is an error.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import string
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hermes.engine.lora.adapter_tar import ADAPTER_FILES
from hermes.engine.lora.weights import LoraGroup, LoraPart, LoraWeights
from hermes.engine.spec import Linear, ModelSpec, Site
from hermes.engine.types import EngineUserError, LoraConfig

CONFIG_FILE, WEIGHTS_FILE = ADAPTER_FILES

QUANTIZATION_KEY = "base_quantization"
"""In the metadata of the weights' file: how the base model was quantised that the adapter was trained on."""
_PREFIX = "base_model.model."
_MATRIX = re.compile(r"(?P<path>.+)\.lora_(?P<which>[AB])(\.[^.]+)?\.weight")
# PEFT adds copies of untrained embeddings when the output projection is a target of a tied model.
_COPY = re.compile(r".*(base_layer|embed_tokens|lm_head)\.weight")
_UNSUPPORTED_SETTINGS = (
    "use_dora",
    "lora_bias",
    "fan_in_fan_out",
    "modules_to_save",
    "trainable_token_indices",
    "exclude_modules",
)

_MAX_CONFIG_BYTES = 1 << 20
_MAX_TENSORS, _MAX_NAME_CHARS = 20_000, 300
_MAX_PATTERNS = 2_000
_MAX_ALPHA = 1e6

LoraMatrices = tuple[Tensor, Tensor, float]
"""A [rank, in], B [out, rank] and the scale."""


def save_peft(folder: Path, weights: LoraWeights, config: LoraConfig, spec: ModelSpec) -> None:
    """Writes the two files into `folder`, which is created if necessary. OSError: writing failed."""
    from safetensors.torch import save_file

    pairs = _pairs(weights, spec)
    matrices = {}
    for site, (a, b, _) in pairs.items():
        path = _PREFIX + spec.linears[site].path
        matrices[f"{path}.lora_A.weight"], matrices[f"{path}.lora_B.weight"] = a, b
    tensors = _on_cpu(matrices)
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(_peft_config(pairs, config, spec), indent=2)
    (folder / CONFIG_FILE).write_text(text, encoding="utf-8")
    quantization = {} if spec.quantization is None else {QUANTIZATION_KEY: spec.quantization}
    save_file(tensors, folder / WEIGHTS_FILE, metadata={"format": "pt", **quantization})


def _on_cpu(matrices: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The matrices in fp32, brought there in one copy: each copy waits for what the device does."""
    flat = torch.cat([matrix.float().flatten() for matrix in matrices.values()]).cpu()
    parts = torch.split(flat, [matrix.numel() for matrix in matrices.values()])
    return {
        name: part.view(matrix.shape) for (name, matrix), part in zip(matrices.items(), parts, strict=True)
    }


def load_peft(folder: Path, spec: ModelSpec) -> tuple[LoraWeights, LoraConfig]:
    """The weights, on the CPU in fp32. EngineUserError: not a plain LoRA adapter of this model."""
    sites = {linear.path: site for site, linear in spec.linears.items()}
    settings, matrices = _read_matrices(folder, {linear.path: linear for linear in spec.linears.values()})
    pairs = {sites[path]: pair for path, pair in matrices.items()}
    return assemble(pairs, spec), _lora_config(_alpha(folder, settings), pairs, spec)


def merge_peft(model: torch.nn.Module, folder: Path) -> None:
    """Adds the adapter to the weights of a model of transformers; an LM head that shares the embeddings' gets
    its own. EngineUserError: not a plain LoRA adapter of this model."""
    modules = {path: module for path, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    linears = {
        path: Linear(path, module.in_features, module.out_features, "attn")
        for path, module in modules.items()
    }
    embeddings: Any = model.get_input_embeddings()  # type: ignore[operator]
    for path, (a, b, scale) in _read_matrices(folder, linears)[1].items():
        weight = modules[path].weight
        if weight is embeddings.weight:
            weight = modules[path].weight = torch.nn.Parameter(weight.detach().clone())
            for config in {id(config): config for config in _configs(model)}.values():
                config.tie_word_embeddings = False
        weight.data += (scale * (b @ a)).to(weight)


def _configs(model: Any) -> tuple[Any, Any]:
    """The configurations of the whole model and of its text model."""
    return model.config, model.config.get_text_config()


def _read_matrices(
    folder: Path, linears: Mapping[str, Linear]
) -> tuple[dict[str, Any], dict[str, LoraMatrices]]:
    """The settings of a plain LoRA adapter, and its matrices by the paths of the linears they are for."""
    settings, tensors = _read(folder)
    for name in _UNSUPPORTED_SETTINGS:
        if settings.get(name):
            raise _unusable_error(folder, f"it sets {name}")
    if settings.get("peft_type") != "LORA" or settings.get("bias", "none") != "none":
        raise _unusable_error(folder, "it is not a plain LoRA")
    matrices: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        match = _MATRIX.fullmatch(name.removeprefix(_PREFIX))
        if match and match["path"] in linears:
            matrices.setdefault(match["path"], {})[match["which"]] = _finite(folder, name, tensor)
        elif match or not _COPY.fullmatch(name):
            raise _unusable_error(folder, f"this model has no place for {name}")
    if not matrices:
        raise _unusable_error(folder, "it contains no matrices")
    return settings, {path: _pair(folder, linears[path], settings, ab) for path, ab in matrices.items()}


def assemble(pairs: Mapping[Site, LoraMatrices], spec: ModelSpec) -> LoraWeights:
    """The matrices of single linears, combined into the groups they are applied in."""
    groups = {}
    for group, members in spec.groups.items():
        present = [pairs[site] for site in members if site in pairs]
        if present:
            parts = tuple(
                LoraPart(pairs[site][1], pairs[site][2]) if site in pairs else None for site in members
            )
            groups[group] = LoraGroup(torch.cat([a for a, _, _ in present]), parts)
    return LoraWeights(groups)


def _pairs(weights: LoraWeights, spec: ModelSpec) -> dict[Site, LoraMatrices]:
    return {
        site: (loaded.a[rows], part.b, part.scale)
        for group, loaded in weights.groups.items()
        for site, (rows, part) in zip(spec.groups[group], loaded.spans(), strict=True)
        if part is not None
    }


def _peft_config(pairs: Mapping[Site, LoraMatrices], config: LoraConfig, spec: ModelSpec) -> dict[str, Any]:
    ranks, alphas = {}, {}
    for site, (a, _, scale) in pairs.items():
        path = re.escape(spec.linears[site].path)
        if a.shape[0] != config.rank:
            ranks[path] = a.shape[0]
        if not math.isclose(scale * a.shape[0], config.alpha):
            alphas[path] = scale * a.shape[0]
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": spec.name,
        "r": config.rank,
        "lora_alpha": config.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": _targets(pairs, spec),
        "rank_pattern": ranks,
        "alpha_pattern": alphas,
        "inference_mode": True,
    }


def _targets(pairs: Mapping[Site, LoraMatrices], spec: ModelSpec) -> list[str]:
    """Short names where every linear with that name is adapted, full paths otherwise."""
    short = {site: linear.path.rpartition(".")[2] for site, linear in spec.linears.items()}
    total, adapted = Counter(short.values()), Counter(short[site] for site in pairs)
    complete = {short[site] for site in pairs if adapted[short[site]] == total[short[site]]}
    return sorted(complete | {spec.linears[site].path for site in pairs if short[site] not in complete})


def _finite(folder: Path, name: str, tensor: Tensor) -> Tensor:
    """The tensor in fp32. EngineUserError: it is no matrix of finite real numbers."""
    if tensor.dim() != 2 or tensor.numel() == 0 or tensor.is_complex():
        raise _unusable_error(folder, f"{name} is not a matrix")
    matrix = tensor.float()
    if not bool(torch.isfinite(matrix).all()):
        raise _unusable_error(folder, f"{name} has values that are not finite")
    return matrix


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        if (folder / CONFIG_FILE).stat().st_size > _MAX_CONFIG_BYTES:
            raise ValueError(f"{CONFIG_FILE} is larger than {_MAX_CONFIG_BYTES} bytes")
        settings = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
        _check_names(folder / WEIGHTS_FILE)
        tensors = load_file(folder / WEIGHTS_FILE)
    except (OSError, ValueError, KeyError, RecursionError, RuntimeError, SafetensorError) as error:
        raise EngineUserError(
            f"{folder} is not an adapter that can be read: {error}",
            f"Use a PEFT folder with {CONFIG_FILE} and {WEIGHTS_FILE}.",
        ) from error
    if not isinstance(settings, dict):
        raise _unusable_error(folder, f"{CONFIG_FILE} is not an object")
    return settings, tensors


def _check_names(path: Path) -> None:
    """ValueError: more or longer names than any adapter has. Reads the header only."""
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        names = list(file.keys())
    if len(names) > _MAX_TENSORS or any(len(name) > _MAX_NAME_CHARS for name in names):
        limits = f"{_MAX_TENSORS} tensors, and names of {_MAX_NAME_CHARS} characters"
        raise ValueError(f"{WEIGHTS_FILE} may have at most {limits}")


def _pair(
    folder: Path, linear: Linear, settings: Mapping[str, Any], ab: Mapping[str, Tensor]
) -> LoraMatrices:
    if set(ab) != {"A", "B"}:
        raise _unusable_error(folder, f"{linear.path} has only one of its two matrices")
    a, b = ab["A"], ab["B"]
    rank = a.shape[0]
    if tuple(a.shape) != (rank, linear.inputs) or tuple(b.shape) != (linear.outputs, rank):
        shapes = f"A {tuple(a.shape)} and B {tuple(b.shape)}"
        raise _unusable_error(
            folder, f"{linear.path} maps {linear.inputs} to {linear.outputs}, but has {shapes}"
        )
    alpha = _alpha(folder, settings, linear.path)
    return a, b, alpha / (math.sqrt(rank) if settings.get("use_rslora") else rank)


def _alpha(folder: Path, settings: Mapping[str, Any], path: str | None = None) -> float:
    """The alpha of a linear layer, or of the whole adapter. EngineUserError: it is not a finite number."""
    overrides = settings.get("alpha_pattern") or {}
    if not isinstance(overrides, dict) or len(overrides) > _MAX_PATTERNS:
        raise _unusable_error(folder, f"alpha_pattern is not an object of at most {_MAX_PATTERNS} patterns")
    alpha = settings.get("lora_alpha", 8)
    if path is not None:
        alpha = next((value for pattern, value in overrides.items() if matches(pattern, path)), alpha)
    if not isinstance(alpha, int | float) or not abs(alpha) < _MAX_ALPHA:
        raise _unusable_error(folder, "lora_alpha or a value of alpha_pattern is not a usable number")
    return float(alpha)


def _lora_config(alpha: float, pairs: Mapping[Site, LoraMatrices], spec: ModelSpec) -> LoraConfig:
    parts = {spec.linears[site].part for site in pairs}
    rank = Counter(a.shape[0] for a, _, _ in pairs.values()).most_common(1)[0][0]
    return LoraConfig(
        rank=rank,
        alpha=alpha,
        train_attn="attn" in parts,
        train_mlp="mlp" in parts,
        train_unembed="unembed" in parts,
    )


def _unusable_error(folder: Path, reason: str) -> EngineUserError:
    return EngineUserError(
        f"The adapter in {folder} cannot be used: {reason}.", "Use a plain LoRA adapter of this base model."
    )


_MAX_CHARS = 500
_MAX_ALTERNATIVES = 64
_CLASS = re.compile(r"\[(\^?)((?:[\w.-]|\\.)+)\]")
_WORD = string.ascii_letters + string.digits + "_"
_ESCAPES = {"d": string.digits, "w": _WORD}


@dataclass(frozen=True, slots=True)
class _Unit:
    accepts: Callable[[str], bool]
    repeat: str
    """"" once, "?" at most once, "*" any number, "+" at least once."""


def matches(pattern: str, path: str) -> bool:
    """Whether the pattern matches the path, or the path's end after a dot. EngineUserError: unreadable."""
    if len(pattern) > _MAX_CHARS:
        raise _unreadable(pattern)
    anchored = pattern.startswith("^")
    body = pattern.removeprefix("^").removesuffix("$")
    starts = [0] if anchored else [0, *(index + 1 for index, char in enumerate(path) if char == ".")]
    return any(_matches_whole(_units(text, pattern), path, starts) for text in _alternatives(body, pattern))


def _alternatives(body: str, pattern: str) -> Iterator[str]:
    """The pattern without its groups, once for each choice."""
    if "(" not in body:
        yield from body.split("|") if "|" in body else [body]
        return
    parts = re.split(r"\((?:\?:)?([^()]*)\)", body)
    if any(char in text for text in parts[::2] for char in "()|") or any(
        text[:1] in "*+?{" for text in parts[1:] if text
    ):
        raise _unreadable(pattern)
    choices = [[text] if index % 2 == 0 else text.split("|") for index, text in enumerate(parts)]
    for number, choice in enumerate(itertools.product(*choices)):
        if number == _MAX_ALTERNATIVES:
            raise _unreadable(pattern)
        yield "".join(choice)


def _units(text: str, pattern: str) -> list[_Unit]:
    units: list[_Unit] = []
    position = 0
    while position < len(text):
        accepts, position = _atom(text, position, pattern)
        repeat = text[position] if position < len(text) and text[position] in "*+?" else ""
        position += len(repeat)
        units.append(_Unit(accepts, repeat))
    return units


def _atom(text: str, position: int, pattern: str) -> tuple[Callable[[str], bool], int]:
    """The test that one character of the path must pass, and where the next atom begins."""
    char = text[position]
    if char == ".":
        return (lambda _: True), position + 1
    if char == "[":
        char_class = _CLASS.match(text, position)
        if char_class is None:
            raise _unreadable(pattern)
        members, negated = _members(char_class.group(2)), bool(char_class.group(1))
        return (lambda value: (value in members) is not negated), char_class.end()
    if char == "\\":
        escaped = text[position + 1 : position + 2]
        if not escaped or (escaped.isalnum() and escaped not in _ESCAPES):
            raise _unreadable(pattern)
        members = frozenset(_ESCAPES.get(escaped, escaped))
        return members.__contains__, position + 2
    if char in "*+?{}()|^$":
        raise _unreadable(pattern)
    return char.__eq__, position + 1


def _members(text: str) -> frozenset[str]:
    """The characters of a class such as a-z0-9_."""
    plain = re.sub(r"\\([dw])", lambda match: _ESCAPES[match.group(1)], text)
    plain = re.sub(r"\\(.)", r"\1", plain)
    members = set(plain)
    for match in re.finditer(r"(\w)-(\w)", plain):
        members |= {chr(code) for code in range(ord(match.group(1)), ord(match.group(2)) + 1)}
    return frozenset(members)


def _matches_whole(units: Sequence[_Unit], path: str, starts: Sequence[int]) -> bool:
    """Follows all ways through the pattern at once: no input makes it go back."""
    reached = set(starts)
    for unit in units:
        following = set(reached) if unit.repeat in ("?", "*") else set()
        frontier = reached
        while frontier:
            frontier = {
                index + 1 for index in frontier if index < len(path) and unit.accepts(path[index])
            } - following
            following |= frontier
            if unit.repeat not in ("*", "+"):
                break
        reached = following
    return len(path) in reached


def _unreadable(pattern: str) -> EngineUserError:
    return EngineUserError(
        f"the module pattern {pattern[:100]!r} cannot be read",
        "use module names, '.', '.*', '\\\\d+', [classes] and (one|level|of|alternatives)",
    )
