"""Only the owner can read Petstore's files. Forged backups are refused, and no message contains a password."""

import contextlib
import os
import resource
import stat
import subprocess
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.backends import Postgres, Redis, free_port, shared
from harness.certificates import self_signed
from harness.commands import Commands, Processes
from harness.forged_backups import MEGABYTE, Zeros, forge, manifest_of, seal
from harness.served import Served, wait_for
from harness.servers import PETSTORE, Server
from harness.watched_files import NOBODY
from petstore import data_dir
from petstore.errors import OperatorError
from petstore.maintenance import archive
from petstore.server.tls import tls_context
from petstore.settings import check_url, without_password
from tests.findings import faults
from tests.marks import only_as_root

MEMORY_MAX = 16 * MEGABYTE
DISK_MAX = 32 * MEGABYTE


def modes(directory: Path) -> dict[str, str]:
    """Returns the mode of every file and directory for which other users have any permission."""
    found = (directory, *directory.rglob("*"))
    return {str(p): oct(stat.S_IMODE(p.lstat().st_mode)) for p in found if p.lstat().st_mode & 0o077}


@pytest.fixture
def open_umask() -> object:
    before = os.umask(0o000)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_umask")
def test_every_file_of_a_cluster_node_is_private(tmp_path: Path) -> None:
    petstore = Processes(Server(tmp_path / "data", "cluster"))
    petstore.text("keys", "create", "--plan", "free")
    served = subprocess.Popen([*PETSTORE, "serve", "--port", str(free_port())], env=petstore.variables)
    assert wait_for(lambda: (petstore.data / "metrics").exists())
    served.terminate()
    assert served.wait(timeout=60) == 0
    assert modes(petstore.data) == {}


def test_files_that_others_can_read_are_reported_by_check_and_in_the_log(tmp_path: Path) -> None:
    served = Served(tmp_path / "data").start()
    served.stop()
    petstore = Commands(served)
    assert petstore.json("check")["warnings"] == {}
    (served.data / "live.db").chmod(0o644)
    served.start()
    (line,) = [event for event in served.events if event["event"] == "data readable by others"]
    assert line["paths"] == str(served.data / "live.db") and line["hint"] == f"chmod -R go= {served.data}"
    served.stop()
    report = petstore.json("check")
    assert (report["ok"], list(report["warnings"])) == (True, ["data directory"])
    assert "live.db" in report["warnings"]["data directory"][0]
    assert "WARN   data directory" in petstore.text("check")
    served.data.chmod(0o755)
    assert f"chmod -R go= {served.data}" in faults(petstore)["data directory"][0]
    subprocess.run(["chmod", "-R", "go=", str(served.data)], check=True)
    assert petstore.json("check")["warnings"] == {}


@pytest.mark.usefixtures("open_umask")
def test_a_new_file_is_private_and_never_a_link(tmp_path: Path) -> None:
    with archive.create_private(tmp_path / "new") as file:
        assert stat.S_IMODE(os.fstat(file.fileno()).st_mode) == 0o600
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for existing in ("new", "link"):
        with pytest.raises(FileExistsError):
            archive.create_private(tmp_path / existing)
    assert not (tmp_path / "elsewhere").exists()


# Commands that write to a given path, and the name of the file that each writes to the directory.
WRITING = {
    ("backup", "DIR/backup.zip"): "backup.zip",
    ("backup", "DIR/backup.zip", "--force"): "backup.zip",
    ("backup", "DIR", "--keep", "2"): None,  # names backups after the time when they are made
    ("pets", "export", "DIR/pets.csv"): "pets.csv",
    ("pets", "export", "DIR/pets.csv", "--force"): "pets.csv",
    ("deploy-files", "DIR"): "petstore.service",
    ("deploy-files", "DIR", "--force"): "petstore.service",
}


def words_for(words: tuple[str, ...], directory: Path) -> list[str]:
    return [word.replace("DIR", str(directory)) for word in words]


