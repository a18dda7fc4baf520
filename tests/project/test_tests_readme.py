"""tests/README.md lists all fixtures, and its examples pass unchanged."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from prove.proof import SHORT

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
README = (TESTS / "README.md").read_text()
TEST_EXAMPLE, PROOF_EXAMPLE = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def fixtures() -> set[str]:
    """Returns the fixtures that a conftest.py provides for other files."""
    return {
        node.name
        for file in TESTS.rglob("conftest.py")
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.FunctionDef)
        and any(ast.unparse(decorator).startswith("pytest.fixture") for decorator in node.decorator_list)
    }


def test_the_readme_names_every_fixture_and_no_other() -> None:
    table = re.search(r"## Fixtures\n(.*?)\n## ", README, re.DOTALL)
    assert table is not None
    rows = [line.split("|") for line in table[1].splitlines() if line.startswith("| `")]
    first_column = {name for row in rows for name in re.findall(r"`(\w+)`", row[1])}
    assert first_column - fixtures() == set()
    assert fixtures() - set(re.findall(r"`(\w+)`", table[1])) == set()


@pytest.mark.thorough
def test_examples_of_the_readme_pass(tmp_path: Path) -> None:
    file = tmp_path / "test_examples.py"
    file.write_text(TEST_EXAMPLE)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "tests.web.conftest",
         "--config-file", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT), "-q", str(file)],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "10 passed" in done.stdout, done.stdout  # 1, 2 on both backends, 6 on both pairs, and 1 in the browser


@pytest.mark.thorough
@pytest.mark.parametrize("plant", [False, True])
def test_the_proof_of_the_readme_holds_and_finds_its_fault(plant: bool) -> None:
    names: dict[str, object] = {}
    exec(compile(PROOF_EXAMPLE, "tests/README.md", "exec"), names)  # a trusted document
    prove = names["prove"]
    assert callable(prove)
    if plant:
        with pytest.raises(AssertionError, match="is there after a kill"):
            prove(SHORT._replace(plant=True))
    else:
        assert prove(SHORT) == {"kills": SHORT.kills, "lost": 0}
