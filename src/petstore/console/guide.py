"""The help page, which shows docs/console.md. The wheel contains a copy of this guide."""

import re
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from petstore.console.requests import ConsoleRequest
from petstore.console.state import ConsoleState

PACKAGED = Path(__file__).with_name("console.md")
CHECKOUT = Path(__file__).parents[3] / "docs/console.md"
TITLE_TOKENS = 3  # the tokens of the guide's title, which is skipped because the page has its own heading


async def show(request: ConsoleRequest) -> Response:
    return request.page("help.html", guide=_guide())


async def reference(request: Request) -> Response:
    """Redirects to the service's API reference."""
    state: ConsoleState = request.scope["console"]
    return RedirectResponse(f"{state.service_url}/docs")


@cache
def _guide() -> Markup:
    """Returns the guide as HTML, without images or links to other documents, which the console does not serve."""
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    text = (PACKAGED if PACKAGED.exists() else CHECKOUT).read_text("utf-8")
    tokens = markdown.parse(re.sub(r"<picture>.*?</picture>", "", text, flags=re.DOTALL))[TITLE_TOKENS:]
    for token, following in zip(tokens, [*tokens[1:], None], strict=True):
        if token.type == "heading_open" and following is not None:
            token.attrSet("id", re.sub(r"\W+", "-", following.content.lower()))
        token.children = _without_outer_links(token.children or [])
    # This is safe because the guide is part of Petstore and the parser escapes any HTML in it.
    return Markup(markdown.renderer.render(tokens, markdown.options, {}))  # noqa: S704  # nosec B704


def _without_outer_links(tokens: list[Token]) -> list[Token]:
    kept, is_outer = [], False
    for token in tokens:
        if token.type == "link_open":
            is_outer = not str(token.attrGet("href")).startswith("#")
        if token.type not in ("link_open", "link_close") or not is_outer:
            kept.append(token)
    return kept