@pytest.mark.parametrize(("words", "name"), [each for each in WRITING.items() if each[1]], ids=str)
@pytest.mark.parametrize("exists", [True, False], ids=["to a file", "to nothing"])
def test_a_link_is_refused_and_its_target_is_unchanged(
    tmp_path: Path, words: tuple[str, ...], name: str, exists: bool
) -> None:
    petstore = Commands(Server(tmp_path / "data"))
    petstore.server.fill(1)
    directory, precious = tmp_path / "directory", tmp_path / "precious"
    directory.mkdir()
    if exists:
        precious.write_text("precious")
        precious.chmod(0o600)
    (directory / name).symlink_to(precious)
    petstore.fails_in_one_line(*words_for(words, directory))
    assert [path.name for path in directory.iterdir()] == [name] and (directory / name).is_symlink()
    assert precious.exists() == exists
    if exists:
        assert (precious.read_text(), stat.S_IMODE(precious.stat().st_mode)) == ("precious", 0o600)


@only_as_root
@pytest.mark.parametrize("words", WRITING, ids=str)
@pytest.mark.parametrize("whose", ["of another user", "of everybody"])
def test_a_directory_in_which_another_user_could_replace_files_is_refused(
    tmp_path: Path, words: tuple[str, ...], whose: str
) -> None:
    petstore = Commands(Server(tmp_path / "data"))
    petstore.server.fill(1)
    directory = tmp_path / "directory"
    directory.mkdir()
    if whose == "of another user":
        os.chown(directory, NOBODY, NOBODY)
    else:
        directory.chmod(0o777)
    petstore.fails_in_one_line(*words_for(words, directory))
    assert list(directory.iterdir()) == []


def test_files_in_a_directory_with_the_sticky_bit_can_be_written(tmp_path: Path) -> None:
    petstore = Commands(Server(tmp_path / "data"))
    petstore.server.fill(1)
    directory = tmp_path / "directory"
    directory.mkdir()
    directory.chmod(0o1777)
    for words in WRITING:
        petstore.text(*words_for(words, directory), *(["--force"] if words[0] == "deploy-files" else []))


# Forged backups


