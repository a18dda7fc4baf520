"""deploy/kubernetes.yaml: its schema, who may reach the pods, and its commands with their environment."""

import ipaddress
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import kubernetes_validate
import pytest
import yaml

from harness.backends import Postgres, free_port, shared
from harness.commands import Commands
from harness.served import wait_for
from harness.servers import Server, takes_connections

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
MANIFEST = {part["kind"]: part for part in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())}
TEMPLATE = MANIFEST["Deployment"]["spec"]["template"]
POD = TEMPLATE["spec"]
DUMP = MANIFEST["CronJob"]["spec"]["jobTemplate"]["spec"]["template"]
PETSTORE = Path(sys.executable).with_name("petstore")
SCRAPER = "127.0.0.9"


@pytest.mark.parametrize("version", ["1.30", kubernetes_validate.latest_version()])  # the sleep action needs 1.30
@pytest.mark.parametrize("kind", MANIFEST)
def test_the_manifest_follows_the_schemas_of_kubernetes(kind: str, version: str) -> None:
    kubernetes_validate.validate(MANIFEST[kind], version, strict=True)


def test_a_misspelt_member_of_the_manifest_would_be_found() -> None:
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**MANIFEST["Service"], "spek": {}}, "1.30", strict=True)


def test_the_manifest_has_no_two_objects_of_a_kind() -> None:
    assert len(list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))) == len(MANIFEST)


@pytest.mark.parametrize("pod", [POD, DUMP["spec"]], ids=["service", "dump"])
def test_the_pods_have_limits_and_secrets_as_files(pod: Any) -> None:
    (container,) = pod["containers"]
    assert "memory" in container["resources"]["limits"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert (pod["securityContext"]["runAsUser"], pod["automountServiceAccountToken"]) == (10001, False)
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert set(mounted) == {volume["name"] for volume in pod["volumes"]}
    assert [mounted[volume["name"]] for volume in pod["volumes"] if "secret" in volume] == ["/run/secrets"]
    assert all("valueFrom" not in variable for variable in container.get("env", ()))


def test_no_other_pod_is_trusted_to_name_the_address_of_a_client() -> None:
    (container,) = POD["containers"]
    (trusted,) = [each["value"] for each in container["env"] if each["name"] == "PETSTORE_TRUSTED_PROXIES"]
    assert [ipaddress.ip_network(each).num_addresses for each in trusted.split(",")] == [1]


def test_the_service_the_budget_and_the_network_policy_select_only_the_pods_of_the_service() -> None:
    labels = TEMPLATE["metadata"]["labels"]
    assert MANIFEST["Service"]["spec"]["selector"] == labels != DUMP["metadata"]["labels"]
    assert MANIFEST["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert MANIFEST["PodDisruptionBudget"]["spec"]["minAvailable"] < MANIFEST["Deployment"]["spec"]["replicas"]
    assert MANIFEST["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == labels


def test_only_the_ingress_controller_and_prometheus_reach_the_pods() -> None:
    (rule,) = MANIFEST["NetworkPolicy"]["spec"]["ingress"]
    # An element with one selector would admit a whole namespace, or pods with this label in the service's namespace.
    assert [set(peer) for peer in rule["from"]] == [{"namespaceSelector", "podSelector"}] * 2
    (container,) = POD["containers"]
    assert [port["port"] for port in rule["ports"]] == [port["name"] for port in container["ports"]]
    annotations = TEMPLATE["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(container["ports"][0]["containerPort"])


# The commands


@pytest.fixture
def node(tmp_path: Path) -> Commands:
    """The data of a node, which are in PostgreSQL and Redis. Their URLs are in `secrets/petstore.env`."""
    commands = Commands(Server(tmp_path / "data", "cluster"))
    commands.json("keys", "create", "--plan", "free")
    (tmp_path / "secrets").mkdir()
    urls = {"PETSTORE_STORE": commands.server.store, "PETSTORE_GATE": commands.server.gate}
    lines = (f"{name}={shlex.quote(str(url))}\n" for name, url in urls.items())
    (tmp_path / "secrets/petstore.env").write_text("".join(lines))
    return commands


def variables() -> dict[str, str]:
    """Returns the variables of the image and of the pod."""
    image = dict(re.findall(r"\b(PETSTORE_\w+)=(\S+)", (ROOT / "Containerfile").read_text()))
    (container,) = POD["containers"]
    return {**image, **{each["name"]: each["value"] for each in container["env"]}}


@pytest.fixture
def pod(node: Commands, tmp_path: Path) -> Iterator[str]:
    """Runs the pod's command with its environment, but with paths and addresses of this machine. Yields its origin."""
    script = (DEPLOY / "container/petstore.sh").read_text()
    script = script.replace("/run/secrets", str(tmp_path / "secrets")).replace(
        "/opt/petstore/.venv/bin/petstore", str(PETSTORE)
    )
    port = free_port()
    own = {"PETSTORE_HOST": "127.0.0.1", "PETSTORE_PORT": str(port), "PETSTORE_DATA": str(tmp_path / "data"),
           "PETSTORE_METRICS_FROM": SCRAPER}  # fmt: skip
    assert set(own) <= set(variables())
    environment = {"PATH": os.environ["PATH"], **variables(), **own}
    with subprocess.Popen(["sh", "-c", script, "petstore", "serve"], env=environment) as process:
        try:
            assert wait_for(lambda: takes_connections(port))
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def test_the_pods_command_answers_its_probes(pod: str) -> None:
    (container,) = POD["containers"]
    probes = [container[probe]["httpGet"]["path"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")]
    assert wait_for(lambda: [httpx.get(pod + path).status_code for path in probes] == [200] * 3)


def test_only_the_scraper_gets_the_pods_metrics(pod: str) -> None:
    path = TEMPLATE["metadata"]["annotations"]["prometheus.io/path"]
    own_name = {"Host": "10.244.1.7:8080"}  # Prometheus uses the pod's address

    def status(source: str, **headers: str) -> int:
        with httpx.Client(transport=httpx.HTTPTransport(local_address=source)) as client:
            return client.get(pod + path, headers={**own_name, **headers}).status_code

    assert status(SCRAPER) == 200
    assert status("127.0.0.8") == 404
    assert status(SCRAPER, **{"X-Forwarded-For": SCRAPER}) == 404  # through an ingress that is not trusted


def test_the_cron_jobs_command_makes_a_dump(node: Commands, tmp_path: Path) -> None:
    postgres = shared(Postgres)
    postgres.execute("DROP DATABASE IF EXISTS petstore_dump_test")
    postgres.execute("CREATE DATABASE petstore_dump_test")
    (container,) = DUMP["spec"]["containers"]
    (scripts,) = [volume["configMap"] for volume in DUMP["spec"]["volumes"] if "configMap" in volume]
    created = re.search(rf"kubectl create configmap {scripts['name']} (.*)", (DEPLOY / "kubernetes.yaml").read_text())
    assert created is not None
    (tmp_path / "scripts").mkdir()
    for name in re.findall(r"--from-file=(\S+)", created[1]):
        (tmp_path / "scripts" / name).write_text((DEPLOY / name).read_text())
    (tmp_path / "dumps").mkdir()
    command = " ".join(map(shlex.quote, [*container["command"], *container["args"]]))
    for mount in container["volumeMounts"]:
        command = command.replace(mount["mountPath"], str(tmp_path / mount["name"]))
    environment = {"PATH": f"{postgres.programs}:{os.environ['PATH']}"}
    done = subprocess.run(["sh", "-c", command], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    (dump,) = (tmp_path / "dumps").iterdir()
    assert dump.suffix == ".dump"
