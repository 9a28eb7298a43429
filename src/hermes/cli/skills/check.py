"""`hermes skills check`: are the skills of this machine as they were installed, and can they be used here?"""

from __future__ import annotations

import json

import click

from hermes.cli.options import json_option


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]…")
@json_option
@click.pass_context
def check(ctx: click.Context, names: tuple[str, ...], as_json: bool) -> None:
    """Check skills: their form, their files, what they need.

    A skill fails if its SKILL.md is malformed, or if its files are not those that were installed. Programs
    and variables that it needs and this machine lacks are named. Without a NAME every skill is checked.

    Exits with 1 if a skill failed.
    """
    from hermes.cli.tables import table_lines
    from hermes.config.load import load
    from hermes.skills import list_skills
    from hermes.skills.install import check as check_files

    config = load()
    findings = check_files(config.home, config.environ)
    if names:
        by_name = {finding.name: finding for finding in findings}
        catalogue = list_skills(config.home)
        findings = [by_name.get(name) or by_name[catalogue.find(name).name] for name in names]
    if as_json:
        values = [
            {
                "name": finding.name,
                "state": "failed" if finding.problems else "ok",
                "ok": not finding.problems,
                "problems": [{"file": "", "line": 0, "problem": text} for text in finding.problems],
                "missing": list(finding.missing),
            }
            for finding in findings
        ]
        click.echo(json.dumps(values, ensure_ascii=False))
    else:
        for line in table_lines([("skill", "result"), *((entry.name, entry.state) for entry in findings)]):
            click.echo(line)
    ctx.exit(1 if any(finding.problems for finding in findings) else 0)
