"""The client's documents: the examples print what their comments say, and the reference is complete."""

import contextlib
import inspect
import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from packaging.requirements import Requirement

import petstore_client
from examples import CLIENT, EXAMPLES, README, REFERENCE
from harness.servers import Server, serving
from petstore.keys import Environment
from petstore.operations import OPERATIONS
from petstore.plans import Limits
from petstore.web.documents import openapi_document
from petstore_client import AsyncPetstore, Attempt, Page, Pet, PetStatus, Petstore, PetstoreError, RateLimit, Wait
from petstore_client._errors import CLASSES

ROOT = CLIENT.parent


def snake_case(name: str) -> str:
    return re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", name)


METHODS = [snake_case(each.name) for each in OPERATIONS]
PUBLIC = [name for name in petstore_client.__all__ if not name.startswith("__")]


def test_the_documents_have_thirteen_examples() -> None:
    assert len(EXAMPLES) == 13


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path / "data") as server:
        yield server


@pytest.mark.thorough
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs_with_a_free_key_and_prints_what_it_says(name: str, fresh: Server, tmp_path: Path) -> None:
    environment: Environment = "staging" if "Prefer" in EXAMPLES[name] else "live"
    key = fresh.key("free", environment=environment)
    variables = {"PETSTORE_API_KEY": key.secret, "PETSTORE_BASE_URL": fresh.url("", environment)}
    (tmp_path / "animals.csv").write_text("name,category\nRex,1\nAda,2\nBo,1\n")  # for the job
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", EXAMPLES[name]],
        cwd=tmp_path, env=os.environ | variables, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    expected = re.findall(r"→ ([^→\n]+?)\s*(?=→|$)", EXAMPLES[name], re.MULTILINE)
    assert expected, "an example must say what it prints"
    assert done.stdout.splitlines() == expected


@pytest.mark.thorough
def test_the_mirror_of_the_readme_resumes_after_an_interruption(fresh: Server, tmp_path: Path) -> None:
    (example,) = (text for text in EXAMPLES.values() if "mirror.jsonl" in text)
    variables = {"PETSTORE_API_KEY": fresh.key().secret, "PETSTORE_BASE_URL": fresh.url("")}

    def mirror(program: str) -> list[int]:
        command = [sys.executable, "-W", "error", "-c", program]
        subprocess.run(command, cwd=tmp_path, env=os.environ | variables, capture_output=True, timeout=60)
        lines = (tmp_path / "mirror.jsonl").read_bytes().splitlines()
        return [json.loads(line)["id"] for line in lines]

    fresh.fill(250)
    killed_before_the_state_is_saved = "import os\n" + example.replace("mirror.flush()", "mirror.flush(), os._exit(9)")
    killed_after_the_first_page = "import os\n" + example.replace("replace(state)", "replace(state), os._exit(9)")
    assert len(mirror(killed_before_the_state_is_saved)) == 100
    assert len(mirror(killed_after_the_first_page)) == 100
    assert len(mirror(killed_before_the_state_is_saved)) == 200
    assert mirror(example) == list(range(1, 251))
    fresh.fill(30)
    assert mirror(example) == list(range(1, 281)), "the mirror must add new animals"
    (tmp_path / "mirror.jsonl").unlink()
    assert mirror(example) == list(range(1, 281)), "without the file, the mirror must start over"
    (tmp_path / "mirror.jsonl").write_bytes(b"{")
    assert mirror(example) == list(range(1, 281)), "if the file was truncated, the mirror must start over"


