"""The alert rules and the dashboard. They use only existing metrics, and alerts fire in time."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from petstore.observability.metrics import METRICS, Histogram

DOCS = Path(__file__).parents[2] / "docs"
ALERTS = yaml.safe_load((DOCS / "monitoring/petstore-alerts.yml").read_text())
DASHBOARD = json.loads((DOCS / "monitoring/grafana-dashboard.json").read_text())
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="Prometheus' promtool is not installed")

RULES: list[dict[str, Any]] = [rule for group in ALERTS["groups"] for rule in group["rules"]]
PANELS: list[dict[str, Any]] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
LABELS_OF_PROMETHEUS = {"instance", "job", "le"}


def known_names() -> dict[str, set[str]]:
    """Returns the name of every sample that a scrape can contain, with its labels."""
    known = {}
    for metric in METRICS:
        for suffix in ["_bucket", "_count", "_sum"] if isinstance(metric, Histogram) else [""]:
            known[metric.name + suffix] = {*metric.labels, *LABELS_OF_PROMETHEUS}
    return known


def expressions() -> Iterator[tuple[str, str]]:
    for rule in RULES:
        yield rule["alert"], rule["expr"]
    for panel in PANELS:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


@pytest.mark.parametrize(("where", "expression"), list(expressions()), ids=lambda value: str(value)[:40])
def test_every_name_and_label_exists(where: str, expression: str) -> None:
    known = known_names()
    named = re.findall(r"\b((?:petstore|process)_\w+)(?:\{([^}]*)\})?", expression)
    assert named or where == "PetstoreDown"
    labels: set[str] = set()
    for name, selector in named:
        assert name in known, f"{where}: there is no {name}"
        used = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector))
        assert used <= known[name], f"{where}: {name} has no label {used - known[name]}"
        labels |= known[name]
        # All jobs that Prometheus scrapes have process metrics, so a selector must name the job.
        assert "job" in used or not name.startswith("process_"), f"{where}: {name} includes all jobs"
    for group in re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", expression):
        assert {label.strip() for label in group.split(",")} <= labels, f"{where}: by ({group})"


def test_every_metric_is_shown_in_the_dashboard() -> None:
    text = json.dumps(DASHBOARD)
    assert [metric.name for metric in METRICS if metric.name not in text] == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_every_alert_has_a_severity_and_a_runbook(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("page", "ticket")
    assert rule["annotations"]["summary"]
    text = (DOCS / "at-3-am.md").read_text()
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert rule["annotations"]["runbook"] in [anchor(heading) for heading in headings]
    assert f"`{rule['alert']}`" in text
    (row,) = re.findall(rf"^\| `{rule['labels']['severity']}`: .+$", (DOCS / "monitoring.md").read_text(), re.MULTILINE)
    assert f"`{rule['alert']}`" in row


def anchor(heading: str) -> str:
    """Returns the anchor of a heading: in lower case, without punctuation, with hyphens for spaces."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_the_dashboard_has_the_form_that_grafana_imports() -> None:
    assert {"title", "uid", "schemaVersion", "panels", "templating", "time"} <= set(DASHBOARD)
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(numbers)) == len(numbers)
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        grid = panel["gridPos"]
        cells = {(x, y) for x in range(grid["x"], grid["x"] + grid["w"])
                 for y in range(grid["y"], grid["y"] + grid["h"])}  # fmt: skip
        assert not cells & taken, panel["title"]
        assert grid["x"] + grid["w"] <= 24
        taken |= cells
    for panel in PANELS:
        assert panel["datasource"]["uid"] == "${datasource}"
        assert panel["fieldConfig"]["defaults"]["unit"]
    assert [variable["name"] for variable in DASHBOARD["templating"]["list"]] == ["datasource", "instance"]


