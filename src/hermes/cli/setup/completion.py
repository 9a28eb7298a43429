"""`hermes completion`: the script that makes a shell complete commands, flags and values."""

from __future__ import annotations

import click


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    \b
    bash: echo 'eval "$(hermes completion bash)"' >> ~/.bashrc
    zsh:  echo 'eval "$(hermes completion zsh)"' >> ~/.zshrc
    fish: hermes completion fish > ~/.config/fish/completions/hermes.fish
    """
    from click.shell_completion import get_completion_class

    from hermes.cli.main import cli

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(cli, {}, "hermes", "_HERMES_COMPLETE").source())
