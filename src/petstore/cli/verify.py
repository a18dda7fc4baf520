"""`petstore verify`: checks a deployment over HTTP, as its clients see it."""

import time

import click

from petstore.cli.options import Command, json_option
from petstore.cli.output import Output, progress
from petstore.cli.suggestions import as_typed
from petstore.errors import OperatorError
from petstore.verify.checks import LEVELS, Level
from petstore.verify.runner import Plan, Result, prepare, run
from petstore.verify.session import NAME, Session
from petstore.verify.transport import parse_address
from petstore.wording import counted

MARKS = {"ok": "ok", "broken": "BROKEN", "skipped": "skipped"}


@click.command(cls=Command)
@click.argument("url")
@click.option(
    "--key",
    envvar="PETSTORE_VERIFY_KEY",
    metavar="KEY",
    help="An API key that no client uses. To keep the key out of the process list, pass it in PETSTORE_VERIFY_KEY.",
)
@click.option(
    "--also",
    multiple=True,
    metavar="URL",
    help="Another address of the same environment, such as the address of a single node. Repeatable.",
)
@click.option(
    "--limit-key",
    envvar="PETSTORE_VERIFY_LIMIT_KEY",
    metavar="KEY",
    help="A second API key, for checking rate limits. Its limit must be 10 to 200 requests per minute."
    " You can also pass it in PETSTORE_VERIFY_LIMIT_KEY.",
)
@click.option(
    "--level",
    type=click.Choice(LEVELS),
    default="contract",
    show_default=True,
    help="Use spec to check only what the specification requires of every implementation.",
)
@click.option("--write", is_flag=True, help="Allow the command to add animals to the live environment.")
@json_option
def verify(
    url: str, key: str | None, also: tuple[str, ...], limit_key: str | None, level: Level, write: bool, as_json: bool
) -> None:
    """Check that the deployment at URL, including its proxy, behaves as the API promises.

    URL is a base URL that clients use. The command does not need access to the deployment's machines. It takes at most
    two minutes and sends at most 400 requests, plus up to 420 with --limit-key. In the staging environment, it adds
    animals whose names begin with verify-. In the live environment, it adds animals only if --write is given. To
    use your own CA certificates, set SSL_CERT_FILE.

    \b
    Exit code:
      0  no promises were broken
      1  at least one promise was broken (see the lines marked BROKEN)
      2  the checks could not run

    \b
    Examples:
      petstore verify https://staging.example.com/v1
      petstore verify https://staging.example.com/v1 --also http://10.0.0.11:8080/staging/v1
    """  # fmt: skip
    addresses = list(dict.fromkeys(parse_address(each) for each in (url, *also)))
    session = Session(addresses, _checked(key, "--key"), _checked(limit_key, "--limit-key") if limit_key else "")
    began = time.monotonic()
    try:
        plan = prepare(session, level, write)
        _announce(plan)
        with progress("Checking", len(plan.checks)) as bar:
            results = []
            for result in run(session, plan):
                results.append(result._replace(detail=as_typed(result.detail)))
                bar.update(1)
    finally:
        session.close()
    broken = sum(result.result == "broken" for result in results)
    summary = ", ".join(f"{sum(each.result == kind for each in results)} {kind}" for kind in MARKS)
    took = f"{counted(session.sent, 'request')}, {time.monotonic() - began:.0f} s"
    Output([result._asdict() for result in results], *_lines(results), f"{summary} ({took})").print(as_json)
    if session.added:
        _say_how_to_remove(session, plan)
    if broken:
        raise click.exceptions.Exit(1)


def _checked(key: str | None, option: str) -> str:
    """Returns the key. Raises OperatorError if the key is missing or invalid. The message does not repeat the key."""
    if not key:
        variable = f"PETSTORE_VERIFY_{option.removeprefix('--').replace('-', '_').upper()}"
        raise OperatorError(f"no API key; use {option} or set {variable}")
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise OperatorError(f"{option} contains characters that are not valid in an API key")
    return key


def _announce(plan: Plan) -> None:
    beyond = f", plus up to {counted(plan.limit_requests, 'request')} with the limit key" if plan.limit_requests else ""
    adds = f"It adds animals whose names begin with {NAME}." if plan.writes else "It adds no animals."
    click.echo(f"This command sends up to {counted(plan.requests, 'request')}{beyond}. {adds}", err=True)


def _lines(results: list[Result]) -> list[str]:
    width = max(len(result.check) for result in results)
    lines = []
    for check, promise, result, detail in results:
        lines.append(f"{MARKS[result]:<7}  {check:<{width}}  {detail if result == 'skipped' else promise}")
        lines += [f"         {text}" for text in detail.splitlines() if result == "broken"]
    return lines


def _say_how_to_remove(session: Session, plan: Plan) -> None:
    """Prints instructions for removing the added animals to standard error. Standard output is reserved for results."""
    click.echo(
        as_typed(f"Added {counted(session.added, 'animal')}. To find your key's id, run `petstore keys identify`."),
        err=True,
    )
    environment, since = plan.environment, f"{plan.began:%Y-%m-%dT%H:%M:%SZ}"
    remove = f"`petstore pets remove --env {environment} --added-by KEY --since {since}`"
    click.echo(as_typed(f"To remove the animals, run {remove}."), err=True)
