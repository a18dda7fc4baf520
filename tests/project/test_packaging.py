"""Releases and installations: archives, lock files, the SBOM, and the check for advisories."""

import email
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from harness.commands import Commands
from harness.servers import Server
from petstore import __version__
from petstore.cli.deploy_files import DOCUMENTS
from tools import advisories, dist

ROOT = Path(__file__).parents[2]
PROJECTS = {"service": ROOT, "client": ROOT / "client"}
LOCKS = sorted(ROOT.glob("requirements*.lock"))
EPOCH = 1_700_000_000


def pyproject(project: Path) -> Any:
    return tomllib.loads((project / "pyproject.toml").read_text())


def locked(name: str) -> dict[str, str]:
    """Returns the versions in a lock file by package name."""
    return dict(re.findall(r"(?m)^([a-z0-9._-]+)==([^\s;]+)", (ROOT / name).read_text()))


def names(requirements: list[Any]) -> set[str]:
    return {canonicalize_name(Requirement(text).name) for text in requirements if isinstance(text, str)}


def tracked(directory: str) -> list[str]:
    """Returns the files of the repository, including those that are not committed yet."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", directory]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [name for name in listed.splitlines() if (ROOT / name).is_file()]


# Archives


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("dist")
    for project in PROJECTS.values():
        dist.build(project, made, EPOCH)
    return made


@pytest.mark.thorough
def test_the_same_source_gives_the_same_bytes_elsewhere_and_later(
    archives: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Builds in another directory, where the files were created in another order and have other permissions."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    for name in reversed(tracked(".")):
        copy = tmp_path / "copy" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, copy)
        copy.chmod(0o700 if os.access(ROOT / name, os.X_OK) else 0o600)
    for project in ("", "client"):
        dist.build(tmp_path / "copy" / project, tmp_path / "again", EPOCH)
    again = sorted((tmp_path / "again").iterdir())
    assert len(again) == 4
    assert [file.name for file in again if file.read_bytes() != (archives / file.name).read_bytes()] == []


def test_the_image_is_built_from_the_same_wheel(archives: Path, tmp_path: Path) -> None:
    """Builds the wheel from the files that .dockerignore does not exclude, as the Containerfile does."""
    _, *exceptions = (ROOT / ".dockerignore").read_text().split()
    admitted = tuple(line.removeprefix("!") for line in exceptions if line.startswith("!"))
    for name in tracked("."):
        if name in admitted or name.startswith(tuple(f"{path}/" for path in admitted)):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / name)
    dist.build(tmp_path, tmp_path / "dist", EPOCH, ("wheel",))
    (wheel,) = (tmp_path / "dist").iterdir()
    assert wheel.read_bytes() == (archives / wheel.name).read_bytes()


def test_without_git_files_have_the_time_of_the_changelog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    monkeypatch.setattr(dist, "ROOT", tmp_path)
    (tmp_path / "CHANGELOG.md").touch()
    os.utime(tmp_path / "CHANGELOG.md", (EPOCH, EPOCH))
    assert dist.source_date_epoch() == EPOCH


def test_the_wheel_has_every_file_of_the_package_and_of_deploy(archives: Path) -> None:
    packed = set(zipfile.ZipFile(next(archives.glob("petstore-*.whl"))).namelist())
    wanted = [name.removeprefix("src/") for name in tracked("src/petstore")]
    wanted += [f"petstore/{name}" for name in tracked("deploy") if "/container/" not in name]
    documents = (*tracked("docs/monitoring"), *DOCUMENTS)
    wanted += [f"petstore/deploy/{name.removeprefix('docs/')}" for name in documents]
    assert [name for name in wanted if name not in packed] == []
    assert len(packed) == len(set(wanted)) + len([name for name in packed if ".dist-info/" in name])


@pytest.mark.parametrize("name", ["petstore", "petstore_client"])
def test_the_metadata_say_what_it_is_and_where_it_runs(name: str, archives: Path) -> None:
    with zipfile.ZipFile(next(archives.glob(f"{name}-*.whl"))) as wheel:
        (metadata,) = [entry for entry in wheel.namelist() if entry.endswith(".dist-info/METADATA")]
        about = email.message_from_bytes(wheel.read(metadata))
    assert about["License-Expression"] == "MIT"
    assert about["License-File"] == "LICENSE"
    assert about["Requires-Python"] == ">=3.11"
    assert about["Description-Content-Type"] == "text/markdown"
    assert len(str(about.get_payload())) > 1_000
    assert {f"Programming Language :: Python :: 3.{minor}" for minor in (11, 12, 13, 14)} <= set(
        about.get_all("Classifier") or ()
    )
    assert {url.partition(",")[0] for url in about.get_all("Project-URL") or ()} >= {
        "Homepage",
        "Documentation",
        "Source",
    }


def test_the_sbom_follows_its_schema_and_names_every_part() -> None:
    text = dist.sbom(EPOCH)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    document = json.loads(text)
    assert document["metadata"]["component"]["version"] == __version__
    parts = {part["name"]: part["version"] for part in document["components"]}
    assert locked("requirements.lock").items() <= parts.items()
    vendored = {file.read_text().split()[0] for file in (ROOT / "src").rglob("VERSION")}
    assert parts.keys() == locked("requirements.lock").keys() | vendored
    assert dist.sbom(EPOCH) == text


# Lock files


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_a_lock_file_has_digests_and_names_no_index_and_no_host(lock: Path) -> None:
    blocks = re.split(r"(?m)^(?=\S)", lock.read_text())[1:]
    assert len(blocks) > 5
    form = r"[a-z0-9._-]+==[^\s;]+( ; [^\\]+)?( \\\n    --hash=sha256:[0-9a-f]{64})+\n"
    assert [block for block in blocks if not re.fullmatch(form, block)] == []


def test_every_dependency_is_locked() -> None:
    project, client = pyproject(ROOT), pyproject(ROOT / "client")["project"]
    runtime = [*project["project"]["dependencies"], *chain(*project["project"]["optional-dependencies"].values())]
    assert names(runtime) <= locked("requirements.lock").keys()
    wanted = [*runtime, *client["dependencies"], *chain(*project["dependency-groups"].values())]
    assert names(wanted) <= locked("requirements-dev.lock").keys()


def test_the_lock_files_agree() -> None:
    every = locked("requirements-dev.lock")
    for name in ("requirements.lock", "requirements-build.lock"):
        assert {package for package, version in locked(name).items() if every.get(package, version) != version} == set()


def test_the_build_backend_is_pinned_alike_for_both_projects() -> None:
    wanted = [pyproject(project)["build-system"]["requires"] for project in PROJECTS.values()]
    assert (
        wanted[0] == wanted[1] == [f"{name}=={version}" for name, version in locked("requirements-build.lock").items()]
    )


# petstore deploy-files


def test_deploy_files_writes_every_file_and_units_that_start_this_command(tmp_path: Path) -> None:
    written = Commands(Server(tmp_path)).text("deploy-files", str(tmp_path / "new")).splitlines()
    expected = [
        *(ROOT / "deploy").glob("*.*"),
        *(ROOT / "docs/monitoring").iterdir(),
        *(ROOT / name for name in DOCUMENTS),
    ]
    assert {Path(name).name for name in written} == {file.name for file in expected}
    assert len(written) == len(expected)
    unit = (tmp_path / "new/petstore.service").read_text()
    (program,) = re.findall(r"(?m)^ExecStart=(\S+) serve$", unit)
    assert Path(program).is_file()
    assert os.access(tmp_path / "new/petstore.sh", os.X_OK)


def test_deploy_files_replaces_nothing_unless_forced(tmp_path: Path) -> None:
    commands = Commands(Server(tmp_path))
    (tmp_path / "petstore.env").write_text("mine")
    assert "petstore.env; use --force" in commands.fails_in_one_line("deploy-files", str(tmp_path))
    assert [file.name for file in tmp_path.iterdir() if file.is_file()] == ["petstore.env"]
    commands.text("deploy-files", str(tmp_path), "--force")
    assert (tmp_path / "petstore.env").read_text() == (ROOT / "deploy/petstore.env").read_text()


def test_deploy_files_prints_only_files_that_changed(tmp_path: Path) -> None:
    commands = Commands(Server(tmp_path))
    commands.text("deploy-files", str(tmp_path / "new"))
    changed = tmp_path / "new/nginx.conf"
    changed.write_bytes(b"of an earlier version \xff")
    assert commands.text("deploy-files", str(tmp_path / "new"), "--force").split() == [str(changed)]
    assert changed.read_text() == (ROOT / "deploy/nginx.conf").read_text()


def test_what_the_files_name_is_written_with_them(tmp_path: Path) -> None:
    commands = Commands(Server(tmp_path))
    commands.text("deploy-files", str(tmp_path / "new"))
    written = {file.name: file.read_text() for file in (tmp_path / "new").iterdir()}
    for name, text in written.items():
        if not name.endswith(".md"):  # documents may link to documents that exist only in a checkout
            assert "docs/" not in re.sub("https?://\\S+|/docs/?\\b", "", text), name
    for named in ("settings.md", "at-3-am.md", "petstore-alerts.yml"):
        assert any(named in text for name, text in written.items() if name != named)
        assert named in written
    runbook = re.findall(r"(?m)^#+ (.+)$", written["at-3-am.md"])
    anchors = {re.sub("[^a-z0-9 -]", "", title.lower()).replace(" ", "-") for title in runbook}
    assert set(re.findall(r"runbook: (\S+)", written["petstore-alerts.yml"])) <= anchors


# Building


def test_make_dist_installs_no_browser() -> None:
    planned = subprocess.run(
        ["make", "--dry-run", "--always-make", "dist"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert "requirements.lock" in planned and "requirements-dev.lock" not in planned
    assert "tools.dist" in planned
    wanted = locked("requirements.lock").keys() | locked("requirements-build.lock").keys()
    assert "packaging" in wanted and "playwright" not in wanted
    for line in (ROOT / "tools/dist.py").read_text().splitlines():
        if found := re.match(r"(?:from|import) (\w+)", line):
            assert found[1] in {*sys.stdlib_module_names, "packaging", "petstore"}, line


# Advisories


@pytest.mark.parametrize(
    ("report", "optional", "code", "says"),
    [
        ([{"name": "a", "version": "1", "vulns": []}], False, 0, "1 packages looked up, 0 advisories"),
        ([{"name": "a", "version": "1", "vulns": [{"id": "X-1"}]}], True, 1, "a 1 has X-1"),
        ([{"name": "a", "version": "1", "vulns": []}, {"name": "b", "skip_reason": "?"}], False, 1, "NOT LOOKED UP: 1"),
        (None, False, 1, "NOT LOOKED UP: all packages"),
        (None, True, 0, "NOT LOOKED UP: all packages"),
    ],
    ids=["clean", "found", "partly", "unreachable", "excused"],
)
def test_the_advisory_check_fails_where_it_could_not_look(
    report: Any, optional: bool, code: int, says: str,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """The test replaces the output of pip-audit, because the advisory service might be unreachable."""
    printed = "" if report is None else json.dumps({"dependencies": report})
    (tmp_path / "pip_audit.py").write_text(f"print({printed!r})")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("ADVISORIES", "optional" if optional else "required")
    assert advisories.main() == code
    assert says in capsys.readouterr().out