def refused(*words: str, data: Path) -> str:
    """Asserts that a command fails, uses little memory and writes no large file. Returns its message."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (DISK_MAX, hard))
    tracemalloc.start()
    try:
        message = Commands(Server(data)).fails_in_one_line(*words)
        assert tracemalloc.get_traced_memory()[1] < MEMORY_MAX
    finally:
        tracemalloc.stop()
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    return message


def test_a_claim_beyond_the_free_space_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "forged.zip"
    forge(file, manifest_of(2**60), Zeros("live.db", 1), Zeros("staging.db", 1))
    for command in (["restore"], ["backup", "--verify"]):
        assert "bytes are required" in refused(*command, str(file), data=tmp_path / "data")


@pytest.mark.parametrize("size", [-1, -(2**63)])
def test_a_negative_claim_is_refused(tmp_path: Path, size: int) -> None:
    file = tmp_path / "forged.zip"
    forge(file, manifest_of(size), Zeros("live.db", 2048), Zeros("staging.db", 1))
    assert "is not a Petstore backup" in refused("restore", str(file), data=tmp_path / "data")


@pytest.mark.parametrize("method", [12, 14], ids=["bzip2", "lzma"])
def test_other_compression_methods_are_refused(tmp_path: Path, method: int) -> None:
    file = tmp_path / "forged.zip"
    forge(file, manifest_of(100), Zeros("live.db", 1), Zeros("staging.db", 1), method=method)
    assert "is not a Petstore backup" in refused("restore", str(file), data=tmp_path / "data")


@pytest.mark.parametrize("flag", [1, 0x800], ids=["encrypted", "a name that is not UTF-8"])
def test_members_with_odd_flags_are_refused(tmp_path: Path, flag: int) -> None:
    file = tmp_path / "forged.zip"
    forge(file, manifest_of(10), Zeros("live.db", 1), Zeros("staging.db", 1))
    content = bytearray(file.read_bytes()[:-64].replace(b"live.db", b"\xff\xfe\xff.db"))
    for head, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = -1
        while (at := content.find(head, at + 1)) >= 0:
            content[at + offset : at + offset + 2] = flag.to_bytes(2, "little")
    file.write_bytes(content)
    seal(file)
    assert "is not a Petstore backup" in refused("restore", str(file), data=tmp_path / "data")


def test_a_long_list_of_members_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "forged.zip"
    size = 40 * MEGABYTE
    with file.open("wb") as zeros:
        zeros.truncate(size)
        zeros.seek(0, os.SEEK_END)
        counts = (0).to_bytes(4, "little") + (1).to_bytes(2, "little") * 2
        zeros.write(b"PK\x05\x06" + counts + size.to_bytes(4, "little") + bytes(4) + (64).to_bytes(2, "little"))
    seal(file)
    assert "is not a Petstore backup" in refused("restore", str(file), data=tmp_path / "data")


# The TLS private key


def test_a_private_key_that_every_user_can_read_is_refused(tmp_path: Path) -> None:
    made = self_signed(tmp_path)
    assert tls_context(made.chain, made.key) is not None
    made.key.chmod(0o640)  # a dedicated group may read it
    assert tls_context(made.chain, made.key) is not None
    made.key.chmod(0o644)
    with pytest.raises(OperatorError, match=f"chmod 600 {made.key}"):
        tls_context(made.chain, made.key)
    petstore = Commands(Server(tmp_path / "data"))
    for command in ("serve", "console"):
        words = [command, "--tls-cert", str(made.chain), "--tls-key", str(made.key)]
        assert "can read the private key" in petstore.fails_in_one_line(*words)


# URLs with passwords


def test_a_url_is_read_from_a_file(tmp_path: Path) -> None:
    petstore = Commands(Server(tmp_path / "data", "cluster"))
    petstore.text("pets", "add", "--name", "Rex", "--category-id", "1")
    store, gate = tmp_path / "store", tmp_path / "gate"
    store.write_text(f"{petstore.server.store}\n")
    gate.write_text(str(petstore.server.gate))
    other = Commands(Server(tmp_path / "data"))  # without the two variables
    options = ["--store-file", str(store), "--gate-file", str(gate)]
    assert [pet["name"] for pet in other.json("pets", "list", *options)] == ["Rex"]
    variables = {"PETSTORE_STORE_FILE": str(store), "PETSTORE_GATE_FILE": str(gate)}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        assert [pet["name"] for pet in other.json("pets", "list")] == ["Rex"]
        assert "postgresql" in other.run("check").stdout
        empty = shared(Postgres).url(), shared(Redis).url()
        message = other.fails_in_one_line("pets", "list", "--store", empty[0], "--gate", empty[1])
        assert f"{empty[0]} has no Petstore data" in message  # the option overrides the variable
        patch.setenv("PETSTORE_STORE", empty[0])
        assert "--store cannot be combined with --store-file" in other.fails_in_one_line("pets", "list")


@pytest.mark.parametrize("content", ["", "\n", "postgresql://a\npostgresql://b\n", None], ids=repr)
def test_a_file_without_exactly_one_url_is_refused(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "store"
    if content is not None:
        file.write_text(content)
    petstore = Commands(Server(tmp_path / "data"))
    message = petstore.fails_in_one_line("pets", "list", "--store-file", str(file))
    assert message.startswith(f"--store-file {file}: ") and "postgresql" not in message


def test_a_file_without_an_end_is_no_url(tmp_path: Path) -> None:
    petstore = Commands(Server(tmp_path / "data"))
    assert "--store without a scheme" in petstore.fails_in_one_line("serve", "--store-file", "/dev/zero")


PASSWORDS = ["s3cr/et", "s3cr@et", "s3cr?et", "s3cr#et", "77/s3cret", "77?a=s3cret", "p@77/s3cret", "[s3cret"]
URLS = [
    ("--store", "postgresql://ada:{}@127.0.0.1:1/db"),
    ("--store", "ada:{}@db/pets"),
    ("--gate", "redis://ada:{}@127.0.0.1:1/0"),
    ("--gate", "redis+cluster://:{}@127.0.0.1:1"),
]


@pytest.mark.thorough
@pytest.mark.parametrize("password", PASSWORDS)
@pytest.mark.parametrize(("option", "url"), URLS)
def test_no_message_repeats_a_password(tmp_path: Path, option: str, url: str, password: str) -> None:
    petstore = Commands(Server(tmp_path / "data"))
    petstore.text("pets", "add", "--name", "Rex", "--category-id", "1")
    given = [option, url.format(password)]
    target = [f"--to-{option.removeprefix('--')}", given[1]]
    if option == "--gate":
        target += ["--to-store", str(tmp_path / "x")]
    commands = [["keys", "list", *given], ["check", *given], ["copy", *target]]
    if option == "--store":
        commands.append(["backup", str(tmp_path / "x.zip"), *given])
    for words in commands:
        done = petstore.run(*words)
        assert not {"s3cr", "cret", "/et", "?et", "#et", "@et"} & set(fragments(done.stdout + done.stderr)), words


def fragments(text: str) -> list[str]:
    return [text[start : start + length] for length in (3, 4) for start in range(len(text))]


_nasty = st.text("/@?#:[]&=%,;a1 ", max_size=6)


@given(before=_nasty, after=_nasty, rest=st.sampled_from(["", "/db", "/db?application_name=x", ",other:5432/db"]))
def test_a_url_without_its_password_has_no_part_of_it(before: str, after: str, rest: str) -> None:
    url = f"postgresql://ada:{before}s3cret{after}@host:5432{rest}"
    assert "s3cret" not in without_password(url)
    with contextlib.suppress(OperatorError):
        check_url("--store", url)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://ada:pw@db1,db2:5432/pets?sslmode=require", "postgresql://ada@db1,db2:5432/pets?sslmode=require"),
        ("postgresql://ada@[::1]:5432/pets?password=x&a=b", "postgresql://ada@[::1]:5432/pets?a=b"),
        ("postgresql:///pets?host=/run/postgresql", "postgresql:///pets?host=/run/postgresql"),
        ("redis://:p%40w@cache/0", "redis://@cache/0"),
        ("ada:pw@db/pets", "…"),
    ],
)
def test_other_parts_of_a_url_are_kept(url: str, shown: str) -> None:
    assert without_password(url) == shown
    check_url("--store", url)


@pytest.mark.usefixtures("open_umask")
def test_files_that_a_library_creates_are_private(tmp_path: Path) -> None:
    server = Served(tmp_path / "data").start()
    try:
        assert server.process is not None
        assert f"Umask:\t{data_dir.UMASK:04o}\n" in Path(f"/proc/{server.process.pid}/status").read_text()
    finally:
        server.stop()


@pytest.fixture
def core_dumps_allowed() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_CORE)
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    except ValueError:
        pytest.skip("only root can allow core dumps here")
    yield
    resource.setrlimit(resource.RLIMIT_CORE, before)


@pytest.mark.usefixtures("core_dumps_allowed")
@pytest.mark.parametrize("words", [("serve", "--workers", "2"), ("console",), ("keys", "identify")], ids=" ".join)
def test_no_process_writes_a_core_dump(tmp_path: Path, words: tuple[str, ...]) -> None:
    petstore = Commands(Server(tmp_path / "data"))
    petstore.server.create()
    port = ("--port", str(free_port())) if words != ("keys", "identify") else ()

    def limits(pid: int) -> list[str]:
        pids = (pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
        lines = [line for each in pids for line in Path(f"/proc/{each}/limits").read_text().splitlines()]
        return [line.split()[4] for line in lines if line.startswith("Max core file size")]

    with subprocess.Popen(
        [*PETSTORE, *words, *port], env=petstore.variables, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    ) as process:
        try:
            expected = ["0"] * (3 if words[0] == "serve" else 1)
            assert wait_for(lambda: limits(process.pid) == expected), limits(process.pid)
        finally:
            process.terminate()
