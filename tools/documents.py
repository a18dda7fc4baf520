"""`python -m tools.documents`: finds dead links, retired phrases and long sentences in texts that people read.

It checks documents, the messages of programs, docstrings, comments and names in the code, and the subject of the last
commit. The limit on the average sentence length applies only to prose. Tables are checked only for long sentences.
"""

import argparse
import ast
import inspect
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
READ_BY_PEOPLE = (
    "README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "client/README.md",
    "client/CHANGELOG.md", "tests/README.md", "prove/README.md", "bench/README.md", "docs/**/*.md",
)  # fmt: skip
# Only retired words are searched for in these files. tests/sentences.md quotes the API contract.
RETIRED_ONLY = (
    "tests/sentences.md", "src/petstore/web/openapi.yaml", "src/petstore/**/*.sql", "src/petstore/**/*.lua",
    "src/petstore/console/static/*.js", "deploy/**/*.*", "compose.yaml", "Containerfile", "Makefile",
    "docs/monitoring/*.yml",
)  # fmt: skip
FIGURES = "figures.md"  # recorded results, which keep the names from their measurements
CODE = ("src/**/*.py", "client/src/**/*.py")
OTHER_CODE = (
    "tests/**/*.py", "client/tests/*.py", "client/examples/*.py", "prove/**/*.py", "bench/*.py", "bench/peers/*.py",
    "harness/*.py", "tools/*.py",
)  # fmt: skip
QUOTES_RETIRED_WORDS = {"tools/documents.py", "tools/readers.py", "tests/project/test_documents.py"}
PRINTED = tuple(f"src/petstore/{each}/*.py" for each in ("cli", "console", "formats", "maintenance"))  # their strings
TEMPLATES = ("src/petstore/console/templates/**/*.html",)

AVERAGE_MAX, SENTENCE_MAX = 18, 35  # words
DECISION_MAX, PROOFS_MAX, README_MAX = 400, 800, 500  # words; the table of proofs does not count
PARAGRAPH_MAX = 3  # lines, in the README
TOTAL_MAX, GUIDES = 13_000, ("README.md", "docs/*.md")  # total number of words in the guides
SUBJECT_MAX = 72  # characters in the subject of a commit

# Retired words and phrases, as regular expressions, and their replacements. Each replacement has the same meaning
# throughout the project, and is the term that an engineer would search for.
RETIRED = {
    r"deeds?": "audit entry",
    r"ledgers?": "audit log, or usage",
    r"tall(?:y|ies)": "usage",
    r"desks?": "admin",
    r"(?:both|each|other|one) places?": "environment",
    r"sparing(?:ly)?": "throttled",
    r"complaints?": "log line",
    r"patience": "timeout",
    r"mend(?:s|ed|ing)?": "fix, or recover",
    r"believe[sd]?|unbelievable": "use, or accept",
    r"told": "say what is sent, and to which component",
    r"outage gate|stand-in": "fallback",
    r"strangers?|nobody": "anonymous",
    r"whoever|those who": "the noun",
    r"in hand": "in flight",
    r"guests?": "client",
    r"visit(?:s|ed|ing)?|visitors?": "request, or session",
    r"doors?|houses?|rooms?|(?:moving|move) house": "the technical term",
    r"manners": "what the client does",
    r"charm\w*|riddle\w*": "plain words",
    r"folders?": "directory",
    r"as ever": "is not affected by …",
    r"anew": "again",
    r"(?:go|goes|going|went) on": "continue, or resume",
    r"beside": "next to, in addition to, or during",
    r"of (?:its|their|our|your|his|her|my) own": "own, or separate",
    r"for so long|so long ago": "say how long",
    r"signs? of life": "heartbeat",
    r"holds? from": "takes effect with …",
    r"from the next \w+ on": "with the next …",
    r"none of them": "no …",
    r"what is left": "the rest, or remaining",
    r"stands": "is",
    r"the one that": "the noun",
    r"no concern of": "say what happens",
    r"in want of": "lacks",
    r"the other way round": "say which way",
    r"played": "simulated",
    r"processor time": "CPU time",
    r"traffic": "usage, or requests",
    r"obeys?": "takes effect with the next request",
    r"does wrong": "client error",
    r"goes neither": "cannot be combined with",
    r"(?:answers|answer) (?:yes|no)": "skips the prompt",
    r"lengthen(?:s|ed|ing)?": "extend",
    r"look at (?:it|them) twice": "double-check",
    r"topology helpers?": "harness",
}
# Retired words that are fine in code, such as `room` for more connections.
PLAIN_IN_CODE = {"nobody", "room"}
INLINE_CODE = re.compile(r"`[^`\n]*`")
_RETIRED = re.compile(
    r"\b(?:" + "|".join(f"(?:{phrase})" for phrase in RETIRED).replace(" ", r"(?: +|\n *)") + r")\b", re.IGNORECASE
)


