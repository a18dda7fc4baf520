"""Settings: their options and variables, which values are refused, and whether messages name the option."""

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import click
import pytest
from click.core import ParameterSource

import petstore
from petstore.cli.serve import serve
from petstore.errors import OperatorError
from petstore.settings import DECLARED, Settings

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


@pytest.mark.parametrize("name", [name for name, (kind, _) in DECLARED.items() if kind is int])
def test_a_number_is_refused_outside_its_range(name: str) -> None:
    option = DECLARED[name][1]
    assert option.least < option.most
    words = f"--{name.replace('_', '-')}"
    for value in (option.least, option.most):
        assert serve.make_context("petstore", [words, str(value)]).params[name] == value
    for value in (option.least - 1, option.most + 1):
        with pytest.raises(click.BadParameter) as refused:
            serve.make_context("petstore", [words, str(value)])
        assert refused.value.message == f"'{value}' is not a whole number from {option.least:,} to {option.most:,}."


@pytest.mark.parametrize("name", DECLARED)
def test_a_setting_can_be_given_as_a_variable(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, option = DECLARED[name]
    value = {int: str(option.least), bool: "1"}.get(kind) or (get_args(kind)[0] if get_origin(kind) is Literal else "x")
    monkeypatch.setenv(f"PETSTORE_{name.upper()}", value)
    assert serve.make_context("petstore", []).get_parameter_source(name) is ParameterSource.ENVIRONMENT


def test_by_default_there_is_one_worker_per_core_that_may_be_used() -> None:
    script = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); from petstore.settings import Settings"
    )
    done = subprocess.run([sys.executable, "-c", script + "; print(Settings().workers)"], capture_output=True)
    assert done.stdout.strip() == b"1"
    assert 1 <= Settings().workers <= 8


def _settings_read() -> set[str]:
    """Returns the NAME of each `settings.NAME` in all modules except settings.py."""
    sources = [file for file in Path(petstore.__file__).parent.rglob("*.py") if file.name != "settings.py"]
    found = (node for file in sources for node in ast.walk(ast.parse(file.read_text())))
    return {
        node.attr for node in found if isinstance(node, ast.Attribute) and ast.unparse(node.value).endswith("settings")
    }


READ = _settings_read()


@pytest.mark.parametrize("name", DECLARED)
def test_a_setting_is_used(name: str) -> None:
    assert name in READ, f"no module reads settings.{name}"


def test_the_defaults_and_what_the_documents_show_are_valid() -> None:
    Settings().check()
    Settings(
        public_url="https://api.example.com",
        staging_url="https://staging.example.com",
        cors_origins=("https://shop.test",),
    ).check()
