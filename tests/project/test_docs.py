"""The documents cover all settings, commands, events and error codes, and whatever they mention exists."""

import ast
import builtins
import json
import math
import re
import subprocess
import sys
from pathlib import Path

import apsw
import asyncpg
import httpx
import pytest

from harness.commands import Commands
from harness.servers import Server, serving
from petstore import __version__
from petstore.cli import COMMANDS
from petstore.errors import REQUEST_ERRORS, STATUS_OF_CODE
from petstore.observability.events import EVENTS
from petstore.verify.checks import CHECKS

ROOT = Path(__file__).parents[2]
API = (ROOT / "docs/api.md").read_text()
OPERATING = (ROOT / "docs/operating.md").read_text()
AT_NIGHT = (ROOT / "docs/at-3-am.md").read_text()
SCALING = (ROOT / "docs/scaling.md").read_text()
SENTENCES = (ROOT / "tests/sentences.md").read_text()


@pytest.mark.parametrize(("code", "status"), STATUS_OF_CODE.items())
def test_every_code_is_documented_with_its_status(code: str, status: int) -> None:
    assert f"| `{code}` | {status} |" in API


def test_no_code_is_documented_that_does_not_exist() -> None:
    assert set(re.findall(r"^\| `([a-z_]+)` \| \d{3} \|", API, re.MULTILINE)) == set(STATUS_OF_CODE)


def test_every_request_error_has_a_code_of_the_table() -> None:
    assert set(REQUEST_ERRORS) == set(STATUS_OF_CODE) - {"malformed_request"}  # the code for invalid HTTP


