"""An address behind a proxy sends wrong tokens. An operator at another address behind the proxy can still sign in."""

from collections import Counter

import httpx

from harness.claims import hold, temporary_directory
from harness.consoles import Console
from harness.servers import Server
from petstore.operators import mint_token
from prove.proof import Figures, Scale

TRIES = 60
ATTACKER, OPERATOR = "192.0.2.66", "192.0.2.1"
LINES_MAX = 20


def prove(scale: Scale) -> Figures:
    with temporary_directory() as data:
        server = Server(data / "data")
        console = Console(server, "--trusted-proxy", "127.0.0.1")
        try:
            console.wait_until_ready()
            token = console.add_operator("ada")
            lines = len(console.output.read_text().splitlines())
            with httpx.Client(base_url=console.origin, timeout=15) as client:
                statuses = Counter(_sign_in(console, client, ATTACKER, mint_token()) for _ in range(TRIES))
                statuses += Counter(_sign_in(console, client, ATTACKER, _like(token)) for _ in range(TRIES))
                address = ATTACKER if scale.plant else OPERATOR
                status = _sign_in(console, client, address, token)
            lines = len(console.output.read_text().splitlines()) - lines
        finally:
            console.stop()
    hold(set(statuses) == {401, 429}, f"wrong tokens get a 401, and soon a 429: {dict(statuses)}")
    hold(status == 303, f"the operator at another address can sign in, but got a {status}")
    hold(lines <= LINES_MAX, f"{2 * TRIES} wrong tokens caused {lines} lines in the log")
    return {"wrong tokens": 2 * TRIES, "of them looked up": statuses[401], "lines in the log": lines,
            "operator elsewhere behind the same proxy": "signed in"}  # fmt: skip


def _like(token: str) -> str:
    """Returns a wrong token with the same prefix as the operator's token."""
    return token[:12] + mint_token()[12:]


def _sign_in(console: Console, client: httpx.Client, address: str, token: str) -> int:
    headers = {"Origin": console.origin, "X-Forwarded-For": address}
    return client.post("/sign-in", data={"token": token}, headers=headers).status_code
