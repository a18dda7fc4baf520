"""Every command that takes --data, with sample arguments. Add each new command here: many tests use this table."""

from pathlib import Path
from typing import Literal, NamedTuple

import click

from petstore.cli import cli
from petstore.keys import mint


class Sample(NamedTuple):
    """A command with valid arguments. In `words`, KEY is a key's id, and FILE a file with an animal.

    `read` commands change nothing. `write` commands change existing data. `create` commands also create a store.
    `whole` commands start a service, or read or replace the whole data.
    """

    words: str
    access: Literal["read", "write", "create", "whole"]
    stdin: str = ""

    def arguments(self, directory: Path, key_id: str = "key_1") -> list[str]:
        """Returns the words. Creates the file in the directory if necessary."""
        file = directory / "pets.jsonl"
        if "FILE" in self.words:
            file.write_text('{"name": "Ada", "categoryId": 2}\n')
        return [{"KEY": key_id, "FILE": str(file)}.get(word, word) for word in self.words.split()]

    @property
    def command(self) -> tuple[str, ...]:
        """The command's own words, without arguments."""
        words = self.words.split()
        return next(command for command in COMMANDS if words[: len(command)] == list(command))


def commands_below(command: click.Command, words: tuple[str, ...] = ()) -> dict[tuple[str, ...], click.Command]:
    """Returns a command and, for a group, all commands and groups in it, by their words."""
    found = {words: command}
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            found |= commands_below(below, (*words, name))
    return found


COMMANDS_AND_GROUPS = commands_below(cli)
COMMANDS = {words: found for words, found in COMMANDS_AND_GROUPS.items() if not isinstance(found, click.Group)}

SAMPLES = [
    Sample("serve", "whole"),
    Sample("console", "whole"),
    Sample("backup FILE.zip", "whole"),
    Sample("restore FILE.zip", "whole"),
    Sample("copy --to-store elsewhere", "whole"),
    Sample("check", "whole"),
    Sample("keys list", "read"),
    Sample("keys show KEY", "read"),
    Sample("keys create --plan free", "create"),
    Sample("keys update KEY --name x", "write"),
    Sample("keys suspend KEY", "write"),
    Sample("keys resume KEY", "write"),
    Sample("keys identify", "write", stdin=mint("live")),
    Sample("keys rotate KEY --yes", "write"),
    Sample("keys end-overlap KEY", "write"),
    Sample("keys revoke KEY --yes", "write"),
    Sample("bans list", "read"),
    Sample("bans lift KEY", "write"),
    Sample("usage", "write"),  # collects what the gate has counted
    Sample("usage KEY", "write"),
    Sample("audit", "read"),
    Sample("operators add ada", "create"),
    Sample("operators list", "read"),
    Sample("operators revoke ada", "write"),
    Sample("pets list", "read"),
    Sample("pets list --search Re", "read"),
    Sample("pets show 1", "read"),
    Sample("pets add --name Rex --category-id 1", "create"),
    Sample("pets update 1 --name x", "write"),
    Sample("pets set-status 1 sold", "write"),
    Sample("pets remove 1 --yes", "write"),
    Sample("pets restore 1", "write"),
    Sample("pets import FILE", "create"),
    Sample("pets import FILE --dry-run", "read"),
    Sample("pets imports", "read"),
    Sample("pets undo-import imp_1 --yes", "write"),
    Sample("pets export -", "read"),
]

# The commands that act on a key
OF_A_KEY = [sample for sample in SAMPLES if "KEY" in sample.words]
