"""Mutation testing, `python -m prove.mutants [suite …] [--sample N]`: lists what no test notices when it is changed.

Each mutant is the project with one small change: a comparison, a number, a flag, an operator, an answer or a step that
is left out. Texts are left alone: what is not SQL would be noticed, and a message's wording is not a promise.
"""

import argparse
import ast
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple, NoReturn

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src/petstore"
RESULTS = Path(__file__).parent / "results/mutants.json"
# Less of what takes long and finds the same.
LESS = {"PETSTORE_TEST_REQUESTS": "10000", "PETSTORE_TEST_CREATES": "100", "PETSTORE_TEST_KILLS": "3"}
EMBEDDED = "not postgres and not redis and not granian and not uvicorn and not cluster"


class Suite(NamedTuple):
    """Modules, and the tests that ought to notice whatever is changed in them; the quick ones first."""

    modules: list[str]
    tests: list[str]
    only: str = EMBEDDED


SUITES = {
    "windows": Suite(["windows.py"], ["test_windows_edges.py", "test_windows.py"]),
    "keys": Suite(["keys.py"], ["test_keys.py", "web/test_authentication.py", "test_cli.py"]),
    "gate": Suite(
        ["gate/local.py", "gate/trust.py"],
        ["test_trust.py", "test_gate.py", "test_gate_local.py", "test_gate_processes.py", "test_metrics.py",
         "web/test_limits.py", "test_folder.py", "test_restore.py", "test_backup.py"],
    ),
    "gate on Redis": Suite(
        ["gate/__init__.py", "gate/redis.py", "gate/redis_links.py", "gate/redis_cluster.py", "gate/outage.py",
         "gate/inspect.py"],
        ["test_gate.py", "test_gate_redis.py", "test_gate_queue.py", "test_gate_topologies.py", "test_gate_cluster.py",
         "test_gate_resharding.py", "test_check.py", "test_check_servers.py", "test_metrics.py", "web/test_metrics.py",
         "test_cluster_faults.py"],
        only="not lmdb and not again_and_again and not granian and not uvicorn",
    ),
    "store": Suite(
        ["store/__init__.py", "store/rows.py", "store/tables.py", "store/usage_tables.py", "store/sqlite/*.py"],
        ["test_store_keys.py", "test_store.py", "test_store_operators.py", "test_store_sqlite.py",
         "test_store_writer.py", "test_store_patience.py", "web/test_idempotency.py", "test_cli_figures.py",
         "web/test_metrics.py", "test_check.py", "test_backup.py", "test_restore.py"],
    ),
    "store on PostgreSQL": Suite(
        ["store/postgres/*.py"],
        ["test_store_keys.py", "test_store.py", "test_store_operators.py", "test_store_postgres.py",
         "test_postgres_pool.py", "test_postgres_opening.py", "web/test_idempotency.py", "test_cli_figures.py",
         "test_dump.py", "test_check_servers.py", "web/test_metrics.py", "web/test_caching.py", "test_copy.py",
         "test_cluster_faults.py"],
        only="not sqlite and not again_and_again and not granian and not uvicorn",
    ),
    "pipeline": Suite(
        ["web/admission.py", "web/app.py", "web/pages.py", "web/pets.py", "web/repeated.py", "web/replies.py",
         "web/requests.py", "web/traffic.py"],
        ["test_web_parts.py", "test_web_in_process.py", "test_pages.py", "test_repeated.py", "test_logs.py", "web"],
        only=f"({EMBEDDED}) or (test_caching and own and postgres)",  # reads that take their time
    ),
}  # fmt: skip

