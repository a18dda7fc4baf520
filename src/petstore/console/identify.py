"""Identify the key of a secret. The secret is in the body of a POST, never in a URL, and no page shows it again."""

from starlette.responses import Response

from petstore.console.keys import statuses_of
from petstore.console.requests import ConsoleRequest
from petstore.keys import ENVIRONMENTS, Environment, secret_in, well_formed


async def show(request: ConsoleRequest) -> Response:
    return request.page("keys/identify.html", error="", key=None)


async def identify(request: ConsoleRequest) -> Response:
    """Search both environments: the prefix of a secret names its own."""
    secret = secret_in((await request.form()).text("secret"))
    environment = _environment_of(secret)
    if environment is None:
        error = (
            "This is no complete secret of a key: the prefix or the checksum is wrong." if secret else "Enter a secret."
        )
        return request.page("keys/identify.html", 422, error=error, key=None)
    found = await request.state.admin(environment, request.session.actor).identify_key(secret)
    if found is None:
        error = f"No key of {environment} has this secret."
        return request.page("keys/identify.html", 404, error=error, key=None)
    key, secret_ends = found
    (status,) = await statuses_of(request, [key])
    return request.page("keys/identify.html", error="", key=key, status=status, secret_ends=secret_ends)


def _environment_of(secret: str) -> Environment | None:
    return next((each for each in ENVIRONMENTS if well_formed(secret, each)), None)
