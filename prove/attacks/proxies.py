"""Slow and greedy clients at one address, through each proxy configuration in deploy/. Other addresses are served.

The proof runs in a network namespace, where it loads the firewall rules for nginx.
"""

import asyncio
import re
import resource
import shutil
import tempfile
from pathlib import Path

import httpx

from harness.backends import Missing, program, running
from harness.claims import Skipped, hold
from harness.greedy_clients import KINDS, Target, attack, send_requests
from harness.isolated import isolated, load_firewall
from harness.proxies import CONFIGS, Proxy, proxy_for
from harness.served import wait_for
from harness.servers import Server, started
from prove.proof import Figures, Parts, Scale

FULL = {"silent": 5_200, "unfinished_handshake": 5_200, "idle": 5_000, "slow_head": 1_530, "slow_body": 1_530,
        "slow_streams": 16}  # fmt: skip
SHORT = {"silent": 300, "slow_body": 300, "slow_streams": 4}
SECONDS = 20.0  # for each kind of client at full scale
PER_CLIENT = 256
WORKER_CONNECTIONS = 4_096  # as in the guide
LIMITS = re.compile(r"(?m)^ *(tcp-request connection reject|http-request deny deny_status 503|limit_conn petstore).*\n")
SLOWHTTPTEST = {
    "slow heads": "-H -i 10 -x 24",
    "slow bodies": "-B -i 10 -x 10 -s 8192",
    "slow reads": "-X -w 512 -y 1024 -n 5 -z 32 -k 3",
}
Found = dict[str, tuple[int, list[int]]]  # for each kind: what one address held, and the statuses that another one got


def prove(scale: Scale) -> Figures:
    parts = Parts(scale)
    responses = 0
    try:
        program("nft")
        found = {config: isolated(_measure, config, scale.name, str(scale.plant)) for config in CONFIGS}
    except Missing as missing:
        raise Skipped(str(missing)) from None
    for config, kinds in found.items():
        with parts.part():
            for kind, (held, statuses) in kinds.items():
                hold(held <= PER_CLIENT, f"{kind}: one address holds {held} connections through {config}")
                hold(set(statuses) == {200}, f"{kind}: another address got {set(statuses)} through {config}")
                responses += len(statuses)
    parts.judge()
    return {"proxies": len(found), "kinds of clients": len(kinds), "responses to another address": responses}


def _measure(config: str, scale: str, plant: str) -> Found:
    full, planted = scale == "full", plant == "True"
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    options = ("--trusted-proxy", "127.0.0.1", "--address-per-minute", "1000000")
    with (
        tempfile.TemporaryDirectory() as directory,
        started(Server(Path(directory) / "data", "own", *options)) as service,
    ):
        proxy = proxy_for(config, service, connections=WORKER_CONNECTIONS)
        if planted:
            proxy.config.write_text(LIMITS.sub("", proxy.config.read_text()))
        elif config == "nginx.conf":
            load_firewall(proxy.port)
        with running(proxy):
            assert wait_for(lambda: httpx.get(proxy.origin + "/readyz", verify=False).status_code == 200)
            return asyncio.run(_attacked(proxy, Target(proxy.port, service.key().secret), full))


async def _attacked(proxy: Proxy, target: Target, full: bool) -> Found:
    found: Found = {}
    for kind, count in (FULL if full else SHORT).items():
        outcome = await attack(KINDS[kind], target, count, seconds=SECONDS if full else 0.5, reconnect=full)
        found[kind] = outcome.held, outcome.statuses
    if full and (slowhttptest := shutil.which("slowhttptest")):
        for kind, options in SLOWHTTPTEST.items():
            url = f"{proxy.origin}/openapi.json" if kind == "slow reads" else f"{proxy.origin}/v1/pets"
            words = ["-c", "1000", "-r", "200", "-l", str(int(SECONDS)), *options.split(), "-u", url]
            process = await asyncio.create_subprocess_exec(slowhttptest, *words, stdout=asyncio.subprocess.DEVNULL)
            responses = await send_requests(target, SECONDS)
            found[kind] = 0, [response.status if response else 0 for response in responses]
            hold(await process.wait() == 0, "slowhttptest runs to its end")
    return found