OPPOSITES: dict[type[Any], type[Any]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
    ast.Mod: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip


class Mutant(NamedTuple):
    module: str
    line: int
    before: str
    after: str
    source: str

    @property
    def name(self) -> str:
        return f"{self.module}:{self.line}: {self.before} → {self.after}"


def change_of(name: str) -> tuple[str, str]:
    """A mutant's name without its line, which every edit above it moves."""
    module, _, change = name.split(":", 2)
    return module, change


def mutants_of(name: str, text: str) -> list[Mutant]:
    """Of one module."""
    found = []
    for index, node in enumerate(_nodes(ast.parse(text))):
        for change in _changes(node):
            tree = ast.parse(text)
            again = list(_nodes(tree))[index]
            before = ast.unparse(again)
            change(again)
            found.append(Mutant(name, again.lineno, before, ast.unparse(again), ast.unparse(tree)))
    return [mutant for mutant in found if mutant.before != mutant.after]


def modules_of(suite: Suite) -> list[tuple[str, str]]:
    """Their names and texts."""
    files = [file for pattern in suite.modules for file in sorted(SOURCE.glob(pattern))]
    return [(str(file.relative_to(SOURCE)), file.read_text()) for file in files]


def names_when_last_kept(suite: Suite) -> list[str]:
    """Of the mutants that there were then."""
    commit = _git("log", "-1", "--format=%H", "--", str(RESULTS)).strip()
    there = _git("ls-tree", "-r", "--name-only", commit, "--", str(SOURCE)).split()
    before = {file for file in there if any(Path(file).match(f"petstore/{pattern}") for pattern in suite.modules)}
    found = (mutants_of(file.partition("petstore/")[2], _git("show", f"{commit}:{file}")) for file in before)
    return [mutant.name for mutants in found for mutant in mutants]


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def part(mutants: list[Mutant], changes: Iterable[str]) -> tuple[list[Mutant], list[Mutant]]:
    """Those that make one of the changes, each as often as it is named, wherever its line is now; and the others."""
    wanted = Counter(change_of(name) for name in changes)
    found: list[Mutant] = []
    others: list[Mutant] = []
    for mutant in mutants:
        change = change_of(mutant.name)
        (found if wanted[change] > 0 else others).append(mutant)
        wanted[change] -= 1
    return found, others


def _nodes(tree: ast.AST) -> Iterator[Any]:
    """Everything that is run, in the order of the text: no annotations, no decorators, no contracts."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list", "bases", "type_params"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not _is_protocol(child):
                if isinstance(child, ast.stmt | ast.expr):
                    yield child
                yield from _nodes(child)


def _is_protocol(node: ast.AST) -> bool:
    """A contract: nothing in it is ever run."""
    return isinstance(node, ast.ClassDef) and any(isinstance(b, ast.Name) and b.id == "Protocol" for b in node.bases)


def _changes(node: ast.AST) -> list[Callable[[Any], None]]:
    match node:
        case ast.Compare(ops=ops):
            return [partial(_turn, k) for k in range(len(ops))]
        case ast.BoolOp() | ast.BinOp() | ast.AugAssign() if type(node.op) in OPPOSITES and not _of_texts(node):
            return [lambda n: setattr(n, "op", OPPOSITES[type(n.op)]())]
        case ast.UnaryOp(op=ast.Not()):
            return [lambda n: setattr(n, "operand", ast.UnaryOp(ast.Not(), n.operand))]
        case ast.If() | ast.IfExp() | ast.While() if isinstance(
            node.test, ast.Name | ast.Attribute | ast.Call | ast.Await
        ):
            return [lambda n: setattr(n, "test", ast.UnaryOp(ast.Not(), n.test))]
        case ast.Constant(value=bool()):
            return [lambda n: setattr(n, "value", not n.value)]
        case ast.Constant(value=int() | float()):
            return [lambda n: setattr(n, "value", n.value + 1)]
        case ast.Return(value=ast.expr() as value) if not _is_constant(value):
            return [lambda n: setattr(n, "value", ast.Constant(None))]
        case ast.Expr(value=ast.Call() | ast.Await()):
            return [lambda n: setattr(n, "value", ast.Constant(None))]
    return []


def _is_constant(value: ast.expr) -> bool:
    """None would be the same, or, for a flag, much the same as its opposite, which is a mutant of its own."""
    return isinstance(value, ast.Constant) and (value.value is None or isinstance(value.value, bool))


def _turn(k: int, node: ast.Compare) -> None:
    node.ops[k] = OPPOSITES[type(node.ops[k])]()


def _of_texts(node: Any) -> bool:
    texts = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
    return any(isinstance(text, str | bytes) for text in texts)


class Place:
    """A copy of the package that tests import instead of the project's own."""

    def __init__(self, folder: Path) -> None:
        self.package = folder / "petstore"
        self.log = folder / "log"
        shutil.copytree(SOURCE, self.package, ignore=shutil.ignore_patterns("__pycache__"))
        subprocess.run([sys.executable, "-m", "compileall", "-q", str(self.package)], check=True)
        # The compiled modules are used, but none is written: a mutant must not be found in place of the next.
        self.environ = {**os.environ, **LESS, "PYTHONPATH": f"{folder}/", "PYTHONDONTWRITEBYTECODE": "1",
                        "PYTHONUNBUFFERED": "1", "TMPDIR": f"{folder}/tmp"}  # fmt: skip
        (folder / "tmp").mkdir()
        self.longest = 0.0  # seconds that one test has taken

    def fails(self, suite: Suite, mutant: Mutant | None, patience: float) -> bool:
        """Whether a test failed, or took longer than the patience."""
        if mutant is None:
            return self._tests_fail(suite, patience)
        file = self.package / mutant.module
        for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*"):
            compiled.unlink()
        file.write_text(mutant.source)
        try:
            return self._tests_fail(suite, patience)
        finally:
            shutil.copy2(SOURCE / mutant.module, file)

    def _tests_fail(self, suite: Suite, patience: float) -> bool:
        tests = [f"tests/{name}" for name in suite.tests]
        command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider",
                   "-W", "ignore::pytest.PytestUnraisableExceptionWarning", "-k", suite.only, *tests]  # fmt: skip
        with self.log.open("wb") as log:
            process = subprocess.Popen(command, cwd=ROOT, env=self.environ, stdout=log, stderr=log)
        printed, since = 0, time.monotonic()
        try:
            while process.poll() is None:
                time.sleep(0.05)
                if self.log.stat().st_size > printed:  # a dot for every test that ends
                    printed, since = self.log.stat().st_size, time.monotonic()
                self.longest = max(self.longest, time.monotonic() - since)
                if time.monotonic() - since > patience:
                    return True
            # A mutant may also end the whole process, with whatever code: only a summary says that tests have passed.
            return process.returncode != 0 or b" passed" not in self.log.read_bytes()
        finally:
            _end(self.package.parent)
            process.wait()


