"""`hermes policy`: which weights answer by the name `policy`, and where they come from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hermes.cli.options import CommandGroup, json_option, stored_variables

if TYPE_CHECKING:
    from hermes.training.policy_registry import PolicyRecord, PolicyRegistry


@click.group(cls=CommandGroup)
def policy() -> None:
    """Policies: list, show, promote, roll back, serve.

    `hermes --model policy` talks to the current one, `--model policy:NAME` to a certain one, and `--model
    run:RUN` to the newest weights of a run. So do `hermes batch` and `hermes bench`.
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
    labels = {record.id: record.label for record in policies}
    for record in policies:
        marker = "*" if record.id == current.id else ""
        when = local_time(record.created_at_ms)
        counts = (record.method, str(len(record.ratings)), record.decision)
        table.append((marker, record.label, when, *counts, labels.get(record.parent, record.parent)))
    click.echo(columns(table))


@policy.command("show")
@click.argument("name", default="current")
@click.option("--text", metavar="TEXT", help="Print this text alone: --text file:AGENTS.md > AGENTS.md.")
@json_option
def show(name: str, text: str | None, as_json: bool) -> None:
    """Show a policy: weights, lineage, ratings, the comparison that decided."""
    import json
    from dataclasses import asdict
    from textwrap import indent

    from hermes.errors import UsageError
    from hermes.safety.text import printable

    record = _registry().find(name)
    if text is not None:
        if text not in record.texts:
            raise UsageError(
                f"{record.label} has no text {text}", f"it has: {', '.join(record.texts) or 'none'}"
            )
        click.echo(record.texts[text])
        return
    if as_json:
        click.echo(json.dumps(asdict(record)))
        return
    for label, value in (
        ("policy", record.label),
        ("id", record.id if record.name else ""),
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
    for text_name, content in record.texts.items():
        click.echo(f"\n{text_name}\n{indent(printable(content), '    ')}")


@policy.command("compare")
@click.argument("before")
@click.argument("after", default="current")
@json_option
def compare(before: str, after: str, as_json: bool) -> None:
    """Show what differs between two policies: weights, and texts as a diff.

    To measure which one is better: `hermes bench --model policy:NAME`.
    """
    import json
    from textwrap import indent

    from hermes.policies.text.improve import diff
    from hermes.safety.text import printable

    old, new = (_registry().find(name) for name in (before, after))
    values = {
        label: (getattr(old, label), getattr(new, label))
        for label in ("base_model", "weights", "method", "decision")
        if getattr(old, label) != getattr(new, label)
    }
    names = sorted({*old.texts, *new.texts})
    diffs = {
        name: diff(old.texts.get(name, ""), new.texts.get(name, ""))
        for name in names
        if old.texts.get(name) != new.texts.get(name)
    }
    if as_json:
        click.echo(json.dumps({"before": old.id, "after": new.id, "differs": values, "texts": diffs}))
        return
    click.echo(f"{old.label} → {new.label}")
    for label, (old_value, new_value) in values.items():
        click.echo(f"{label:<13} {old_value or '(none)'} → {new_value or '(none)'}")
    for name, text in diffs.items():
        click.echo(f"\n{name}\n{indent(printable(text), '    ')}")
    if not values and not diffs:
        click.echo("nothing differs")


@policy.command("promote")
@click.argument("name", metavar="NAME|RUN[@STEP]")
@click.option("--base-model", help="Base model of weights at a path; default: as their run or files say.")
@json_option
def promote(name: str, base_model: str | None, as_json: bool) -> None:
    """Make a policy, or the weights of a run, the current policy.

    NAME is a policy's name or id, a run (its newest checkpoint) or RUN@STEP, 'base', 'previous' (which was
    current before), or weights as tinker://RUN/weights/NAME. Weights that exist nowhere are refused.
    """
    if name == "previous":
        _roll_back(as_json)
        return
    from hermes.config.load import load
    from hermes.rl.weights.open import promote

    _print_current(promote(load(), name, base_model), as_json)


@policy.command("rollback", hidden=True)
@json_option
def rollback(as_json: bool) -> None:
    """The same as `hermes policy promote previous`."""
    _roll_back(as_json)


def _roll_back(as_json: bool) -> None:
    from hermes.config.load import load
    from hermes.rl.weights.open import check_servable

    registry = _registry()
    check_servable(load(), registry.before_current())
    _print_current(registry.rollback(), as_json)


def _print_current(record: PolicyRecord, as_json: bool) -> None:
    import json

    if as_json:
        click.echo(json.dumps({"current": record.id, "name": record.label}))
        return
    click.echo(f"the current policy is {record.label}; hermes --model policy talks to it")


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
        click.echo(f"policy {record.label}: {record.method or 'no method'}, weights {record.weights}")
    question.confirm_deletion(f"the policy {record.label}", yes=yes)
    registry.delete(record.id)
    click.echo(json.dumps({"deleted": record.id}) if as_json else f"deleted: policy {record.label}")


@policy.command("serve")
@click.argument("name", default="policy", metavar="[NAME|run:RUN[@STEP]]")
@click.option(
    "--port", type=click.IntRange(0, 65535), help="Port to listen on; 8001, or a free one, if unset."
)
@stored_variables
def serve(name: str, port: int | None) -> None:
    """Serve a policy, or the weights of a run, over the OpenAI API.

    It is the only model there, so that the base model never answers in its place. Its texts are put around
    each request: the system prompt and the examples where the request has no system prompt of its own.
    """
    serve_named(name, port)


def serve_named(name: str, port: int | None) -> None:
    from hermes.cli.terminal.interrupted import report_stop
    from hermes.config.load import load
    from hermes.rl.weights.open import RUN, find_policy
    from hermes.rl.weights.serve import serve_policy

    config = load()
    model = name if name.startswith(RUN) or name == "policy" else f"policy:{name}"

    def progress(note: str) -> None:
        click.echo(f"({note})", err=True)

    policy = find_policy(config, model, progress)
    assert policy is not None, "the name has the form of a policy's"
    serve_policy(config, policy, port, click.echo, progress)
    if policy.url is None:
        report_stop("rl serve")


def _registry() -> PolicyRegistry:
    from hermes.config.load import load
    from hermes.training.policy_registry import PolicyRegistry

    return PolicyRegistry(load().home)
