"""No regular expression takes more than linear time, whatever text a client, a server or a file contains."""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backtracking import too_slow

pytestmark = pytest.mark.static

ROOT = Path(__file__).parents[2]
METHODS = {"match", "fullmatch", "search", "findall", "finditer", "sub", "subn", "split"}


def patterns(module: str, file: Path) -> Iterator[tuple[int, str | bytes, int, str]]:
    """Yields the line, the pattern, the flags and the method of each use of `re` in a module."""
    tree = ast.parse(file.read_text())
    methods = {node.value: node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        match node:
            case ast.Call(ast.Attribute(ast.Name("re"), method), [pattern, *_]) if method in {*METHODS, "compile"}:
                values = vars(importlib.import_module(module))
                text = eval(compile(ast.Expression(pattern), module, "eval"), values)
                assert isinstance(text, str | bytes)
                named = [
                    each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute) and each.attr.isupper()
                ]
                flags = sum(getattr(re, each) for each in named)
                # A pattern that is compiled without naming a method can be used for a search.
                yield node.lineno, text, flags, methods.get(node, "search") if method == "compile" else method


def test_no_pattern_takes_more_than_linear_time() -> None:
    faults, count = [], 0
    for source in (ROOT / "src", ROOT / "client/src"):
        for file in sorted(source.rglob("*.py")):
            module = ".".join(file.relative_to(source).with_suffix("").parts).removesuffix(".__init__")
            for line, text, flags, method in patterns(module, file):
                count += 1
                if fault := too_slow(text, flags, method):
                    faults.append(f"{file.relative_to(ROOT)}:{line} {method} {text!r} can take {fault}")
    assert faults == []
    assert count > 40


@pytest.mark.parametrize(
    ("pattern", "method", "fault"),
    [
        ("(a+)+b", "match", "exponential"),
        ("(a|b*)*c", "match", "exponential"),
        ("(ab|a|b)*c", "match", "exponential"),
        (r'"(?:[^"\\]+|\\.)*"', "match", "exponential"),
        (r'"(?:[^"\\]|\\.)*"', "match", ""),
        (r'"(?:[^"\\]|\\.)*"', "search", "quadratic"),  # for \"\"\"\" without a closing quotation mark
        (r'"(?:[^"\\]+|\\.)*"?', "search", ""),  # cannot fail after the first character
        (r'"(?:[^"\\]+|\\.)*"?', "fullmatch", "exponential"),
        ("<([^>]*)>", "findall", "quadratic"),
        ("<([^<>]*)>", "findall", ""),
        ("a*b", "match", ""),
        ("a*a*", "match", ""),
        ("a*a*", "fullmatch", "quadratic"),
        ("a*+a*b", "fullmatch", ""),  # possessive
        (r"\s*;?\s*", "fullmatch", "quadratic"),
        (r"\s*;\s*", "fullmatch", ""),
        ("[ax](?:a*b)*", "findall", "quadratic"),
        ("^.+:80$", "search", ""),
        (".+:80$", "search", "quadratic"),
        ("(?<![^&])(a|[^&=]*%[^&=]*)=", "findall", "quadratic"),
        ("(?<![^&])(a|[^&=%]*%[^&=]*)=", "findall", ""),
        ("a{1,9}a{1,9}b", "match", ""),
        ("a{1,5000}a{1,5000}b", "match", "quadratic"),
    ],
)
def test_a_slow_pattern_is_found(pattern: str, method: str, fault: str) -> None:
    assert too_slow(pattern, 0, method).partition(" ")[0] == fault