def faults(root: Path) -> list[str]:
    """Returns one line for each fault in the documents and code under `root`."""
    found: list[str] = []
    for document in _files(root, (*READ_BY_PEOPLE, "tests/sentences.md")):
        found += [f"{document.relative_to(root)}: {fault}" for fault in dead_links(document)]
    for document in _files(root, READ_BY_PEOPLE):
        text = document.read_text()
        generated = text.startswith("<!-- Written by `make docs`")  # quotes messages from the code
        if document.name != FIGURES:
            found += [f"{document.relative_to(root)}: {fault}" for fault in retired_words(text, in_code=generated)]
            found += [f"{document.relative_to(root)}: {fault}" for fault in lengths(text)]
    for file in _files(root, RETIRED_ONLY):
        found += [f"{file.relative_to(root)}: {fault}" for fault in retired_words(file.read_text(), in_code=True)]
    for decision in _files(root, ("docs/decisions/0*.md",)):
        found += _too_long(decision.name, decision.read_text(), DECISION_MAX)
    for proofs in _files(root, ("prove/README.md",)):
        found += _too_long(proofs.name, re.sub(r"^\|.*$", "", proofs.read_text(), flags=re.MULTILINE), PROOFS_MAX)
    guides = " ".join(guide.read_text() for guide in _files(root, GUIDES))
    found += _too_long(", ".join(GUIDES), _without_pictures(guides), TOTAL_MAX)
    for readme in _files(root, ("README.md",)):
        found += _too_long(readme.name, readme.read_text(), README_MAX)
        found += [f"README.md: {fault}" for fault in long_paragraphs(readme.read_text())]
    for file in _files(root, PRINTED):
        found += [f"{file.relative_to(root)}: {fault}" for fault in long_sentences(printed_strings(file.read_text()))]
    for file in _files(root, TEMPLATES):
        texts = list(template_texts(file.read_text()))
        found += [f"{file.relative_to(root)}: {fault}" for fault in long_sentences(texts)]
        for line, text in texts:
            found += [f"{file.relative_to(root)}: {fault}" for fault in retired_words(text, line, in_code=True)]
    for file in _files(root, (*CODE, *OTHER_CODE)):
        if str(file.relative_to(root)) not in QUOTES_RETIRED_WORDS and "node_modules" not in file.parts:
            found += [f"{file.relative_to(root)}: {fault}" for fault in retired_in_code(file.read_text())]
    return found


def _files(root: Path, patterns: tuple[str, ...]) -> list[Path]:
    return [file for pattern in patterns for file in sorted(root.glob(pattern))]


