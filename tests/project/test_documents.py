"""The document checks of `make check`. The project passes them, and they find every planted fault."""

import subprocess
from pathlib import Path

import pytest

from tools import documents, references

LONG = "This sentence has " + "many " * 33 + "words."
MIDDLE = "This sentence is of middle length, and by itself nothing is wrong with it, but all of them are just so here. "


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A project without faults."""
    for name, text in {
        "README.md": "# Title\n\nA short sentence. [The guide](docs/guide.md#two-words) has more.\n",
        "docs/guide.md": "# Guide\n\n## Two words\n\nSee [above](#guide). "
        + "It is so. " * 5
        + "\n\n| a | b |\n|---|---|\n| one | two |\n",
        "docs/decisions/0001-x.md": "# 1. X\n\nIt is so.\n",
        "src/x.py": '"""A module."""\n\nTABLE = "deeds"\n',
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert documents.faults(tmp_path) == []
    return tmp_path


@pytest.mark.thorough
def test_the_documents_have_no_fault() -> None:
    assert documents.faults(documents.ROOT) == []


@pytest.mark.parametrize(
    ("file", "planted", "found"),
    [
        ("docs/guide.md", "[gone](gone.md)", "gone.md, which does not exist"),
        ("docs/guide.md", '<picture><img src="gone.png"></picture>', "gone.png, which does not exist"),
        ("docs/guide.md", "[gone](../README.md#gone)", "README.md#gone, which is not a heading"),
        ("docs/guide.md", "[gone](#gone)", "#gone, which is not a heading"),
        ("docs/guide.md", "Each deed is kept.", "'deed' is retired"),
        ("README.md", "Whoever asks gets an answer.", "'whoever' is retired"),
        ("README.md", "The caller is told so.", "'told' is retired"),
        ("docs/guide.md", "A client that mended its ways.", "'mended' is retired"),
        ("docs/guide.md", "| a | what a stranger sees |", "'stranger' is retired"),
        ("docs/guide.md", "Requests in hand.", "'in hand' is retired"),
        ("docs/guide.md", "Both places have keys.", "'both places' is retired"),
        ("docs/guide.md", "The nodes go\non.", "line 11: 'go on' is retired; write continue"),
        ("tests/sentences.md", "| Each deed is kept. | a test |", "'deed' is retired"),
        ("docs/guide.md", "A file of its own.", "'of its own' is retired"),
        ("docs/guide.md", "It takes effect from the next request on.", "'from the next request on' is retired"),
        ("docs/guide.md", LONG, "a sentence of 37 words"),
        ("docs/guide.md", f"- {LONG}", "a sentence of 37 words"),
        ("docs/guide.md", f"| a | {LONG} |", "a sentence of 37 words"),
        ("docs/guide.md", MIDDLE * 40, "words on average"),
        ("docs/decisions/0001-x.md", "It is so. " * 140, "at most 400 are allowed"),
        ("prove/README.md", "It is so. " * 280, "at most 800 are allowed"),
        ("docs/guide.md", "It is so. " * (documents.TOTAL_MAX // 3 + 1), f"at most {documents.TOTAL_MAX} are"),
        ("README.md", "It is so. " * 165, "README.md: 504 words, at most 500 are allowed"),
        ("README.md", "One.\nTwo.\nThree.\nFour.", "a paragraph of 4 lines"),
        ("src/x.py", "PATIENCE = 2.0", "'patience' is retired"),
        ("src/x.py", "class DeedList: ...", "'deed' is retired"),
        ("src/x.py", "# the guest is served", "'guest' is retired"),
        ("src/x.py", "# requests that are in\n# hand", "line 5: 'in hand' is retired"),
        ("src/x.py", 'def f() -> None:\n    """Until it is told."""', "'told' is retired"),
        ("src/x.py", 'raise ValueError("A stranger asks.")', "'stranger' is retired"),
        ("src/petstore/x/x.sql", "-- Beside it", "line 3: 'beside' is retired"),
        ("deploy/x.service", "# It goes on.", "line 3: 'goes on' is retired"),
        ("tests/web/test_x.py", "def test_it_is_told() -> None: ...", "line 3: 'told' is retired"),
        ("prove/attacks/x.py", "# a file of its own", "'of its own' is retired"),
        ("src/petstore/cli/x.py", 'print("The key was given to a stranger.")', "line 3: 'stranger' is retired"),
        ("src/petstore/cli/x.py", "print(f'{count} animals are in hand.')", "'in hand' is retired"),
        ("src/petstore/formats/x.py", f'raise OperatorError("{LONG}")', "a sentence of 37 words"),
        ("src/petstore/cli/x.py", f'def f() -> None:\n    """{LONG}"""', "a sentence of 37 words"),
        ("src/petstore/console/templates/x.html", "<p>A <b>visitor</b> comes.</p>", "line 3: 'visitor' is retired"),
        ("src/petstore/console/templates/x.html", '<button data-confirm="Mend it?">', "'mend' is retired"),
        ("src/petstore/console/templates/x.html", f"<p>{LONG}</p>", "a sentence of 37 words"),
    ],
)
def test_a_planted_fault_is_found(tree: Path, file: str, planted: str, found: str) -> None:
    path = tree / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text((path.read_text() if path.exists() else "# X\n") + f"\n{planted}\n")
    (fault,) = documents.faults(tree)
    assert found in fault


@pytest.mark.parametrize(
    "harmless",
    [
        "```\ndeed\n[gone](gone.md)\n```",
        "`deed` and `[x](gone.md)` are code.",
        "[Elsewhere](https://example.com/gone)",
        "| " + "word " * 20 + "| " + "word " * 20 + "|",
    ],
)
def test_code_and_other_sites_are_left_alone(tree: Path, harmless: str) -> None:
    (tree / "docs/guide.md").write_text(f"# Guide\n\n## Two words\n\n{harmless}\n")
    assert documents.faults(tree) == []


@pytest.mark.parametrize(
    ("file", "harmless"),
    [
        ("src/petstore/cli/x.py", 'TABLE = "deeds"'),
        ("src/petstore/cli/x.py", f'def f() -> None:\n    """Do it.\n\n    \\b\n    Examples: {LONG}\n    """'),
        ("src/petstore/console/templates/x.html", "{# told #}<script>told</script><p>{{ told }}</p>"),
        ("src/petstore/console/templates/x.html", "<li>" + "word " * 20 + "</li><li>" + "word " * 20 + "</li>"),
    ],
)
def test_what_is_not_a_sentence_for_people_is_left_alone(tree: Path, file: str, harmless: str) -> None:
    (tree / file).parent.mkdir(parents=True)
    (tree / file).write_text(harmless)
    assert documents.faults(tree) == []


@pytest.mark.parametrize(
    ("subjects", "found"),
    [
        (["Fix it"], []),
        (["x" * 72], []),
        (["x" * 73], ["the subject of the last commit has 73 characters"]),
        (["x" * 73, "Fix it"], []),
    ],
)
def test_the_subject_of_the_last_commit_is_short(tmp_path: Path, subjects: list[str], found: list[str]) -> None:
    repository = Repository(tmp_path)
    for subject in subjects:
        repository.commit(subject)
    assert [fault.partition(",")[0] for fault in documents.long_subject(tmp_path)] == found


def test_the_subject_of_a_merge_may_be_long(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    repository.commit("Fix it")
    repository.run("switch", "--create", "other", "--quiet")
    repository.commit("Fix something else")
    repository.run("switch", "-", "--quiet")
    repository.run("merge", "--no-ff", "--quiet", "--message", "x" * 90, "other")
    assert documents.long_subject(tmp_path) == []


def test_a_tree_without_a_repository_has_no_subject(tmp_path: Path) -> None:
    assert documents.long_subject(tmp_path) == []


class Repository:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.run("init", "--quiet")

    def run(self, *words: str) -> None:
        identity = ["-c", "user.name=A", "-c", "user.email=a@example.com"]
        subprocess.run(["git", "-C", str(self.directory), *identity, *words], check=True, timeout=60)

    def commit(self, subject: str) -> None:
        self.run("commit", "--allow-empty", "--quiet", "--message", subject)


def test_an_outdated_reference_is_found_and_rewritten(tmp_path: Path) -> None:
    assert references.main([], tmp_path) == 0
    assert references.main(["--check"], tmp_path) == 0
    (tmp_path / "docs/reference/events.md").write_text("# Log events\n")
    assert references.main(["--check"], tmp_path) == 1
    assert (tmp_path / "docs/reference/events.md").read_text() == "# Log events\n"
    assert references.main([], tmp_path) == 0
    assert references.main(["--check"], tmp_path) == 0
