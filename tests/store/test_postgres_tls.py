"""PostgreSQL behind TLS: `sslmode=verify-full` refuses a wrong certificate, a wrong name and a server without TLS."""

from pathlib import Path
from urllib.parse import urlsplit

import pytest

from harness.backends import Postgres
from harness.certificates import Certificate, self_signed
from harness.commands import Commands
from harness.servers import Server
from harness.stores import NOW, StorePlace, names
from harness.tls_proxies import TlsProxy
from petstore.pets import NewPet
from petstore.store import Store

PASSWORD = "correct-horse"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return self_signed(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def of_another_name(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return self_signed(tmp_path_factory.mktemp("other"), names="DNS:db.example.com")


def url_at(port: int, postgres: Postgres, trusted: Certificate) -> str:
    database = urlsplit(postgres.url()).path
    query = f"sslmode=verify-full&sslrootcert={trusted.chain}"
    return f"postgresql://pets:{PASSWORD}@127.0.0.1:{port}{database}?{query}"


def test_every_connection_is_encrypted(postgres: Postgres, certificate: Certificate, tmp_path: Path) -> None:
    async def work(store: Store) -> list[str]:
        await store.pets.add(NewPet("Rex", 1), NOW)
        return await names(store)

    with TlsProxy(certificate, postgres.port) as proxy:
        assert StorePlace(tmp_path, url_at(proxy.port, postgres, certificate)).use(work) == ["Rex"]
        assert proxy.encrypted > 0


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("another authority", "self-signed certificate|self signed certificate"),
        ("another name", "IP address mismatch|Hostname mismatch"),
        ("no TLS", "rejected SSL upgrade"),
    ],
)
def test_a_wrong_server_is_refused_in_one_line_without_the_password(
    postgres: Postgres, certificate: Certificate, of_another_name: Certificate, tmp_path: Path, fault: str, message: str
) -> None:
    presented = of_another_name if fault == "another name" else certificate
    trusted = of_another_name if fault == "another authority" else presented
    with TlsProxy(presented, postgres.port) as proxy:
        server = Server(tmp_path / "data", "cluster")
        server.store = url_at(postgres.port if fault == "no TLS" else proxy.port, postgres, trusted)
        commands = Commands(server)
        for words in (["pets", "list"], ["keys", "create", "--plan", "free"]):
            refused = commands.fails_in_one_line(*words)
            assert any(each in refused for each in message.split("|")), refused
            assert PASSWORD not in refused
        assert PASSWORD not in (checked := commands.run("check")).stdout + checked.stderr
        assert checked.returncode != 0
