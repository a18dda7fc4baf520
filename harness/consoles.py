"""Runs `petstore console` in tests, on a free port and on the data of a server, which may be running too."""

import contextlib
import html
import re
import time
from collections.abc import Iterator
from typing import Any

import httpx

from harness.backends import free_port
from harness.processes import launched
from harness.servers import READY_WITHIN, Server, takes_connections
from petstore.audit import Actor
from petstore.keys import Environment
from petstore.operators import Role, mint_token, new_operator


class Console:
    """A running console. `link` is its sign-in link, which works once."""

    def __init__(self, server: Server, *options: str, scheme: str = "http") -> None:
        self.server = server
        self.clients: list[ConsoleClient] = []
        self.port = free_port()
        self.origin = f"{scheme}://127.0.0.1:{self.port}"
        self.cookie_name = f"{'__Host-' if scheme == 'https' else ''}petstore_console_{self.port}"
        self.output = server.data.parent / f"console-{self.port}.out"
        words = ["--port", str(self.port), "--clock-file", str(server.clock_file), *options]
        self.process = launched([*server.program, "console", *words], server.where, self.output)

    def wait_until_ready(self) -> None:
        began = time.monotonic()
        while not self._responds():
            printed = self.output.read_text()
            assert self.process.poll() is None and time.monotonic() - began < READY_WITHIN, printed
            time.sleep(0.01)  # polls for at most READY_WITHIN
        found = re.search(r"https?://\S+/sign-in\?token=(\S+)", self.output.read_text())
        assert found is not None
        self.link, self.link_token = found[0], found[1]

    def _responds(self) -> bool:
        if not takes_connections(self.port):
            return False
        try:
            return httpx.get(self.origin + "/sign-in", timeout=10, verify=False).status_code == 401
        except httpx.TransportError:
            return False

    def stop(self) -> int:
        for client in self.clients:
            client.http.close()
        self.process.terminate()
        return self.process.wait(timeout=READY_WITHIN)

    def add_operator(self, name: str, role: Role = "operator") -> str:
        """Creates an operator and returns its token."""

        by, token = Actor("a test", time.time()), mint_token()
        operator = new_operator(name, by.at, role)
        self.server.act(lambda backends: backends.stores["live"].operators.add(operator, token, by))
        return token

    def client(self) -> "ConsoleClient":
        """Returns a client that is not signed in."""
        return ConsoleClient(self)

    def sign_in(self, name: str, role: Role = "operator") -> "ConsoleClient":
        """Returns a client that is signed in as a new operator."""
        client = ConsoleClient(self)
        assert client.post("/sign-in", token=self.add_operator(name, role)).status_code == 303
        return client


class ConsoleClient:
    """Acts like a browser without JavaScript: keeps cookies, and sends the `Origin` header of the console's pages."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.http = httpx.Client(base_url=console.origin, verify=False, timeout=15)
        console.clients.append(self)

    def get(self, path: str, **headers: str) -> httpx.Response:
        return self.http.get(path, headers=headers)

    def post(self, path: str, **fields: Any) -> httpx.Response:
        """Sends a form. A field may have several values."""
        return self.http.post(path, data=fields, headers={"Origin": self.console.origin})

    def submit(self, path: str, **fields: Any) -> httpx.Response:
        """Sends a form, which must succeed, and returns the page that it redirects to."""
        done = self.post(path, **fields)
        assert done.status_code == 303, text_of(done)
        return self.get(done.headers["location"])

    def add_pet(self, name: str, environment: Environment = "live", status: str = "available") -> int:
        """Adds an animal and returns its id."""
        page = self.submit(f"/{environment}/animals", name=name, categoryId="7", status=status)
        found = re.search(r"Animal (\d+) was added", page.text)
        assert found is not None, text_of(page)
        return int(found[1])

    def create_key(self, environment: Environment = "live", **fields: Any) -> tuple[str, str]:
        """Creates a key and returns its id and secret."""
        defaults = {"name": "Ada", "plan": "free", "scope": ["read", "write"]}
        page = self.submit(f"/{environment}/keys", **{**defaults, **fields})
        secret = re.search(r'<code id="secret">(\w+)</code>', page.text)
        assert secret is not None, text_of(page)
        return page.url.path.rpartition("/")[2], secret[1]


def text_of(response: httpx.Response) -> str:
    """Returns the text of a page without tags."""
    body = re.sub(r"<(script|style|head)\b.*?</\1>", "", response.text, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())


def is_sign_in_page(response: httpx.Response) -> bool:
    return "Sign in · Petstore console" in response.text and 'name="token"' in response.text


def cells(response: httpx.Response, label: str) -> list[str]:
    """Returns the text of each table cell with this label."""
    found = re.findall(rf'<td[^>]*data-label="{label}"[^>]*>(.*?)</td>', response.text, re.DOTALL)
    return [" ".join(html.unescape(re.sub(r"<[^>]+>", " ", cell)).split()) for cell in found]


def next_rows(client: ConsoleClient, page: httpx.Response) -> httpx.Response | None:
    """Loads more rows, as scrolling to the end of a table does. Returns None if there are no more."""
    found = re.search(r'hx-get="([^"]+)" hx-trigger="revealed"', page.text)
    return client.get(html.unescape(found[1])) if found else None


@contextlib.contextmanager
def running_console(server: Server, *options: str, scheme: str = "http") -> Iterator[Console]:
    console = Console(server, *options, scheme=scheme)
    try:
        console.wait_until_ready()
        yield console
    finally:
        assert console.stop() == 0, console.output.read_text()
