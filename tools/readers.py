"""`python -m tools.readers`: draws texts from the project for a reader who judges whether they sound natural.

It prints 40 docstrings and comments, 40 messages and 40 sentences from the guides, mixed with ten controls: five that
are known to sound unnatural and five that are known to sound good. The commit's hash is the seed. `--answers` prints
the source of each text instead, and which texts are controls. Ignore readers who miss two of the bad controls or mark
two of the good ones.
"""

import argparse
import ast
import itertools
import random
import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tools.documents import (
    CODE,
    GUIDES,
    INLINE_CODE,
    PRINTED,
    ROOT,
    TEMPLATES,
    comments,
    printed_strings,
    sentences,
    template_texts,
    without_blocks,
)

OF_EACH = 40
WORDS_MIN = 5  # shorter texts are labels
DIRECTIVE = r"^(?:\s*(?:fmt|noqa|nosec|pyright|type):? \S+(?: #)?)+"  # read by tools
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
BAD = (
    "The worker stops: answers that clients prefer later come now.",
    "A running service obeys from the next request on.",
    "--keep goes neither with --verify nor with --force",
    "A row with – is found by no test: look at it twice.",
    "The log has it under the number N.",
)
GOOD = (
    "Returns the key's record, or None if the key has been revoked.",
    "Retries up to three times, then raises the last error.",
    "On shutdown, the server finishes the requests in flight and closes idle connections.",
    "The port is already in use. Choose another one with --port.",
    "To restore a backup, stop the service first.",
)


class Sample(NamedTuple):
    text: str
    source: str


def explanations() -> Iterator[Sample]:
    """Yields docstrings and comments."""
    for file in _files(CODE):
        source = file.read_text()
        texts = [(line, re.sub(DIRECTIVE, "", text)) for line, text in comments(source)]
        nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, DOCUMENTED)]
        texts += [(getattr(node, "lineno", 1), ast.get_docstring(node) or "") for node in nodes]
        yield from _samples(file, texts)


def messages() -> Iterator[Sample]:
    """Yields what commands print and the console shows."""
    for file in _files(PRINTED):
        yield from _samples(file, printed_strings(file.read_text()))
    for file in _files(TEMPLATES):
        yield from _samples(file, template_texts(file.read_text()))


def guide_sentences() -> Iterator[Sample]:
    for file in _files(GUIDES):
        yield from _samples(file, ((0, sentence) for sentence in _sentences_with_code(file.read_text())))


def _sentences_with_code(text: str) -> Iterator[str]:
    text = without_blocks(text)
    code: list[str] = INLINE_CODE.findall(text)
    numbers = itertools.count()
    prose, cells = sentences(INLINE_CODE.sub(lambda _: f"CODE{next(numbers)}", text))
    for sentence in (*prose, *cells):
        yield re.sub(r"CODE(\d+)", lambda number: code[int(number[1])], sentence)


def _files(patterns: tuple[str, ...]) -> list[Path]:
    return [file for pattern in patterns for file in sorted(ROOT.glob(pattern))]


def _samples(file: Path, texts: Iterable[tuple[int, str]]) -> Iterator[Sample]:
    for line, text in texts:
        if len(text.split()) >= WORDS_MIN:
            words = re.sub(r" ([,.;:])(?= |$)", r"\1", " ".join(text.split()))  # removed tags leave spaces
            yield Sample(words, f"{file.relative_to(ROOT)}:{line}")


def draw(seed: str) -> list[Sample]:
    dice = random.Random(seed)
    drawn: list[Sample] = []
    for kind in (explanations, messages, guide_sentences):
        drawn += dice.sample(sorted(set(kind())), OF_EACH)
    drawn += [Sample(text, "control: bad") for text in BAD] + [Sample(text, "control: good") for text in GOOD]
    dice.shuffle(drawn)
    return drawn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--answers", action="store_true", help="print the source of each text instead of the text")
    parser.add_argument("--seed", help="the seed (default: the hash of the last commit)")
    given = parser.parse_args()
    words = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    seed = given.seed or subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    for number, sample in enumerate(draw(seed), 1):
        print(f"{number}. {sample.source if given.answers else sample.text}")


if __name__ == "__main__":
    main()