def anchors(text: str) -> set[str]:
    """Returns the anchors of a document's headings."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def dead_links(document: Path) -> Iterator[str]:
    """Finds relative links to files, pictures or headings that do not exist."""
    text = re.sub(r"```.*?```|`[^`\n]*`", "", document.read_text(), flags=re.DOTALL)
    links: list[tuple[str, str]] = re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", text)
    links += [(picture, "") for picture in re.findall(r'\bsrc(?:set)?="([^"]+)"', text)]
    for target, heading in links:
        if "://" in target:
            continue
        path = document.parent / target if target else document
        if not path.exists():
            yield f"links to {target}, which does not exist"
        elif heading and path.suffix == ".md" and heading not in anchors(path.read_text()):
            yield f"links to {target}#{heading}, which is not a heading"


def retired_words(text: str, first_line: int = 1, *, in_code: bool = False) -> Iterator[str]:
    """Finds retired words and phrases, including phrases that continue on the next line."""
    text = _without_code(text)
    for match in _RETIRED.finditer(text):
        words = " ".join(match[0].lower().split())
        retired = next(phrase for phrase in RETIRED if re.fullmatch(phrase, words, re.IGNORECASE))
        if in_code and words in PLAIN_IN_CODE:
            continue
        line = first_line + text.count("\n", 0, match.start())
        yield f"line {line}: {words!r} is retired; write {RETIRED[retired]}"


def lengths(text: str) -> Iterator[str]:
    prose, cells = sentences(text)
    for sentence in (*prose, *cells):
        count = len(sentence.split())
        if count > SENTENCE_MAX:
            yield f"a sentence of {count} words: {sentence[:80]}…"
    average = average_length(text)
    if average >= AVERAGE_MAX:
        yield f"sentences have {average:.1f} words on average"


def average_length(text: str) -> float:
    """Returns the number of words per sentence of prose."""
    prose, _ = sentences(text)
    return sum(len(sentence.split()) for sentence in prose) / len(prose) if prose else 0.0


def sentences(text: str) -> tuple[list[str], list[str]]:
    """Returns the sentences of paragraphs and lists, and the sentences of tables."""
    text = _without_pictures(_without_code(text))
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)
    prose: list[str] = []
    cells: list[str] = []
    paragraph: list[str] = []
    for line in [*text.splitlines(), ""]:
        is_table, is_heading = line.startswith("|"), line.startswith("#")
        begins = re.match(r"\s*(?:[-*]|\d+\.) ", line)
        if not line.strip() or is_table or is_heading or begins:
            prose += _split(" ".join(paragraph))
            paragraph = []
        if is_table:
            for cell in line.strip("|").split("|"):
                cells += _split(cell)
        elif not is_heading:
            paragraph.append(re.sub(r"^\s*(?:[-*]|\d+\.) ", "", line))
    return prose, cells


def _split(text: str) -> list[str]:
    parts = re.split(r"(?<=[.!?])[*_)\"”]*\s+(?=[*_(\"“]*[A-Z0-9`])", text.replace("**", " ").strip())
    return [part for part in parts if re.search(r"\w", part)]


def _without_code(text: str) -> str:
    """Replaces code blocks and HTML comments with empty lines, and each piece of inline code with one word."""
    return INLINE_CODE.sub("CODE", without_blocks(text))


def without_blocks(text: str) -> str:
    """Replaces code blocks and HTML comments with empty lines."""
    return re.sub(r"(?:```|<!--).*?(?:```|-->)", lambda block: "\n" * block[0].count("\n"), text, flags=re.DOTALL)


def _without_pictures(text: str) -> str:
    return re.sub(r"!\[[^]]*\]\([^)]*\)|<picture>.*?</picture>", "", text, flags=re.DOTALL)


def _too_long(name: str, text: str, words_max: int) -> list[str]:
    count = len(text.split())
    return [f"{name}: {count} words, at most {words_max} are allowed"] if count > words_max else []


def long_paragraphs(text: str) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n|\n(?=[-|#])", _without_code(text)):
        lines = paragraph.strip().splitlines()
        if len(lines) > PARAGRAPH_MAX:
            yield f"a paragraph of {len(lines)} lines: {lines[0][:80]}…"


def retired_in_code(source: str) -> Iterator[str]:
    """Finds retired words and phrases in names, comments, docstrings and messages, but not in strings of one word."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME:
            for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", token.string):
                yield from retired_words(word, token.start[0], in_code=True)
    for line, text in comments(source):
        yield from retired_words(text, line, in_code=True)
    for line, text in printed_strings(source):
        yield from retired_words(text, line, in_code=True)


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Finds comments and their line numbers. Comments on consecutive lines without code count as one."""
    block: list[str] = []
    end = 0
    follows_code = False
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        followed_code, follows_code = follows_code, bool(token.line[: token.start[1]].strip())
        if block and (followed_code or follows_code or token.start[0] > end + 1):
            yield end - len(block) + 1, "\n".join(block)
            block = []
        block.append(token.string.lstrip("# "))
        end = token.start[0]
    if block:
        yield end - len(block) + 1, "\n".join(block)


def long_sentences(texts: Iterable[tuple[int, str]]) -> Iterator[str]:
    """Finds long sentences in texts with line numbers."""
    for line, text in texts:
        for sentence in sentences(text)[0]:
            count = len(sentence.split())
            if count > SENTENCE_MAX:
                yield f"line {line}: a sentence of {count} words: {sentence[:80]}…"


def printed_strings(source: str) -> Iterator[tuple[int, str]]:
    """Finds a module's strings that contain a space. These include docstrings, which click prints as help."""
    tree = ast.parse(source)
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "VALUE" for part in node.values)
            text = "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            text = re.sub("\b.*?(?:\n\n|$)", "", inspect.cleandoc(node.value), flags=re.DOTALL)  # examples in help
        else:
            continue
        if " " in text.strip():
            yield node.lineno, text


