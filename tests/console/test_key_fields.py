"""The console shows and changes every field of a key that operators change, and records each change."""

import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from harness.consoles import Console, ConsoleClient, cells, text_of
from harness.servers import Server
from harness.stores import BY
from petstore.edits import field_in_words
from petstore.keys import TEXT_MAX, ApiKey, mint
from petstore.wording import when
from tests.console.test_edits import fields_of, saved_values
from tests.key_fields import TEXTS, a_key, every_field, inputs, is_value, values_of


@pytest.fixture
def path(server: Server) -> str:
    """The path of a new key's page."""
    key = a_key()
    server.act(lambda backends: backends.stores["live"].keys.create(key, mint("live"), BY))
    return f"/live/keys/{key.id}"


def stored(server: Server, path: str) -> ApiKey:
    key = server.act(lambda backends: backends.stores["live"].keys.get(path.rpartition("/")[2]))
    assert key is not None
    return key


def in_words(value: Any) -> list[str]:
    """Returns the parts of a value as a page shows them."""
    if isinstance(value, tuple):
        return list(value)
    return [when(value).removesuffix("Z") if isinstance(value, float) else str(value)]


@every_field
def test_the_form_changes_a_field_and_the_page_shows_it(
    server: Server, operator: ConsoleClient, path: str, field: str
) -> None:
    for value in values_of(field):
        form = fields_of(operator.get(path))
        entered = inputs(field, value)
        assert entered.keys() <= form.keys(), "the form has no such input: see keys/fields.html"
        page = operator.submit(path, **{**form, **entered})
        assert is_value(found := getattr(stored(server, path), field), value), "console/keys.py: _changes_of"
        again = fields_of(page)
        if not isinstance(value, float):  # the input for the expiry starts empty
            assert {name: again[name] for name in entered} == entered, "console/keys.py: _form_of"
        (heading,) = re.findall(r"<h1\b.*?</h1>", page.text, re.DOTALL)
        (facts,) = re.findall(r'<dl class="panel facts">.*?</dl>', page.text, re.DOTALL)
        shown = text_of(httpx.Response(200, text=heading + facts))
        assert [text for text in in_words(found) if text not in shown] == [], "the facts of keys/show.html"
        assert field_in_words(field) in cells(page, "Detail")[0]


@every_field
def test_the_form_shows_the_value_that_a_colleague_has_saved(
    server: Server, operator: ConsoleClient, console: Console, new_name: Callable[[], str], path: str, field: str
) -> None:
    theirs, ours = values_of(field)
    form = fields_of(operator.get(path))
    console.sign_in(new_name()).submit(path, **{**form, **inputs(field, theirs)})
    refused = operator.post(path, **{**form, **inputs(field, ours)})
    assert refused.status_code == 409
    saved = " ".join(saved_values(refused).values())
    found = getattr(stored(server, path), field)
    assert [text for text in in_words(found) if text not in saved] == [], "keys/fields.html lacks a saved_value"


@pytest.mark.parametrize("field", TEXTS)
def test_a_browser_limits_a_text(operator: ConsoleClient, path: str, field: str) -> None:
    assert re.search(rf'<input name="{field}" maxlength="{TEXT_MAX}"', operator.get(path).text), "keys/fields.html"