def test_the_references_are_up_to_date() -> None:
    """Runs in its own process, because other tests modify the commands whose help pages are compared."""
    words = [sys.executable, "-m", "tools.references", "--check"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


def test_every_log_event_is_in_the_table_and_no_other() -> None:
    """Finds the names of events in the code that logs them. The names of health events start with store or gate."""
    named = {f"{part} {change}" for part in ("store", "gate") for change in ("down", "back")}
    for file in (ROOT / "src").rglob("*.py"):
        text = file.read_text()
        named |= set(re.findall(r'\bevent\(\s*logging\.\w+, "([^"]+)"', text))
        named |= set(re.findall(r'(?:\.exception|Throttled)\("([^"]+)"', text))
    assert set(EVENTS) == named


def causes_in_the_handbook() -> list[str]:
    """Returns the causes of a 503 in the tables of the handbook. `…` replaces any text."""
    tables = AT_NIGHT[AT_NIGHT.index("## 503 unavailable") : AT_NIGHT.index("## 500 internal error")]
    rows = "".join(re.findall(r"(?ms)^\| cause says \|.*?\n\n", tables))
    return [cause for cell in re.findall(r"(?m)^\| (`.+?) \|", rows) for cause in re.findall("`([^`]+)`", cell)]


def causes_in_the_code() -> set[str]:
    """Returns the messages of all `Unavailable` errors in the service. `…` replaces a value."""
    found = set()
    for tree in ("store", "gate", "web"):
        for file in (ROOT / "src/petstore" / tree).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                named = ast.unparse(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""
                if isinstance(node, ast.Call) and named in ("Unavailable", "QueueFull", "failed"):
                    found |= {text_of(each) for each in node.args if isinstance(each, ast.Constant | ast.JoinedStr)}
    return found


def text_of(node: ast.Constant | ast.JoinedStr) -> str:
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    return "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in parts)


# The errors that SQLite raises because of the disk, the permissions, another program or a damaged file.
OUTAGES = {"BusyError", "CantOpenError", "CorruptError", "FullError", "IOError", "NotADBError", "PermissionsError",
           "ReadOnlyError"}  # fmt: skip
OF_THE_SYSTEM = {"No space left", "Permission denied"}


def test_the_handbook_has_every_cause_of_an_outage_and_no_other() -> None:
    said, in_code = causes_in_the_handbook(), causes_in_the_code()
    names = {cause for cause in said if re.fullmatch(r"[A-Z]\w+", cause)}
    assert names >= OUTAGES
    assert names - {*dir(apsw), *dir(builtins), *(name.removesuffix("Error") for name in dir(asyncpg))} == set()
    code = "".join(file.read_text() for file in (ROOT / "src").rglob("*.py"))
    texts = {*said} - names - OF_THE_SYSTEM
    assert [text for text in texts if any(part.strip() not in code for part in text.split("…"))] == []
    patterns = [re.escape(text).replace("…", ".*") for text in texts]
    of_drivers = "the store failed: …"  # followed by a driver's error, such as those in OUTAGES
    own = [text for text in in_code if not text.startswith(of_drivers)]
    assert len(own) > 15
    assert [text for text in own if not any(re.search(pattern, text) for pattern in patterns)] == []


def test_the_drill_works_word_by_word(tmp_path: Path) -> None:
    """Runs the commands of the guide's drill, with other paths and without the last two lines."""
    server = Server(tmp_path / "data")
    server.fill(3)
    Commands(server).text("backup", str(tmp_path / "backup.zip"))
    block = OPERATING[OPERATING.index("### The drill") :].split("```")[1]
    lines = re.findall(r"^\$ petstore (.+)$", block, re.MULTILINE)
    assert [line.split()[0] for line in lines] == ["backup", "restore", "check", "serve"]
    for line in lines[:-1]:
        words = re.sub(r"/var/backups/petstore/\S+", str(tmp_path / "backup.zip"), line)
        Commands(server).text(*words.replace("/var/lib/petstore-drill", str(tmp_path / "drill")).split())
    with serving(tmp_path / "drill") as drilled:
        key = drilled.key()
        assert len(httpx.get(drilled.url("/pets"), headers=key.headers, verify=False).json()) == 3


def test_every_command_is_in_the_handbook() -> None:
    handbook = OPERATING + AT_NIGHT
    assert [name for name in COMMANDS if f"petstore {name}" not in handbook] == []


def test_every_sentence_of_the_contract_names_tests_that_exist() -> None:
    known = {
        f"{file.relative_to(ROOT / 'tests')}::{test}"
        for file in (ROOT / "tests").rglob("test_*.py")
        for test in re.findall(r"^(?:async )?def (test_\w+)", file.read_text(), re.MULTILINE)
    }
    known |= {check.name for check in CHECKS}
    rows = re.findall(r"^\| (.+?) \| (.+?) \|$", SENTENCES, re.MULTILINE)
    assert len(rows) > 100
    for sentence, tests in rows:
        if sentence == "sentence":
            continue
        for named in re.findall(r"`([^`]+)`", tests):
            assert named in known, f"{sentence}: there is no test {named}"
        assert "`" in tests, f"{sentence}: names no test"


RECIPES = sorted((ROOT / "docs/contributing").glob("*.md"))
# The directories to which the paths in a recipe are relative.
SOURCES = (
    ROOT,
    ROOT / "src/petstore",
    ROOT / "client/src/petstore_client",
    ROOT / "src/petstore/console/templates/pets",
)
EXAMPLES = {"0002_add_breed.sql", "docs/openapi/VERSION.json", "tests/fixtures/VERSION/", "dist/"}


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: str(recipe.name))
def test_every_file_and_every_name_in_a_recipe_exists(recipe: Path) -> None:
    spans = re.findall(r"`([^`\n]+)`", recipe.read_text())
    paths = {
        span for span in spans if re.fullmatch(r"[\w./*-]+(?:\.(?:py|md|html|yaml|js|sql|json)|/)", span)
    } - EXAMPLES
    assert [path for path in paths if not any(any(source.glob(path)) for source in SOURCES)] == []
    code = "".join(
        file.read_text() for tree in ("src", "client/src", "tests", "prove") for file in (ROOT / tree).rglob("*.py")
    )
    names = {span for span in spans if re.fullmatch(r"[A-Z][A-Z_]{4,}|_?[a-z]+(?:_[a-z]+)+|_[a-z]+", span)}
    assert [name for name in names if name not in code] == []


def test_every_module_opens_with_one_line() -> None:
    """Any further explanation follows after a blank line. See CONTRIBUTING."""
    modules = [*ROOT.glob("src/**/*.py"), *ROOT.glob("client/src/**/*.py")]
    openings = {module: (ast.get_docstring(ast.parse(module.read_text())) or "").split("\n") for module in modules}
    assert len(modules) > 150
    assert [str(module) for module, lines in openings.items() if not lines[0] or any(lines[1:2])] == []


def test_every_measurement_is_explained() -> None:
    """Covers every file in bench/ that can be run as a program."""
    explained = (ROOT / "bench/README.md").read_text()
    programs = [file.name for file in (ROOT / "bench").glob("*.py") if "__main__" in file.read_text()]
    assert "race.py" in programs
    assert [name for name in programs if name not in explained] == []


RATES = (100, 1_000, 10_000, 100_000)  # requests per second
BUSY = 0.7  # the CPU usage of a core
DAY = 86_400
CREATES = 0.1  # of all requests
WORKER_MAX = 384  # MiB: decision 17


def _sizing() -> list[str]:
    run = json.loads((ROOT / "bench/results/scaling.json").read_text())
    takes, memory = run["bytes"], run["memory"]
    node, of_redis, of_postgres = (run["costs"]["mix"][f"{part}_us"] for part in ("node", "redis", "postgres"))
    workers = [math.ceil(rate * node / 1e6 / BUSY) for rate in RATES]
    added = [rate * CREATES * DAY for rate in RATES]
    animal, idempotency = takes["animal_in_postgresql"], takes["idempotency_key_in_postgresql"]
    rows: list[tuple[str, str, list[float]]] = [
        ("workers, each using 70% of a core", f"{node:.0f} µs per request", [float(each) for each in workers]),
        ("maximum worker memory, GiB", f"{memory['worker_mib']:.0f} MiB per worker, at most {WORKER_MAX} MiB",
         [each * WORKER_MAX / 1024 for each in workers]),
        ("cores for Redis", f"{of_redis:.0f} µs per request", [rate * of_redis / 1e6 for rate in RATES]),
        ("cores for PostgreSQL", f"{of_postgres:.0f} µs per request", [rate * of_postgres / 1e6 for rate in RATES]),
        ("new animals a day, millions", "–", [each / 1e6 for each in added]),
        ("disk for these animals, GB", f"{animal:.0f} bytes each", [each * animal / 1e9 for each in added]),
        ("disk for their idempotency keys, GB", f"{idempotency:.0f} bytes each",
         [each * idempotency / 1e9 for each in added]),
    ]  # fmt: skip
    heading = "| | measured | " + " | ".join(f"{rate:,}/s" for rate in RATES) + " |"
    lines = (f"| {what} | {unit} | {' | '.join(map(_rounded, figures))} |" for what, unit, figures in rows)
    return [heading, "|---|---|---|---|---|---|", *lines]


def _rounded(figure: float) -> str:
    return f"{figure:,.0f}" if figure >= 10 or figure == int(figure) else f"{figure:.2g}"


def test_the_sizing_is_calculated_from_the_last_measurement() -> None:
    run = json.loads((ROOT / "bench/results/scaling.json").read_text())
    section = SCALING[SCALING.index("## Sizing") :]
    assert [row for row in _sizing() if row not in section] == []
    takes = run["bytes"]
    for figure in (
        f"A node needs {run['memory']['main_process_mib']:.0f} MiB in addition to its workers",
        f"{takes['animal_in_sqlite']:.0f} MB in SQLite and {takes['animal_in_postgresql']:.0f} MB in PostgreSQL",
        f"about {round(BUSY * 1e6 / run['costs']['mix']['redis_us'], -3):,.0f} requests a second",
        f"a {takes['api_key_in_redis']}-byte record",
        run["finished"],
    ):
        assert figure in " ".join(section.split()), figure


@pytest.mark.parametrize("name", ["deploy/kubernetes.yaml", "docs/operating.md", "docs/scaling.md"])
def test_archives_and_images_are_named_with_this_version(name: str) -> None:
    assert set(re.findall(r"petstore[-:](\d+\.\d+\.\d+)", (ROOT / name).read_text())) == {__version__}


def test_the_readme_names_this_version() -> None:
    assert f"**Version {__version__}**" in (ROOT / "README.md").read_text()


def test_this_version_gets_security_fixes() -> None:
    assert f"| the newest {__version__.partition('.')[0]}.x | yes |" in (ROOT / "SECURITY.md").read_text()


def test_the_api_document_names_the_kept_document_of_this_version() -> None:
    assert re.findall(r"`(\d+\.\d+\.\d+)\.json`", (ROOT / "docs/api.md").read_text()) == [__version__]
