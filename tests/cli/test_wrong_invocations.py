"""Common mistakes on the command line. Each gets exit code 2 and one line that says what to do."""

import shlex

import pytest

from harness.commands import Commands
from harness.servers import Server

# Arguments and a part of the message. KEY is a key's id, DIR an empty directory, and animals.csv an imported file.
WRONG = [
    ("frobnicate", "No such command 'frobnicate'. (see "),
    ("serv", "Did you mean 'serve'?"),
    ("--verison", "Did you mean '--version'?"),
    ("serve --port 70000", "is not a whole number from 1 to 65,535"),
    ("serve --port eighty", "is not a whole number from 1 to 65,535"),
    ("serve --port", "requires an argument"),
    ("serve --workers 0", "is not a whole number from 1 to 256"),
    ("serve --public-url example.com", "use an address like https://api.example.com"),
    ("serve --public-url ftp://example.com", "use an address like https://api.example.com"),
    ("serve --staging-url nowhere", "use an address like https://"),
    ("serve --tls-cert missing.pem", "--tls-cert and --tls-key must be used together"),
    ("serve --tls-cert missing.pem --tls-key missing.pem", "missing.pem: the file does not exist"),
    ("serve --store mysql://localhost/pets", "give a URL like postgresql://user@host/database"),
    ("serve --gate memcached://localhost", "give a URL like redis://host:6379/0"),
    ("serve --host 300.1.1.1", "no such address"),
    ("serve extra", "unexpected extra argument (extra) (see "),
    ("keys make", "No such command 'make'. (see "),
    ("keys crate", "(Did you mean one of: 'create', 'rotate'?) (see "),
    ("keys create", "Missing option '--plan'. Choose from: free, pro, business, enterprise"),
    ("keys create --plan gold", "is not one of 'free', 'pro', 'business', 'enterprise'"),
    ("keys create --plan pro --env production", "is not one of 'live', 'staging'"),
    ("keys create --plan pro --scope admin", "is not one of 'read', 'write'"),
    ("keys create --plan pro --expires yesterday", "write it like 90d, 24h, 30m or 10s"),
    ("keys create --plan pro --expires 0d", "the minimum is 1s"),
    ("keys create --plan pro --per-minute 10", "--per-minute and --per-day require --plan enterprise"),
    ("keys create --plan enterprise", "needs its own limits; set them with --per-minute N and --per-day N"),
    ("keys create --plan enterprise --per-minute 0 --per-day 10", "is not a whole number from 1 to 1,000,"),
    ("keys create --plan enterprise --per-minute ten --per-day 100", "is not a whole number from 1 to 1,000,"),
    ("keys show", "Missing argument 'ID'"),
    ("keys show nokey", "list the ids with `petstore keys list"),
    ("keys update KEY", "nothing to change; use --plan, --name"),
    ("keys update KEY --expires never-ever", "write it like 90d, 24h, 30m or 10s"),
    ("keys rotate KEY --overlap -1h", "write it like 90d, 24h, 30m or 10s"),
    ("keys rotate KEY", "Use --yes to skip the prompt"),
    ("keys revoke KEY", "Use --yes to skip the prompt"),
    ("keys suspend nokey", "list the ids with `petstore keys list"),
    ("keys resume KEY", "is not suspended, so there is nothing to resume"),
    ("keys identify", "no secret was found on standard input"),
    ("keys list --state broken", "is not one of 'active', 'banned', 'suspended', 'expired', 'revoked'"),
    ("pets list --search", "requires an argument"),
    ("pets show zero", "is not a 64-bit whole number"),
    ("pets show 999", "list the ids with `petstore pets list"),
    ("pets update 999 --name Rex", "list the ids with `petstore pets list"),
    ("pets add", "Missing option '--name'"),
    ("pets add --name Rex --category-id 1 --status sleeping", "is not one of 'available', 'pending', 'sold'"),
    ("pets update 1", "nothing to change; use --name, --category-id"),
    ("pets update 1 --category-id 99999999999999999999", "is not a 64-bit whole number"),
    ("pets remove", "nothing to remove; specify ids or use --added-by"),
    ("pets remove 1", "Use --yes to skip the prompt"),
    ("pets set-status 1 2", "Invalid value for 'STATUS': '2' is not one of 'available', 'pending', 'sold'"),
    ("pets restore 1", "has not been removed from live"),
    ("pets import missing.csv", "missing.csv: No such file or directory"),
    ("pets import -", "use --format jsonl, csv or json"),
    ("pets import animals.xlsx", "the name must end in .jsonl, .ndjson, .csv or .json"),
    ("pets import animals.csv --format xml", "is not one of 'jsonl', 'csv', 'json'"),
    ("pets import animals.csv", "Use --yes to skip the prompt"),
    ("pets undo-import 99 --yes", "list the ids with `petstore pets imports"),
    ("pets export", "Missing argument 'FILE'"),
    ("pets export nowhere/animals.csv", "nowhere: no such directory; create it first"),
    ("pets export animals.pdf", "the name must end in .jsonl, .ndjson or .csv"),
    ("bans lift nokey", "list the ids with `petstore keys list"),
    ("bans lift KEY", "is not banned, so there is nothing to lift"),
    ("usage --month october", "write it like 2026-10"),
    ("usage --month 2026-13", "write it like 2026-10"),
    ("usage nokey", "list the ids with `petstore keys list"),
    ("usage --operation deletePet", "is not one of 'listPets', 'createPet', 'getPet'"),
    ("usage --csv --json", "cannot be combined with --json"),
    ("audit --limit -1", "is not a whole number from 1 to 10,000"),
    ("audit --what dance", "is not one of 'create key'"),
    ("operators revoke nobody", "list the names with `petstore operators list"),
    ("backup", "Missing argument 'FILE|DIR'"),
    ("backup nowhere/a.zip", "nowhere: no such directory; create it first"),
    ("restore missing.zip", "missing.zip: No such file or directory"),
    ("restore animals.csv --force", "not a Petstore backup; nothing was changed"),
    ("copy", "Missing option '--to-store' or '--to-store-file'"),
    ("copy --to-store mysql://db/x", "--to-store mysql: use postgresql://user@host/database or a directory"),
    ("copy --to-store DIR --to-gate memcached://x", "--to-gate memcached: use redis://host:6379/0"),
    ("console --port abc", "is not a whole number from 1 to 65,535"),
    ("console --host 0.0.0.0", "Use --host 127.0.0.1 and ssh -L"),
    ("keys list --data nowhere", "nowhere has no Petstore data"),
    ("completion tcsh", "is not one of 'bash', 'zsh', 'fish'"),
    ("help nothing", "No such command 'nothing'"),
    ("help keys crate", "(Did you mean one of: 'create', 'rotate'?) (see "),
    ("deploy-files", "Missing argument 'DIR'"),
]