@pytest.mark.thorough
def test_the_job_of_the_readme_survives_kills_of_the_service_and_of_itself(tmp_path: Path) -> None:
    (example,) = (text for text in EXAMPLES.values() if "job-state.json" in text)
    names = [f"Pet {number}" for number in range(1500)]
    (tmp_path / "animals.csv").write_text(
        "".join(f"{line}\n" for line in ["name,category", *(f"{n},1" for n in names)])
    )
    state = tmp_path / "job-state.json"

    def progress() -> int:
        with contextlib.suppress(FileNotFoundError):
            return int(json.loads(state.read_text())["done"])
        return -1

    def wait_for(row: int) -> None:
        while progress() < row:
            assert job.poll() is None, "the job ended early"
            time.sleep(0.005)

    with contextlib.ExitStack() as stack:
        server = stack.enter_context(serving(tmp_path / "data"))
        key = server.key().secret
        variables = {"PETSTORE_API_KEY": key, "PETSTORE_BASE_URL": server.url("")}

        def start() -> subprocess.Popen[str]:
            command = [sys.executable, "-W", "error", "-c", example]
            started = subprocess.Popen(
                command, cwd=tmp_path, env=os.environ | variables, stdout=subprocess.PIPE, text=True
            )
            stack.callback(started.kill)
            return started

        job = start()
        wait_for(200)
        server.kill()
        server.start()
        wait_for(500)
        job.kill()
        job.communicate()
        job = start()
        wait_for(900)
        server.kill()
        server.start()
        output, _ = job.communicate(timeout=120)
        assert job.returncode == 0
        assert output.splitlines()[-1] == "1500 animals added, rejected: []"
        assert not state.exists()
        with Petstore(key, base_url=server.url("")) as store:
            assert [pet.name for pet in store.list_pets()] == names, "nothing is lost or added twice"


