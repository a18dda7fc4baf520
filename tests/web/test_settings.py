"""Validation of settings, without a command line: which values are refused, and whether messages name the option."""

import ast
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

import petstore
from petstore.cli.serve import serve
from petstore.errors import OperatorError
from petstore.settings import RANGES, Settings

REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("--tls-cert and --tls-key", {"tls_cert": Path("cert.pem")}),
    ("--trusted-proxy proxy", {"trusted_proxies": ("10.0.0.0/8", "proxy")}),
    ("--metrics-from 10.0.0.0/99", {"metrics_from": ("10.0.0.0/99",)}),
    ("--ban-seconds", {"ban_seconds": 60, "ban_ceiling": 59}),
    ("--cors-origin shop.example.com", {"cors_origins": ("*", "shop.example.com")}),
    ("--cors-origin https://me@shop", {"cors_origins": ("https://me@shop.example.com",)}),
    ("--public-url api.example.com", {"public_url": "api.example.com"}),
    ("--public-url https://x/v1/: remove /v1", {"public_url": "https://x/v1/"}),
    ("--staging-url https://staging.example.com:80a", {"staging_url": "https://staging.example.com:80a"}),
    ("must be ASCII", {"staging_url": "https://bücher.example"}),
    ("different hosts", {"public_url": "https://a.example", "staging_url": "https://A.example:443"}),
]


@pytest.mark.parametrize(("message", "settings"), REFUSED, ids=[message for message, _ in REFUSED])
def test_a_setting_that_breaks_a_rule_is_named(message: str, settings: dict[str, Any]) -> None:
    with pytest.raises(OperatorError) as refused:
        Settings(**settings).check()
    assert message in str(refused.value)


def test_a_password_in_a_url_is_not_repeated() -> None:
    with pytest.raises(OperatorError) as refused:
        Settings(public_url="https://me:geheim@api.example.com").check()
    assert "geheim" not in str(refused.value)


@pytest.mark.parametrize("name", RANGES)
def test_a_number_has_the_range_of_its_option(name: str) -> None:
    least, most = RANGES[name]
    both: dict[str, Any] = {"ban_seconds": 1} if name == "ban_ceiling" else {"ban_ceiling": 10**9}
    for value in (least, most):
        Settings(**{**both, name: value}).check()
    for value in (least - 1, most + 1):
        with pytest.raises(OperatorError, match=f"^--{name.replace('_', '-')} {value}: "):
            Settings(**{**both, name: value}).check()
    kinds = [each.type for each in serve.params if each.name == name]
    assert kinds, f"cli/serve.py: add an option for {name}"
    assert isinstance(kinds[0], click.IntRange) and (kinds[0].min, kinds[0].max) == (least, most)


def _settings_read() -> set[str]:
    """Returns the NAME of each `settings.NAME` in all modules except settings.py."""
    sources = [file for file in Path(petstore.__file__).parent.rglob("*.py") if file.name != "settings.py"]
    found = (node for file in sources for node in ast.walk(ast.parse(file.read_text())))
    return {
        node.attr for node in found if isinstance(node, ast.Attribute) and ast.unparse(node.value).endswith("settings")
    }


READ = _settings_read()


@pytest.mark.parametrize("name", [field.name for field in msgspec.structs.fields(Settings)])
def test_a_setting_is_used(name: str) -> None:
    assert name in READ, f"no module reads settings.{name}"


def test_the_defaults_and_what_the_documents_show_are_valid() -> None:
    Settings().check()
    Settings(
        public_url="https://api.example.com",
        staging_url="https://staging.example.com",
        cors_origins=("https://shop.test",),
    ).check()
