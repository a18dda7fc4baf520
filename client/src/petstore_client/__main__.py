"""The command-line interface: `python -m petstore_client` with the commands `list`, `add` and `get`.

The API key is read only from the environment variable PETSTORE_API_KEY, because a key passed as an argument would
appear in the shell history and in the process list, which every user can see.
"""

import argparse
import logging
import os
import sys
import warnings
from collections.abc import Iterable, Sequence

from petstore_client import Pet, PetStatus, Petstore, PetstoreError, __version__
from petstore_client._base_client import DEFAULT_BASE_URL
from petstore_client._escaping import escape

STATUSES = [status.value for status in PetStatus]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit code: 0 on success, 1 on failure, 2 for invalid usage, 130 after Ctrl-C."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    if options.verbose:
        logging.getLogger("petstore_client").setLevel(logging.DEBUG)
    if sys.stdout is None:  # this process was started with standard output closed
        return _print_error("standard output is closed", 1)
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        # JSON must be UTF-8. Other output uses the terminal's encoding, which might not support every character.
        reconfigure(encoding="utf-8" if options.json else None, errors="backslashreplace")
    try:
        client = Petstore(base_url=options.base_url, allow_http=options.allow_http)
    except OSError as error:
        return _print_error(f"cannot read the certificates (see SSL_CERT_FILE): {error}", 2)
    except Exception as error:  # ValueError, or an httpx2 error if a proxy environment variable is invalid
        return _print_error(str(error), 2)
    with client:
        try:
            _run(client, options)
            sys.stdout.flush()
        except PetstoreError as error:
            return _print_error(str(error), 1)
        except BrokenPipeError:  # the reader closed the pipe, as in `list | head`
            _discard_output()
        except OSError as error:
            _discard_output()
            return _print_error(f"cannot write to standard output: {error.strerror}", 1)
        except ValueError as error:
            return _print_error(str(error), 2)
        except KeyboardInterrupt:
            return 130
    return 0


def _run(client: Petstore, options: argparse.Namespace) -> None:
    """Runs the command specified by `options`.

    Raises PetstoreError if a request fails, ValueError if the name is not valid Unicode, or OSError if the output
    cannot be written.
    """
    if options.command == "list":
        _print_all(client.list_pets(options.status, max_items=options.limit), options.json)
    elif options.command == "add":
        _print_one(client.create_pet(options.name, options.category_id, status=options.status), options.json)
    else:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            pet = client.get_pet(options.id)  # pyright: ignore[reportDeprecated]  # the warning is printed below
        _print_one(pet, options.json)
        for warning in caught:
            _print_error(str(warning.message), 0)


def _discard_output() -> None:
    """Redirects standard output to /dev/null, so that the final flush at exit does not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--base-url", metavar="URL", help=f"default: $PETSTORE_BASE_URL, or {DEFAULT_BASE_URL}")
    common.add_argument("--allow-http", action="store_true", help="send the API key unencrypted to another machine")
    common.add_argument("--json", action="store_true", help="print JSON")
    common.add_argument("--verbose", action="store_true", help="print each attempt on standard error")

    parser = argparse.ArgumentParser(
        prog="python -m petstore_client",
        description="List and add animals in a pet store.",
        epilog="The command reads the API key from the environment variable PETSTORE_API_KEY.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    list_command = commands.add_parser("list", parents=[common], help="list animals", description="List animals.")
    list_command.add_argument("--status", choices=STATUSES, help="list only animals with this status")
    list_command.add_argument("--limit", type=_count, metavar="N", help="list at most N animals; default: all")

    add = commands.add_parser("add", parents=[common], help="add an animal", description="Add an animal.")
    add.add_argument("name", help="the animal's name")
    add.add_argument("category_id", metavar="category-id", type=int, help="the id of the animal's category")
    add.add_argument("--status", choices=STATUSES, help="the animal's status; default: available")

    about = "get one animal (deprecated, to be removed on 5 December 2030)"
    get = commands.add_parser("get", parents=[common], help=about, description="Get one animal.")
    get.add_argument("id", type=int, help="the animal's id, as shown in the first column of list")
    return parser


def _count(text: str) -> int:
    """Parses a whole number greater than 0. Raises argparse.ArgumentTypeError for any other text."""
    if not (text.isascii() and text.isdigit() and int(text) >= 1):
        raise argparse.ArgumentTypeError("N must be a whole number greater than 0")
    return int(text)


def _print_all(pets: Iterable[Pet], as_json: bool) -> None:
    """Prints the animals page by page as they arrive, because the list can be long."""
    if not as_json:
        for pet in pets:
            print(_line(pet))
        return
    before = "["
    for pet in pets:
        print(before + _json(pet))
        before = ","
    print("]" if before == "," else "[]")


def _print_one(pet: Pet, as_json: bool) -> None:
    print(_json(pet) if as_json else _line(pet))


def _json(pet: Pet) -> str:
    return escape(pet.to_json())


def _line(pet: Pet) -> str:
    return f"{pet.id:>8}  {pet.status:<9}  {pet.category_id:>6}  {escape(pet.name)}"


def _print_error(text: str, exit_code: int) -> int:
    print(escape(text), file=sys.stderr)
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
