"""`petstore help`: shows the help page for a command, or the page about the backend options."""

from typing import Any

import click

from petstore.cli.options import backend_options

REDIS_URLS = [
    ("redis://host:6379/0", "A Redis or Valkey server. valkey:// works too."),
    ("rediss://host:6379/0", "The same, with TLS. valkeys:// works too."),
    (
        "redis+sentinel://host:26379,host:26379/name",
        "The primary that these Sentinels monitor under this name. For TLS, use rediss+sentinel://",
    ),
    (
        "redis+cluster://host:6379,host:6379",
        "The cluster that these servers belong to. For TLS, use rediss+cluster://",
    ),
]


class _Backends(click.Command):
    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Options"):
            options = [param for param in self.params if isinstance(param, click.Option)]
            for option in options:
                option.hidden = False
            formatter.write_dl([record for option in options if (record := option.get_help_record(ctx))])
        with formatter.section("URLs for --gate"):
            formatter.write_dl(REDIS_URLS)


@click.command(cls=_Backends, options_metavar="", add_help_option=False)
@backend_options
def backends(**_: Any) -> None:
    """Choose the data that a command uses.

    A single machine needs only --data, a directory with an SQLite store and an LMDB gate. Several machines share a
    store in PostgreSQL and a gate in Redis or Valkey, and use --data only for files that are specific to each machine.

    You can also set each option with an environment variable, such as PETSTORE_DATA or PETSTORE_STORE_FILE.

    \b
    Examples:
      petstore keys list --data /var/lib/petstore
      petstore keys list --store postgresql://petstore@db/petstore --gate redis://cache:6379/0
      PETSTORE_STORE_FILE=/etc/petstore-store petstore check

    Percent-encode special characters in passwords. Write % / ? # @ [ ] as %25 %2F %3F %23 %40 %5B %5D.
    """


@click.command(name="help")
@click.argument("words", metavar="[COMMAND…]", nargs=-1)
@click.pass_context
def help(ctx: click.Context, words: tuple[str, ...]) -> None:
    """Show the help page for a command. COMMAND… is the command's name, such as keys create.

    \b
    Examples:
      petstore help backends            show all options that select the data
      petstore help keys create
    """
    root = ctx.find_root()
    if words == ("backends",):
        click.echo(backends.get_help(click.Context(backends, info_name="petstore help backends")))
        return
    context = root
    for word in words:
        group = context.command
        found = group.get_command(context, word) if isinstance(group, click.Group) else None
        if found is None:
            known = group.list_commands(context) if isinstance(group, click.Group) else []
            raise click.NoSuchCommand(word, possibilities=[*known, "backends"], ctx=context)
        context = click.Context(found, context, word)
    click.echo(context.get_help())
