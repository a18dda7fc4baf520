"""Rules that apply to all code."""

import ast
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import petstore

ROOT = Path(__file__).parents[2]
TOOLS = [file.stem for file in sorted((ROOT / "tools").glob("*.py")) if "__main__" in file.read_text()]
ANCESTORS_MAX = 2


def test_no_class_has_many_ancestors_of_ours() -> None:
    """Composition instead of inheritance makes methods easy to find. Only the error tree may be deeper."""
    modules = [found.name for found in pkgutil.walk_packages(petstore.__path__, "petstore.")]
    deep = []
    for name in modules:
        if name.endswith("__main__"):
            continue
        for _, kind in inspect.getmembers(importlib.import_module(name), inspect.isclass):
            ancestors = [each for each in kind.__mro__[1:] if each.__module__.startswith("petstore")]
            if len(ancestors) > ANCESTORS_MAX and not issubclass(kind, BaseException):
                deep.append(f"{kind.__module__}.{kind.__qualname__}: {len(ancestors)}")
    assert len(modules) > 50 and deep == []


@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_that_is_asked_for_help_only_prints_it(tool: str) -> None:
    done = subprocess.run([sys.executable, "-m", f"tools.{tool}", "--help"], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("usage: ")


def test_no_pattern_repeats_a_group_possessively() -> None:
    """Python 3.11.0 to 3.11.4 match such patterns incorrectly. Repeating a character class possessively is safe."""
    found = []
    for file in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
                text = node.value.decode("latin-1") if isinstance(node.value, bytes) else node.value
                without_classes = re.sub(r"\[(?:\\.|[^\]\\])*\]", "", text)
                if re.search(r"\)[*+?]\+", without_classes):
                    found.append(f"{file.relative_to(ROOT)}:{node.lineno}")
    assert found == []
