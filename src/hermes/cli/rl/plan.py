"""`hermes rl plan`: what a run needs and how long its steps take, before anything is started."""

from __future__ import annotations

import json

import click

from hermes.cli.options import json_option


@click.command()
@click.option("--model", default="hermes/smollm2", show_default=True, help="Bundled, hub name or folder.")
@click.option(
    "--gpus",
    default=1,
    show_default=True,
    type=click.IntRange(0, 4096),
    help="Engine replicas, one a GPU; 0: two CPU cores.",
)
@click.option(
    "--gpu", default="h200", show_default=True, help="Kind of GPU: h200, h100, b200, a100, l40s, l4, rtx4090."
)
@click.option(
    "--env-replicas",
    default=1,
    show_default=True,
    type=click.IntRange(1, 65_536),
    help="Environment processes.",
)
@click.option(
    "--batch-size", default=512, show_default=True, type=click.IntRange(1, 1 << 20), help="Rollouts a step."
)
@click.option(
    "--group-size", default=16, show_default=True, type=click.IntRange(1, 1024), help="Rollouts of one task."
)
@click.option(
    "--turns",
    default=2.0,
    show_default=True,
    type=click.FloatRange(1, 1000),
    help="Model calls a rollout.",
)
@click.option(
    "--prompt-tokens",
    default=300,
    show_default=True,
    type=click.IntRange(1, 1 << 20),
    help="Tokens that the rollouts of a group have in common.",
)
@click.option(
    "--new-tokens",
    default=48,
    show_default=True,
    type=click.IntRange(1, 1 << 20),
    help="Tokens sampled in a rollout, all its turns together.",
)
@click.option(
    "--tool-tokens",
    default=0,
    show_default=True,
    type=click.IntRange(0, 1 << 20),
    help="Tokens that tools and the environment add to a rollout.",
)
@click.option(
    "--rank", default=32, show_default=True, type=click.IntRange(1, 512), help="Rank of the adapter."
)
@click.option(
    "--quantize",
    type=click.Choice(["nf4", "int8"]),
    help="Layers of the base model in 4 or 8 bits (engine_quantize).",
)
@click.option(
    "--env-ms",
    type=click.FloatRange(min=0),
    help="CPU of the environment for one model call, in ms; default: 5.1, that of the built-in calculator.",
)
@json_option
def plan(
    model: str,
    gpus: int,
    gpu: str,
    env_replicas: int,
    batch_size: int,
    group_size: int,
    turns: float,
    prompt_tokens: int,
    new_tokens: int,
    tool_tokens: int,
    rank: int,
    quantize: str | None,
    env_ms: float | None,
    as_json: bool,
) -> None:
    """Estimate memory, time a step and bottleneck of a run.

    \b
    hermes rl plan --model Qwen/Qwen3-8B --gpus 8 --env-replicas 16 --turns 4 --new-tokens 800
    """
    from dataclasses import replace

    from hermes.errors import UsageError
    from hermes.rl.capacity.costs import RolloutWorkload
    from hermes.rl.capacity.hardware import HOST, XEON_2_CORES, device_speed
    from hermes.rl.capacity.plan import Cluster, plan_capacity
    from hermes.rl.capacity.shapes import shape_of
    from hermes.rl.capacity.text import plan_json, plan_text

    if batch_size % group_size:
        raise UsageError(
            f"a batch of {batch_size} rollouts is not a number of groups of {group_size}",
            "make --batch-size a multiple of --group-size",
        )
    load = RolloutWorkload(
        batch_size=batch_size,
        group_size=group_size,
        turns=turns,
        prompt_tokens=prompt_tokens,
        new_tokens=new_tokens,
        tool_tokens=tool_tokens,
        rank=rank,
    )
    cluster = Cluster(
        device=device_speed(gpu.lower()) if gpus else XEON_2_CORES,
        replicas=max(1, gpus),
        environments=env_replicas,
        host=HOST if env_ms is None else replace(HOST, call_s=env_ms / 1000),
    )
    shape = replace(shape_of(model), quantization=quantize)
    result = plan_capacity(shape, load, cluster)
    if as_json:
        click.echo(json.dumps(plan_json(shape, load, cluster, result), indent=2))
    else:
        from hermes.safety.output.columns import wrapped

        click.echo(wrapped(plan_text(shape, load, cluster, result)))
