"""The package and every example pass mypy and pyright in strict mode, and every public name has a complete type."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import petstore_client
from examples import CLIENT, EXAMPLES

SOURCE = CLIENT / "src"
pytestmark = pytest.mark.static


@pytest.fixture
def checked(tmp_path: Path) -> Path:
    """A directory that contains all examples as files."""
    for name, example in EXAMPLES.items():
        (tmp_path / f"{name}.py").write_text(example)
    return tmp_path


def test_mypy_strict_accepts_the_package_and_every_example(checked: Path) -> None:
    files = [SOURCE, *checked.glob("*.py")]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir", checked / "cache", *files],
        env=os.environ | {"MYPYPATH": str(SOURCE)}, cwd=checked, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def pyright(project: Path) -> subprocess.CompletedProcess[str]:
    package = os.path.relpath(SOURCE, project)
    settings = {"include": [".", package], "extraPaths": [package], "typeCheckingMode": "strict"}
    (project / "pyrightconfig.json").write_text(json.dumps(settings))
    return run_pyright("--warnings", "--pythonpath", sys.executable, "--project", str(project), cwd=project)


def run_pyright(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Runs pyright. Skips the test if that is impossible."""
    # With --verifytypes, pyright uses the packages of the first python in PATH.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        [sys.executable, "-m", "pyright", *arguments],
        cwd=cwd, env=os.environ | {"PATH": path}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    if not re.search(r"\d+ errors?, \d+ warning|completeness score", done.stdout):
        reason = f"pyright cannot run, it needs node: {done.stderr[-500:]}"
        if os.environ.get("PETSTORE_TEST_REQUIRE_ALL"):
            pytest.fail(reason)
        pytest.skip(reason)
    return done


def test_pyright_strict_accepts_the_package_and_every_example(checked: Path) -> None:
    done = pyright(checked)
    assert done.returncode == 0, done.stdout
    assert "No source files found" not in done.stdout


def test_pyright_reports_each_use_of_get_pet(checked: Path) -> None:
    (checked / "uses_get_pet.py").write_text(
        "from petstore_client import AsyncPetstore, Petstore\n\n"
        "a, b = Petstore(), AsyncPetstore()\n"
        "print(a.get_pet(1), a.with_raw_response.get_pet(1))\n"
        "print(b.get_pet(1), b.with_raw_response.get_pet(1))\n"
    )
    done = pyright(checked)
    assert done.returncode == 1
    assert done.stdout.count("reportDeprecated") == done.stdout.count(" error: ") == 4, done.stdout


def test_every_public_name_has_a_complete_type(tmp_path: Path) -> None:
    """Uses `--ignoreexternal`, because some arguments have types of httpx2, and those are not complete."""
    done = run_pyright("--verifytypes", "petstore_client", "--ignoreexternal", cwd=tmp_path)
    assert "Type completeness score: 100%" in done.stdout, done.stdout
    exported = re.search(r'exported by "petstore_client": (\d+)', done.stdout)
    assert exported is not None
    assert int(exported[1]) >= len(petstore_client.__all__), "pyright did not find the package"