@needs_promtool
@pytest.mark.parametrize("words", ["check rules petstore-alerts.yml", "check config --syntax-only prometheus.yml"])
def test_promtool_accepts_the_files(words: str) -> None:
    done = subprocess.run(
        [str(PROMTOOL), *words.split()], cwd=DOCS / "monitoring", capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


# One value per minute, in promtool's notation, for a healthy hour followed by 90 minutes with a fault.
FAULTS = {
    "PetstoreDown": {'up{job="petstore"}': "1x60 0x90"},
    "PetstoreStoreDown": {'petstore_store_down{environment="live",access="write"}': "0x60 1x90"},
    "PetstoreGateDown": {"petstore_gate_down": "0x60 2x90"},
    "PetstoreErrors": {
        'petstore_requests_total{status="200"}': "0+600x150",
        'petstore_requests_total{status="503"}': "0x60 0+60x90",
    },
    "PetstoreSlow": {
        'petstore_request_duration_seconds_bucket{operation="listPets",le="0.25"}': "0+600x60 36000x90",
        'petstore_request_duration_seconds_bucket{operation="listPets",le="1.0"}': "0+600x150",
        'petstore_request_duration_seconds_bucket{operation="listPets",le="+Inf"}': "0+600x150",
    },
    "PetstoreSaturated": {
        'process_cpu_seconds_total{job="petstore"}': "0+30x60 1800+118x90",
        'petstore_workers{job="petstore"}': "2x150",
    },
    "PetstoreWorkersDie": {"petstore_worker_starts_total": "2x60 2+1x90", "petstore_workers": "2x150"},
    "PetstoreDiskFull": {"petstore_free_bytes": "5e9x60 5e8x90"},
    "PetstoreDiskFilling": {"petstore_free_bytes": "1e12x60 1e12-2e9x90"},
    "PetstoreLogGrows": {'petstore_store_wal_bytes{environment="live"}': "16e6x60 4e8x90"},
    "PetstoreQueue": {'petstore_store_queue{environment="live"}': "3x60 2000x90"},
    "PetstoreNoBackup": {"petstore_last_backup_timestamp_seconds": "0+60x60 -90000x90"},
    "PetstoreKeysGuessed": {
        'petstore_admissions_total{subject="address",outcome="refused"}': "0+60x60 3600+6000x90",
    },
    "PetstoreConnectionsRefused": {'petstore_refused_connections_total{reason="per_address"}': "0x60 0+600x90"},
    "PetstoreCertificateExpires": {"petstore_certificate_expiry_timestamp_seconds": "9e6x60 1e6x90"},
    "PetstoreKeysExpire": {'petstore_keys_expiring{environment="live"}': "0x60 2x90"},
    "PetstoreBans": {'petstore_admissions_total{subject="key",outcome="banned"}': "0x60 0+100x90"},
}


def alerts_fired(faults: dict[str, dict[str, str]], minutes: tuple[int, ...], directory: Path) -> set[tuple[str, int]]:
    """Returns the alerts that fire at the given minutes, as promtool evaluates them.

    The files for promtool expect no alerts, so it reports each alert that fires.
    """
    for alert, series in faults.items():
        (rule,) = [rule for rule in RULES if rule["alert"] == alert]
        test = {
            "interval": "1m",
            "input_series": [{"series": name, "values": values} for name, values in series.items()],
            "alert_rule_test": [
                {"eval_time": f"{minute}m", "alertname": alert, "exp_alerts": []} for minute in minutes
            ],
        }
        rules = {"groups": [{"name": alert, "rules": [rule]}]}
        (directory / f"{alert}.rules.yml").write_text(yaml.safe_dump(rules))
        (directory / f"{alert}.yml").write_text(yaml.safe_dump({"rule_files": [f"{alert}.rules.yml"], "tests": [test]}))
    command = [str(PROMTOOL), "test", "rules", *(f"{alert}.yml" for alert in faults)]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=60)
    fired = re.findall(r"alertname: (\w+), time: (?:(\d+)h)?(?:(\d+)m)?", done.stdout + done.stderr)
    assert bool(fired) == (done.returncode != 0), done.stderr
    return {(alert, int(hours or 0) * 60 + int(rest or 0)) for alert, hours, rest in fired}


@needs_promtool
def test_each_alert_fires_on_its_fault_and_not_before(tmp_path: Path) -> None:
    assert set(FAULTS) == {rule["alert"] for rule in RULES}
    assert alerts_fired(FAULTS, (55, 148), tmp_path) == {(alert, 148) for alert in FAULTS}


@needs_promtool
@pytest.mark.parametrize(("store", "fires"), [("sqlite", True), ("postgresql", False)])
def test_a_node_without_any_backup_is_reported_if_its_store_is_embedded(
    store: str, fires: bool, tmp_path: Path
) -> None:
    series = {f'petstore_build_info{{store="{store}"}}': "1x100"}
    assert bool(alerts_fired({"PetstoreNoBackup": series}, (90,), tmp_path)) == fires
