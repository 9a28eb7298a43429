"""`hermes policy`: which weights answer by the name `policy`, and where they come from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hermes.cli.options import CommandGroup, json_option, stored_variables

if TYPE_CHECKING:
    from hermes.training.policy_registry import PolicyRegistry


@click.group(cls=CommandGroup)
def policy() -> None:
    """Policies: list, show, promote, roll back, compare, serve.

    `hermes --model policy` talks to the current one, `--model policy:ID` to a certain one.
    """


@policy.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List the policies, oldest first; the current one is marked."""
    import json
    from dataclasses import asdict

    from hermes.cli.render import local_time
    from hermes.cli.tables import columns
    from hermes.training.policy_registry import BASE_ID

    registry = _registry()
    current, policies = registry.current(), registry.policies()
    if as_json:
        click.echo(json.dumps({"current": current.id, "policies": [asdict(record) for record in policies]}))
        return
    table = [("", "policy", "when", "method", "ratings", "compared", "from")]
    table.append(("*" if current.id == BASE_ID else "", BASE_ID, "", "", "", "", current.base_model))
    for record in policies:
        marker = "*" if record.id == current.id else ""
        when = local_time(record.created_at_ms)
        counts = (record.method, str(len(record.ratings)), record.decision)
        table.append((marker, record.id, when, *counts, record.parent))
    click.echo(columns(table))


@policy.command("show")
@click.argument("name", default="current")
@json_option
def show(name: str, as_json: bool) -> None:
    """Show a policy: weights, lineage, ratings, the comparison that decided."""
    import json
    from dataclasses import asdict

    record = _registry().find(name)
    if as_json:
        click.echo(json.dumps(asdict(record)))
        return
    for label, value in (
        ("policy", record.id),
        ("base model", record.base_model),
        ("weights", record.weights or "(the base model)"),
        ("sampler", record.sampler or ""),
        ("from policy", record.parent),
        ("method", record.method),
        ("training run", record.run_id or ""),
        ("compared", record.decision),
        ("figures", json.dumps(record.facts) if record.facts else ""),
        ("report", record.report or ""),
        ("ratings", f"{len(record.ratings)}: {', '.join(record.ratings[:3])} …" if record.ratings else ""),
    ):
        if value:
            click.echo(f"{label:<13} {value}")


@policy.command("promote")
@click.argument("name")
@click.option(
    "--base-model",
    default="hermes/smollm2",
    show_default=True,
    help="Base model of weights that are named by a path.",
)
@json_option
def promote(name: str, base_model: str, as_json: bool) -> None:
    """Make NAME the current policy.

    NAME is an id, 'base', 'previous' (which was current before), or weights as tinker://RUN/weights/NAME.
    Weights that exist nowhere are refused.
    """
    if name == "previous":
        _roll_back(as_json)
        return
    import json

    from hermes.config.load import load
    from hermes.core.clock import now_ms
    from hermes.policies.open import check_servable
    from hermes.training.policy_registry import PolicyRecord, new_policy_id

    config, registry = load(), _registry()
    if name.startswith("tinker://"):
        sampler = name.replace("/weights/", "/sampler_weights/")
        record = PolicyRecord(
            new_policy_id(),
            base_model,
            name,
            sampler,
            parent=registry.current(base_model).id,
            method="by hand",
            created_at_ms=now_ms(),
        )
        check_servable(config, record)
        registry.add(record)
    else:
        record = registry.find(name)
        check_servable(config, record)
    registry.promote(record.id, "by hand")
    click.echo(json.dumps({"current": record.id}) if as_json else f"the current policy is {record.id}")


@policy.command("rollback", hidden=True)
@json_option
def rollback(as_json: bool) -> None:
    """The same as `hermes policy promote previous`."""
    _roll_back(as_json)


def _roll_back(as_json: bool) -> None:
    import json

    from hermes.config.load import load
    from hermes.policies.open import check_servable

    registry = _registry()
    check_servable(load(), registry.before_current())
    record = registry.rollback()
    click.echo(json.dumps({"current": record.id}) if as_json else f"the current policy is {record.id}")


@policy.command("delete")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def delete(name: str, yes: bool, as_json: bool) -> None:
    """Delete a policy that is not the current one.

    Its copies of the weights and its report go with it; the checkpoints of the run that trained it stay.
    """
    import json

    from hermes.cli import question

    registry = _registry()
    record = registry.find(name)
    if not as_json:
        click.echo(f"policy {record.id}: {record.method or 'no method'}, weights {record.weights}")
    question.confirm_deletion(f"the policy {record.id}", yes=yes)
    registry.delete(record.id)
    click.echo(json.dumps({"deleted": record.id}) if as_json else f"deleted: policy {record.id}")


@policy.command("compare")
@click.argument("first", default="base")
@click.argument("second", default="current")
@click.option("-q", "--query", "queries", multiple=True, required=True, help="A question; repeatable.")
@json_option
@stored_variables
def compare(first: str, second: str, queries: tuple[str, ...], as_json: bool) -> None:
    """Ask two policies the same questions and show both answers."""
    from hermes.cli.policy.compare import run_compare

    run_compare(first, second, queries, as_json)


@policy.command("serve")
@click.argument("name", default="current", metavar="[NAME|run:ID]")
@click.option(
    "--port", type=click.IntRange(1, 65535), help="Port to listen on; 8001, or a free one, if unset."
)
@stored_variables
def serve(name: str, port: int | None) -> None:
    """Serve a policy, or the weights of a run, over the OpenAI API.

    `hermes batch --model policy` uses it.
    """
    from hermes.config.load import load
    from hermes.policies.open import serve_policy

    if name.startswith("run:"):
        from hermes.cli.rl.weights import serve_run

        serve_run(name.removeprefix("run:"), port)
        return
    serve_policy(load(), _registry().find(name), port, click.echo)


def _registry() -> PolicyRegistry:
    from hermes.config.load import load
    from hermes.training.policy_registry import PolicyRegistry

    return PolicyRegistry(load().home)