def _end(folder: Path) -> None:
    """The tests and every server of theirs that is left; first as Ctrl-C does it, so that tests end their own."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + 5
        for pid in _who_uses(folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        while _who_uses(folder) and time.monotonic() < deadline:
            time.sleep(0.05)


def _give_up(folder: Path) -> NoReturn:
    """At once: the threads would go on to the last mutant."""
    _end(folder)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def _who_uses(folder: Path) -> list[int]:
    """Whoever has inherited the path of this copy, or works inside it: Redis hides what it has inherited."""
    mark = f"PYTHONPATH={folder}/".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (process / "environ").read_bytes() or (process / "cwd").readlink().is_relative_to(folder):
                found.append(int(process.name))
    return found


def try_all(suite: Suite, mutants: list[Mutant], places: "SimpleQueue[Place]", hands: int) -> list[Mutant]:
    """The survivors."""
    place = places.get()
    place.longest = 0.0
    if place.fails(suite, None, 300):
        said = place.log.read_text(errors="replace")[-1000:]
        raise SystemExit(f"the tests fail without a mutant, so nothing can be said:\n{said}")
    patience = 20 + 4 * place.longest
    places.put(place)

    def survives(mutant: Mutant) -> bool:
        place = places.get()
        try:
            survived = not place.fails(suite, mutant, patience)
        finally:
            places.put(place)
        print(f"\n  survived: {mutant.name}" if survived else ".", end="", flush=True)
        return survived

    with ThreadPoolExecutor(hands) as pool:
        lived = list(pool.map(survives, mutants))
    print()
    return [mutant for mutant, survived in zip(mutants, lived, strict=True) if survived]


def main() -> int:
    words = argparse.ArgumentParser(prog="python -m prove.mutants", description=__doc__)
    words.add_argument("suites", nargs="*", metavar="suite", help="of " + ", ".join(SUITES) + "; none: all of them")
    words.add_argument(
        "--sample", type=int, help="so many of each suite, drawn by a fixed seed; not kept (default: all)"
    )
    words.add_argument("--hands", type=int, default=os.cpu_count() or 1, help="how many at a time")
    words.add_argument(
        "--survivors", action="store_true", help="only what survived the last time, wherever its lines are now"
    )
    words.add_argument(
        "--new", action="store_true", help="only what the code has become since results were last committed"
    )
    chosen = words.parse_args()
    if unknown := set(chosen.suites) - set(SUITES):
        words.error(f"no such suite: {', '.join(sorted(unknown))}")
    kept: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    with tempfile.TemporaryDirectory(prefix="petstore-mutants-") as folder:
        Path(folder).chmod(0o711)  # PostgreSQL is not root where the tests are
        signal.signal(signal.SIGTERM, lambda *_: _give_up(Path(folder)))
        signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background it is ignored, by children too
        places: SimpleQueue[Place] = SimpleQueue()
        for hand in range(chosen.hands):
            places.put(Place(Path(folder) / str(hand)))
        for name in chosen.suites or SUITES:
            suite = SUITES[name]
            mutants = [mutant for module, text in modules_of(suite) for mutant in mutants_of(module, text)]
            known = len(mutants)
            still: list[str] = []  # survivors of the last time, which are not tried again
            if chosen.new:
                seen, mutants = part(mutants, names_when_last_kept(suite))
                still = [mutant.name for mutant in part(seen, kept[name]["survivors"])[0]]
            elif chosen.survivors:
                lived = {change_of(survivor) for survivor in kept[name]["survivors"]}
                mutants = [mutant for mutant in mutants if change_of(mutant.name) in lived]
            elif chosen.sample is not None and chosen.sample < known:
                mutants = random.Random(1).sample(mutants, chosen.sample)
            print(f"{name}: {len(mutants)} of {known} mutants", flush=True)
            survivors = still + [mutant.name for mutant in try_all(suite, mutants, places, chosen.hands)]
            if chosen.new:
                tried = known
            elif chosen.survivors:
                tried = kept[name]["tried"] + known - kept[name]["mutants"]
            else:
                tried = len(mutants)
            killed = tried - len(survivors)
            print(f"{name}: {killed / tried:.1%} of {tried} killed", *survivors, sep="\n  ", flush=True)
            kept[name] = {"mutants": known, "tried": tried, "killed": killed, "survivors": survivors}
            if chosen.sample is None:  # a part is not the figure
                RESULTS.write_text(json.dumps(kept, indent=2, ensure_ascii=False) + "\n")
    return int(any(kept[name]["killed"] < 0.9 * kept[name]["tried"] for name in kept))


if __name__ == "__main__":
    sys.exit(main())
