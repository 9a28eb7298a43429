"""`hermes rate`: rates one trajectory."""

from __future__ import annotations

import click

from hermes.cli.options import json_option


@click.command()
@click.argument("trajectory")
@click.argument("verdict", type=click.Choice(["good", "bad", "1", "2", "3", "4", "5"]))
@click.option("--comment", help="Reason.")
@click.option("--rater", help="Name of the rater; default: your user name.")
@json_option
def rate(trajectory: str, verdict: str, comment: str | None, rater: str | None, as_json: bool) -> None:
    """Rate TRAJECTORY (an id, its beginning or end, or 'last') as good, bad, or 1 to 5.

    Ratings are appended; the newest one counts.
    """
    import json

    from hermes.agent.build import open_writer
    from hermes.agent.rating import make_rating
    from hermes.config.load import load
    from hermes.config.paths import db_path
    from hermes.store import Reader

    config = load()
    with Reader(db_path(config.home)) as reader:
        rating = make_rating(reader.resolve(trajectory), verdict, rater=rater, comment=comment)
    with open_writer(config) as writer:
        writer.add_rating(rating).result()
    if as_json:
        click.echo(
            json.dumps({"id": rating.id, "trajectory_id": rating.trajectory_id, "value": rating.value})
        )
    else:
        click.echo(f"rated {rating.trajectory_id}: {verdict}")