@pytest.fixture(scope="module")
def petstore(tmp_path_factory: pytest.TempPathFactory) -> Commands:
    commands = Commands(Server(tmp_path_factory.mktemp("wrong") / "data"))
    files = commands.data.parent
    (files / "animals.csv").write_text("name,categoryId\nRex,1\n")
    (files / "animals.xlsx").write_text("x")
    (files / "empty").mkdir()
    commands.run("pets", "import", str(files / "animals.csv"))
    return commands


@pytest.fixture(scope="module")
def key_id(petstore: Commands) -> str:
    return str(petstore.json("keys", "create", "--plan", "free")["id"])


@pytest.mark.parametrize(("words", "said"), WRONG, ids=[words for words, _ in WRONG])
def test_a_wrong_invocation_is_one_line_that_says_what_to_do(
    petstore: Commands, key_id: str, words: str, said: str
) -> None:
    files = petstore.data.parent
    done = petstore.run(*({"KEY": key_id, "DIR": "empty"}.get(word, word) for word in shlex.split(words)), cwd=files)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("petstore: ") and done.stderr.count("\n") == 1
    assert said in done.stderr
    assert sorted(path.name for path in files.iterdir() if path.suffix != ".log") == [
        "animals.csv", "animals.xlsx", "data", "empty"
    ]  # fmt: skip