def template_texts(source: str) -> Iterator[tuple[int, str]]:
    """Finds the visible text of a template, and its text for screen readers. A value counts as one word."""

    def emptied(match: re.Match[str]) -> str:
        return "\n" * match[0].count("\n")

    text = re.sub(r"\{#.*?#\}|<(script|pre)\b.*?</\1>", emptied, source, flags=re.DOTALL)
    text = re.sub(r"\{\{.*?\}\}", lambda value: "VALUE" + emptied(value), text, flags=re.DOTALL)
    for attribute in re.finditer(r'\b(?:title|alt|placeholder|aria-label|data-confirm)="([^"]+)"', text):
        yield _line_of(attribute), attribute[1]
    text = re.sub(r"</?(?:a|abbr|b|code|em|kbd|span|strong|time)\b[^>]*>", emptied, text)  # do not end a sentence
    text = re.sub(r"\{%.*?%\}|<[^>]*>", lambda tag: emptied(tag) + "\0", text, flags=re.DOTALL)
    for part in re.finditer(r"[^\0\s][^\0]*", text):
        yield _line_of(part), " ".join(part[0].split())


def _line_of(match: re.Match[str]) -> int:
    return match.string.count("\n", 0, match.start()) + 1


def long_subject(root: Path) -> list[str]:
    """Reports the subject of the last commit if it is too long. Skips merges, and copies without a repository."""
    if not (root / ".git").exists():
        return []
    words = ["git", "-C", str(root), "log", "-1", "--no-merges", "--format=%s"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    subject = done.stdout.strip()
    if done.returncode or len(subject) <= SUBJECT_MAX:
        return []
    return [
        f"the subject of the last commit has {len(subject)} characters, at most {SUBJECT_MAX} are allowed: {subject}"
    ]


def main() -> int:
    found = faults(ROOT) + long_subject(ROOT)
    for fault in found:
        print(f"documents: {fault}")
    documents = _files(ROOT, READ_BY_PEOPLE)
    words = sum(len(document.read_text().split()) for document in documents)
    print(f"documents: {len(documents)} documents, {words:,} words, {len(found)} faults")
    return 1 if found else 0


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()  # rejects any other arguments
    sys.exit(main())
