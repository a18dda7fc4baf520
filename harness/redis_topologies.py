"""Runs Redis as operators do: as a Cluster of three servers, with a Sentinel, and with TLS."""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from redis import Redis as Client
from redis.crc import key_slot

from harness.backends import Redis, running
from harness.served import wait_for
from harness.tls_proxies import TlsProxy
from petstore.gate.redis_script import key_record

SLOTS = 16_384
CLUSTER_NODE = ("--cluster-enabled", "yes", "--databases", "1", "--cluster-node-timeout", "2000")


class RedisCluster:
    """Three primaries, each with a third of the slots."""

    def __init__(self, nodes: list[Redis]) -> None:
        self.nodes = nodes
        self.clients: list[Any] = [Client(port=node.port) for node in nodes]
        for number, client in enumerate(self.clients):
            # Set the epochs as redis-cli does. If the servers had to negotiate them, a slot that has just moved could
            # briefly go back to its old owner, and the new owner would then drop its records.
            client.execute_command("CLUSTER SET-CONFIG-EPOCH", number + 1)
            client.execute_command("CLUSTER ADDSLOTS", *slots_of(number))
            if number:
                client.execute_command("CLUSTER MEET", "127.0.0.1", nodes[0].port)
        assert wait_for(lambda: all(self._is_complete(client) for client in self.clients))

    @staticmethod
    def _is_complete(client: Any) -> bool:
        info = client.execute_command("CLUSTER INFO")
        return bool(info["cluster_state"] == "ok" and info["cluster_known_nodes"] == "3")

    def url(self) -> str:
        """Empties the cluster and returns its URL."""
        for client in self.clients:
            client.flushall()
        return cluster_url(self.nodes)

    def begin_move(self, slot: int, name: str, source: int, target: int) -> None:
        """Moves a record to the target while the source still owns its slot."""
        here, there = self.clients[source], self.clients[target]
        there.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", here.execute_command("CLUSTER MYID"))
        here.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", there.execute_command("CLUSTER MYID"))
        here.migrate("127.0.0.1", self.nodes[target].port, name, 0, 1_000)

    def end_move(self, slots: Iterable[int], target: int) -> None:
        """Makes the target the owner of the slots. Notifies the target first, or it would give them up."""
        owner = self.clients[target].execute_command("CLUSTER MYID")
        for client in [self.clients[target], *self.clients]:
            commands = client.pipeline(transaction=False)
            for slot in slots:
                commands.execute_command("CLUSTER SETSLOT", slot, "NODE", owner)
            # A server without slots may have become a replica, which refuses the command.
            commands.execute(raise_on_error=False)


def slots_of(shard: int) -> range:
    """Returns the slots of a shard in a new Cluster."""
    return range(shard * SLOTS // 3, (shard + 1) * SLOTS // 3)


def shard_of(record: str) -> int:
    """Returns the shard of a record in a new Cluster."""
    return next(shard for shard in range(3) if key_slot(record.encode()) in slots_of(shard))


KEY_IDS = [f"key_{number}" for number in range(20)]


def key_on(shard: int) -> str:
    """Returns the id of a key whose record is on this shard in a new Cluster."""
    return next(key_id for key_id in KEY_IDS if shard_of(key_record(key_id)) == shard)


def cluster_url(nodes: Iterable[Redis]) -> str:
    return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in nodes)


@contextlib.contextmanager
def cluster_running(proxies: Sequence[TlsProxy] | None = None) -> Iterator[RedisCluster]:
    """Starts three servers. If there are proxies, each server announces the port of its proxy to clients."""
    with contextlib.ExitStack() as stack:
        nodes = []
        for number in range(3):
            announced = ("--cluster-announce-port", str(proxies[number].port)) if proxies else ()
            nodes.append(stack.enter_context(running(Redis(*CLUSTER_NODE, *announced))))
            if proxies:
                proxies[number].target = nodes[number].port
        cluster = RedisCluster(nodes)
        yield cluster
        for client in cluster.clients:
            client.close()


class Sentinel(Redis):
    def __init__(self, primary_port: int, *settings: str) -> None:
        super().__init__()
        (self.directory / "sentinel.conf").write_text(
            f"port {self.port}\nbind 127.0.0.1\ndir {self.directory}\n"
            f"sentinel monitor pets 127.0.0.1 {primary_port} 1\n"
            "sentinel down-after-milliseconds pets 500\nsentinel failover-timeout pets 2000\n"
            + "".join(f"{each}\n" for each in settings)
        )

    def command(self) -> list[str]:
        return [self._program, str(self.directory / "sentinel.conf"), "--sentinel"]

    def url(self) -> str:
        return f"redis+sentinel://127.0.0.1:{self.port}/pets"