@pytest.mark.thorough
def test_ctrl_c_in_the_pool_of_the_readme_does_not_wait_for_the_pause(fresh: Server, tmp_path: Path) -> None:
    (example,) = (text for text in EXAMPLES.values() if "ThreadPoolExecutor" in text)
    program = example.replace("range(50)", "range(5000)")
    key = fresh.key("enterprise", Limits(20, 100_000)).secret
    variables = {"PETSTORE_API_KEY": key, "PETSTORE_BASE_URL": fresh.url("")}
    command = [sys.executable, "-c", program]
    with subprocess.Popen(
        command, cwd=tmp_path, env=os.environ | variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("waiting ")
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        assert time.monotonic() - began < 10
        assert "KeyboardInterrupt" in errors


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_is_in_the_reference_and_has_a_docstring(name: str) -> None:
    assert f"`{name}`" in REFERENCE
    item = getattr(petstore_client, name)
    if inspect.isclass(item):
        assert item.__doc__
        for attribute, value in vars(item).items():
            if not attribute.startswith("_") and (inspect.isfunction(value) or isinstance(value, property)):
                assert inspect.getdoc(value), f"{name}.{attribute}"


@pytest.mark.parametrize("client", [Petstore, AsyncPetstore])
def test_every_option_is_in_the_reference_with_its_default(client: type) -> None:
    parameters = list(inspect.signature(client).parameters.values())
    rows = dict(re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| (.+?) \|", REFERENCE, re.MULTILINE))
    documented = {name: default for names, default in rows.items() for name in re.findall(r"`(\w+)`", names)}
    for parameter in parameters:
        assert parameter.name in documented
        if isinstance(parameter.default, int | float):
            assert documented[parameter.name] == f"`{parameter.default}`"
    assert inspect.getdoc(Petstore) is not None
    for parameter in parameters:
        assert parameter.name in str(inspect.getdoc(Petstore)), "every option must be in the docstring"


def test_the_options_in_the_readme_have_their_defaults() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (\S+) \|", README, re.MULTILINE))
    parameters = inspect.signature(Petstore).parameters
    assert rows.keys() == parameters.keys() - {"http_client", "transport"}  # for special cases
    for name, shown in rows.items():
        default = parameters[name].default
        assert shown == ("none" if default is None else f"`{default}`") or shown == f"`PETSTORE_{name.upper()}`"
    pages = inspect.signature(Petstore.list_pets).parameters["page_size"].default
    sentence = f"A page contains up to {pages} animals, which is the maximum, unless you set `page_size`."
    assert sentence in " ".join(README.split())


def test_the_readme_needs_no_other_file() -> None:
    """The README is also the package's page on a registry, where relative links would be broken."""
    assert re.findall(r"\]\((?!#|https://)[^)]*\)", README) == []


@pytest.mark.parametrize("name", [*METHODS, "with_options"])
def test_every_method_is_in_the_reference_with_its_signature_and_is_the_same_in_both_clients(name: str) -> None:
    sync, of_async = (inspect.signature(getattr(client, name)) for client in (Petstore, AsyncPetstore))
    assert sync.parameters == of_async.parameters, "the type checker checks the type of a key function"
    bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in sync.parameters.values()]
    shown = str(inspect.Signature(bare[1:]))
    assert f"`{name}{shown}`" in REFERENCE, f"docs/reference/client.md: add `{name}{shown}` to the table of methods"


def test_the_members_of_an_animal_are_those_of_the_interface() -> None:
    schemas = openapi_document("/v1", "/staging/v1", 0)["components"]["schemas"]
    members = [field.encode_name for field in msgspec.structs.fields(Pet)]
    assert members == list(schemas["Pet"]["properties"]), "the members of the client's Pet differ from the service's"
    arguments = inspect.signature(Petstore.create_pet).parameters
    assert [name for name in schemas["NewPet"]["properties"] if snake_case(name) not in arguments] == []
    assert [status.value for status in PetStatus] == schemas["PetStatus"]["enum"]


@pytest.mark.parametrize("code", CLASSES)
def test_every_code_is_in_the_reference_next_to_its_class(code: str) -> None:
    assert re.search(rf"^\| [│├└ ]*`{CLASSES[code].__name__}` \|[^|]*`{code}`", REFERENCE, re.MULTILINE)


def test_every_field_of_the_types_is_in_the_reference() -> None:
    for kind in (Pet, Page, RateLimit, Attempt, Wait):
        row = re.search(rf"^\| `{kind.__name__}` \| (.+) \|$", REFERENCE, re.MULTILINE)
        assert row is not None
        assert [name for name in kind.__struct_fields__ if f"`{name}`" not in row[1]] == []
    assert all(f"`{status.name}`" in REFERENCE for status in petstore_client.PetStatus)


def test_every_error_class_says_when_it_is_raised() -> None:
    errors = [item for name in PUBLIC if inspect.isclass(item := getattr(petstore_client, name))]
    assert all(vars(error).get("__doc__") for error in errors if issubclass(error, PetstoreError))


def test_every_relative_link_of_the_documents_exists() -> None:
    for document in (CLIENT / "README.md", CLIENT / "CHANGELOG.md", ROOT / "docs/reference/client.md"):
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", document.read_text()):
            if "://" not in target:
                assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_the_documents_name_the_wheel_and_no_package_of_a_registry() -> None:
    """On a public registry, anyone could publish a package with this name."""
    texts = [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("client/*.md"),
        *ROOT.glob("src/petstore/**/*.*"),
    ]
    texts = [path for path in texts if path.suffix in (".md", ".py", ".js", ".html", ".yaml")]
    assert len(texts) > 100
    command = re.compile(r"(?:pip3?|uv|pipx|poetry) (?:install|add) (?:-\S+ )*['\"]?petstore(?!\S*\.whl)")
    assert [path.name for path in texts if command.search(path.read_text())] == []


def test_the_readme_names_the_current_version_and_lines_that_pip_accepts() -> None:
    versions = re.findall(r"petstore_client-(.+?)-py3-none-any\.whl", README)
    assert set(versions) == {petstore_client.__version__}
    (lines,) = re.findall(r"^```text\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    (table,) = re.findall(r"^```toml\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    path, *given = [line.split("    #")[0] for line in lines.splitlines()] + tomllib.loads(table)["dependencies"]
    assert path.startswith("./") and len(given) == 2
    for requirement in map(Requirement, given):
        assert requirement.name == "petstore-client"
        assert requirement.url


def test_the_distribution_needs_httpx_msgspec_and_typing_extensions() -> None:
    project = tomllib.loads((CLIENT / "pyproject.toml").read_text())["project"]
    assert {re.split(r"[<>=]", needed)[0] for needed in project["dependencies"]} == {
        "httpx2",
        "msgspec",
        "typing-extensions",
    }
    assert (CLIENT / "src/petstore_client/py.typed").exists()


def test_importing_the_package_does_not_import_httpx() -> None:
    """Importing httpx2 takes longer than importing the package, and some programs never create a client."""
    script = "import sys, petstore_client; sys.exit('httpx2' in sys.modules or 'asyncio' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 0
