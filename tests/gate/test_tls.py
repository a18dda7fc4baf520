"""Redis, Sentinels and a Redis Cluster with TLS: certificates, names, logins, and the SSL context."""

import asyncio
import contextlib
import gc
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.backends import Redis, running
from harness.certificates import Certificate, self_signed
from harness.gates import PLENTY, REFUSE, ask
from harness.redis_topologies import Sentinel, cluster_running
from harness.stores import GatePlace
from harness.tls_proxies import TlsProxy
from petstore.errors import OperatorError, Unavailable
from petstore.gate import Gate, open_gate
from petstore.gate.redis_tls import tls_context
from petstore.gate.redis_url import open_link
from petstore.plans import Limits

OTHER_NAMES = "DNS:cache.example.com"

Places = Callable[[Certificate], contextlib.AbstractContextManager[tuple[str, list[TlsProxy]]]]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return self_signed(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def cluster_proxies(certificate: Certificate) -> Iterator[list[TlsProxy]]:
    """The proxies in front of a Redis Cluster."""
    with contextlib.ExitStack() as stack:
        proxies = [stack.enter_context(TlsProxy(certificate)) for _ in range(3)]
        stack.enter_context(cluster_running(proxies))
        yield proxies


@pytest.fixture(params=["server", "sentinel", "cluster"])
def behind_tls(request: pytest.FixtureRequest, redis: Redis) -> Places:
    """Returns a function that starts TLS proxies. It yields the URL without its query, and the proxies."""

    @contextlib.contextmanager
    def server(made: Certificate) -> Iterator[tuple[str, list[TlsProxy]]]:
        with TlsProxy(made, redis.port) as proxy:
            yield f"rediss://127.0.0.1:{proxy.port}/{redis.url().rpartition('/')[2]}", [proxy]

    @contextlib.contextmanager
    def sentinel(made: Certificate) -> Iterator[tuple[str, list[TlsProxy]]]:
        with (
            TlsProxy(made, redis.port) as primary,
            running(Sentinel(primary.port)) as asked,
            TlsProxy(made, asked.port) as proxy,
        ):
            yield f"rediss+sentinel://127.0.0.1:{proxy.port}/pets", [proxy, primary]

    @contextlib.contextmanager
    def cluster(made: Certificate) -> Iterator[tuple[str, list[TlsProxy]]]:
        proxies: list[TlsProxy] = request.getfixturevalue("cluster_proxies")
        for proxy in proxies:
            proxy.present(made)
            proxy.encrypted = 0
        yield f"rediss+cluster://127.0.0.1:{proxies[0].port}", proxies

    return {"server": server, "sentinel": sentinel, "cluster": cluster}[request.param]


def test_every_connection_is_encrypted(behind_tls: Places, certificate: Certificate, tmp_path: Path) -> None:
    async def work(gate: Gate) -> list[int]:
        await asyncio.gather(*(ask(gate, f"key_{number}", PLENTY) for number in range(20)))  # on every shard
        return [(await ask(gate, f"key_{tmp_path.name}", Limits(9, 9))).remaining for _ in range(2)]

    with behind_tls(certificate) as (url, proxies):
        place = GatePlace(tmp_path, f"{url}?ssl_ca_certs={certificate.chain}")
        assert place.use(work, REFUSE) == [8, 7]
        assert all(proxy.encrypted for proxy in proxies)
    gc.collect()  # warns about connections that were not closed properly; in tests, warnings are errors


@pytest.mark.parametrize("fault", ["another authority", "the system's authorities", "another name"])
def test_a_wrong_certificate_or_name_is_an_outage(
    behind_tls: Places, certificate: Certificate, tmp_path: Path, fault: str
) -> None:
    (tmp_path / "other").mkdir()
    other = self_signed(tmp_path / "other", names=OTHER_NAMES)
    query = {
        "another authority": f"?ssl_ca_certs={other.chain}",
        "the system's authorities": "",
        "another name": f"?ssl_ca_certs={other.chain}",
    }[fault]
    message = "Hostname mismatch|IP address mismatch" if fault == "another name" else "self.signed certificate"
    with behind_tls(other if fault == "another name" else certificate) as (url, _):
        with pytest.raises(Unavailable, match=message):
            GatePlace(tmp_path, url + query).use(lambda gate: gate.keys_version("live"), REFUSE)
        if fault == "another name":
            place = GatePlace(tmp_path, f"{url}{query}&ssl_check_hostname=false")
            assert place.use(lambda gate: gate.keys_version("live"), REFUSE) > 0


def test_a_server_without_tls_is_an_outage(certificate: Certificate, tmp_path: Path) -> None:
    with running(Redis()) as redis, pytest.raises(Unavailable):
        url = redis.url().replace("redis://", "rediss://") + f"?ssl_ca_certs={certificate.chain}"
        GatePlace(tmp_path, url).use(lambda gate: gate.keys_version("live"), REFUSE)


def test_sentinels_have_a_separate_login(redis: Redis, tmp_path: Path) -> None:
    users = ("user watcher on >sentinel-secret ~* &* +@all", "user default on nopass -@all +ping")
    with running(Sentinel(redis.port, *users)) as sentinel:
        login, url = "sentinel_username=watcher&sentinel_password=sentinel-secret", sentinel.url()
        assert GatePlace(tmp_path, f"{url}?{login}").use(lambda gate: gate.keys_version("live"), REFUSE) > 0
        for wrong in ("", f"?{login}x"):
            with pytest.raises(Unavailable, match=r"NoPermission|invalid username-password"):
                GatePlace(tmp_path, url + wrong).use(lambda gate: gate.keys_version("live"), REFUSE)


def test_a_link_creates_one_ssl_context(
    behind_tls: Places, certificate: Certificate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Creating an SSL context blocks the event loop for 40 ms."""
    created, create = 0, ssl.create_default_context

    def counted(*args: str, **options: str | None) -> ssl.SSLContext:
        nonlocal created
        created += 1
        return create(*args, **options)  # type: ignore[arg-type]  # the same arguments

    monkeypatch.setattr(ssl, "create_default_context", counted)
    with behind_tls(certificate) as (url, proxies):

        async def work() -> int:
            gate = open_gate(f"{url}?ssl_ca_certs={certificate.chain}", tmp_path, REFUSE)
            await asyncio.gather(*(ask(gate, f"key_{number}", PLENTY) for number in range(20)))
            await gate.close()
            return sum(proxy.encrypted for proxy in proxies)

        assert asyncio.run(work()) >= len(proxies)
    assert created == 1


def test_only_the_given_authority_is_trusted(certificate: Certificate) -> None:
    for options in ({"ssl_ca_certs": str(certificate.chain)}, {"ssl_ca_data": certificate.chain.read_text()}):
        (trusted,) = tls_context(options).get_ca_certs()
        assert trusted["subject"] == ((("commonName", "localhost"),),)


def test_the_options_of_tls_are_obeyed(certificate: Certificate) -> None:
    context = tls_context({})
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    context = tls_context({"ssl_cert_reqs": "none"})
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_NONE, False)
    own = {"ssl_certfile": str(certificate.chain), "ssl_keyfile": str(certificate.key), "ssl_min_version": 772}
    assert tls_context(own).minimum_version is ssl.TLSVersion.TLSv1_3


@pytest.mark.parametrize("kind", ["", "+sentinel", "+cluster"])
@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("ssl_ca_certs=/no/file", "ssl_ca_certs: /no/file is not readable"),
        ("ssl_cert_reqs=maybe", "the ssl_. options are not valid: .*maybe"),
        ("ssl_ca_certs=/dev/null", "the ssl_. options are not valid"),
        ("ssl_keyfile=/dev/null", "ssl_keyfile cannot be used without ssl_certfile"),
        ("ssl_min_version=1", "the ssl_. options are not valid: .*0x1"),
        ("ssl_context=x", "ssl_context: unknown option; valid options: .*ssl_ca_certs"),
    ],
)
def test_invalid_options_of_tls_are_refused_in_one_line(kind: str, query: str, message: str) -> None:
    with pytest.raises(OperatorError, match=message) as refused:
        open_link(f"rediss{kind}://h:1/{'pets' if kind == '+sentinel' else ''}?{query}")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("scheme", ["redis", "valkey", "redis+sentinel", "redis+cluster"])
def test_a_plaintext_scheme_refuses_the_options_of_tls(scheme: str) -> None:
    with pytest.raises(OperatorError, match="ssl_ca_certs: unknown option"):
        open_link(f"{scheme}://h:1/{'pets' if 'sentinel' in scheme else ''}?ssl_ca_certs=x")
