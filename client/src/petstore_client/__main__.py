"""The command: `python -m petstore_client list`, `add` and `get`. The key comes from PETSTORE_API_KEY alone.

A key among the arguments would be in the shell's history, and in everyone's list of processes.
"""

import argparse
import io
import logging
import os
import re
import sys
import warnings
from collections.abc import Iterable, Sequence

import msgspec

from petstore_client import LIVE, Pet, PetStatus, Petstore, PetstoreError, __version__

STATUSES = [status.value for status in PetStatus]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0, 1 after an error of the service, 2 after one of usage."""
    options = _parser().parse_args(arguments)
    if options.verbose:
        logging.basicConfig(level=logging.WARNING, format="%(message)s")
        logging.getLogger("petstore_client").setLevel(logging.DEBUG)
    if sys.stdout is None:  # closed by whoever started this
        return _complain("there is no standard output", 1)
    if isinstance(sys.stdout, io.TextIOWrapper):  # JSON is UTF-8, and a name may have what the terminal has not
        sys.stdout.reconfigure(encoding="utf-8" if options.json else None, errors="backslashreplace")
    try:
        client = Petstore(base_url=options.base_url)
    except OSError as error:
        return _complain(f"the certificates cannot be read, see SSL_CERT_FILE: {error}", 2)
    except Exception as error:  # a ValueError, or what the HTTP library makes of a proxy in the variables
        return _complain(str(error), 2)
    with client:
        try:
            _run(client, options)
            sys.stdout.flush()
        except PetstoreError as error:
            return _complain(str(error), 1)
        except BrokenPipeError:  # the reader has seen enough: `list | head`
            _drop_output()
        except OSError as error:
            _drop_output()
            return _complain(f"standard output cannot be written: {error.strerror}", 1)
        except ValueError as error:
            return _complain(str(error), 2)
        except KeyboardInterrupt:
            return 130
    return 0


def _run(client: Petstore, options: argparse.Namespace) -> None:
    """Raises PetstoreError, ValueError for a name that cannot be sent, OSError for output that cannot be written."""
    if options.command == "list":
        _print_all(client.list_pets(options.status), options.json)
    elif options.command == "add":
        _print_one(client.create_pet(options.name, options.category_id, status=options.status), options.json)
    else:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            pet = client.get_pet(options.id)
        _print_one(pet, options.json)
        for warning in caught:
            _complain(str(warning.message), 0)


def _drop_output() -> None:
    """So that Python, when it ends, does not try once more to write what is left."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--base-url", metavar="URL", help=f"default: $PETSTORE_BASE_URL, or {LIVE}")
    common.add_argument("--json", action="store_true", help="print JSON")
    common.add_argument("--verbose", action="store_true", help="tell about each try on standard error")

    parser = argparse.ArgumentParser(
        prog="python -m petstore_client",
        description="Browse and add animals of a pet store.",
        epilog="The API key is taken from the variable PETSTORE_API_KEY.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    listing = commands.add_parser("list", parents=[common], help="list animals", description="List animals.")
    listing.add_argument("--status", choices=STATUSES, help="only animals with this status")

    adding = commands.add_parser("add", parents=[common], help="add an animal", description="Add an animal.")
    adding.add_argument("name", help="the animal's name")
    adding.add_argument("category_id", metavar="category-id", type=int, help="the number of its category")
    adding.add_argument("--status", choices=STATUSES, help="its status; default: available")

    getting = commands.add_parser(
        "get", parents=[common], help="get one animal (ends on 5 December 2030)", description="Get one animal."
    )
    getting.add_argument("id", type=int, help="the animal's id, the first number of its line in list")
    return parser


def _print_all(pets: Iterable[Pet], as_json: bool) -> None:
    """As they come, page by page: a list may be long."""
    if not as_json:
        for pet in pets:
            print(_line(pet))
        return
    before = "["
    for pet in pets:
        print(before + msgspec.json.encode(pet).decode())
        before = ","
    print("]" if before == "," else "[]")


def _print_one(pet: Pet, as_json: bool) -> None:
    print(msgspec.json.encode(pet).decode() if as_json else _line(pet))


# What a terminal takes for a command: controls, ends of lines, marks of direction.
_obeyed = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def _line(pet: Pet) -> str:
    name = _obeyed.sub("\N{REPLACEMENT CHARACTER}", pet.name)
    return f"{pet.id:>8}  {pet.status:<9}  {pet.category_id:>6}  {name}"


def _complain(text: str, code: int) -> int:
    print(text, file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
