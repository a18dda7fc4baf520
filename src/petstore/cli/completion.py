"""`petstore completion`: prints a shell completion script. `key_ids` completes the ids of existing keys."""

import contextlib
import time

import click
from click.shell_completion import CompletionItem, get_completion_class

from petstore.backends import Backends
from petstore.cli.data import act
from petstore.cli.suggestions import BACKEND_OPTIONS
from petstore.errors import PetstoreError
from petstore.keys import KeyQuery
from petstore.settings import DEFAULTS

ITEMS_MAX = 100
SHELLS = ("bash", "zsh", "fish")


def key_ids(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Returns the ids of keys whose id or name starts with the word being completed.

    If the word is the start of a key's name, the shell replaces the word with the key's id.
    If the data cannot be read, returns nothing, because an error message would garble the command line.
    """
    options = {name: ctx.params.get(name) for name in BACKEND_OPTIONS}
    options["data"] = options["data"] or DEFAULTS.data
    options["pgbouncer"] = bool(options["pgbouncer"])

    async def work(backends: Backends) -> list[CompletionItem]:
        start = incomplete.lower()
        return [
            CompletionItem(key.id, help=key.name)
            for store in backends.stores.values()
            for key in await store.keys.search(KeyQuery(incomplete), now=time.time(), limit=ITEMS_MAX)
            if key.id.lower().startswith(start) or key.name.lower().startswith(start)
        ]

    with contextlib.suppress(PetstoreError, OSError), ctx:
        return act(options, work)
    return []


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a shell script that completes commands, options and key ids.

    \b
    Examples:
      eval "$(petstore completion bash)"                                      add to ~/.bashrc
      eval "$(petstore completion zsh)"                                       add to ~/.zshrc
      petstore completion fish > ~/.config/fish/completions/petstore.fish     run once
    """
    script = get_completion_class(shell)
    assert script is not None
    click.echo(script(ctx.find_root().command, {}, "petstore", "_PETSTORE_COMPLETE").source())
