"""The alert rules and the dashboard: every name in them is a metric that exists, with labels that it has."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from petstore.observability.metrics import METRICS, Counter, Histogram

DOCS = Path(__file__).parent.parent / "docs"
ALERTS = yaml.safe_load((DOCS / "monitoring/petstore-alerts.yml").read_text())
DASHBOARD = json.loads((DOCS / "monitoring/grafana-dashboard.json").read_text())
PROMTOOL = shutil.which("promtool")

RULES: list[dict[str, Any]] = [rule for group in ALERTS["groups"] for rule in group["rules"]]
PANELS: list[dict[str, Any]] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
FROM_PROMETHEUS = {"instance", "job", "le"}


def known_names() -> dict[str, set[str]]:
    """Every name that a scrape can have, with its labels."""
    known = {}
    for metric in METRICS:
        if isinstance(metric, Histogram):
            endings = ["_bucket", "_count", "_sum"]
        else:
            endings = ["_total"] if isinstance(metric, Counter) else [""]
        for ending in endings:
            known[metric.name + ending] = {*metric.labels, *FROM_PROMETHEUS}
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
    named = re.findall(r"\b(petstore_\w+)(?:\{([^}]*)\})?", expression)
    assert named or where == "PetstoreDown"
    labels: set[str] = set()
    for name, selector in named:
        assert name in known, f"{where}: there is no {name}"
        used = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector))
        assert used <= known[name], f"{where}: {name} has no label {used - known[name]}"
        labels |= known[name]
    for group in re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", expression):
        assert {label.strip() for label in group.split(",")} <= labels, f"{where}: by ({group})"


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_every_metric_has_a_row_in_the_handbook_with_its_labels(metric: Any) -> None:
    shown = metric.name + ("_total" if isinstance(metric, Counter) else "")
    kind = type(metric).__name__.lower()
    text = (DOCS / "metrics.md").read_text()
    row = re.search(rf"^\| `{shown}` \| {kind} \|(.*?)\| (.+) \|$", text, re.MULTILINE)
    assert row is not None, f"docs/metrics.md has no row for {shown}, a {kind}"
    assert set(re.findall(r"`(\w+)`", row[1])) == set(metric.labels)


def test_no_metric_is_documented_that_does_not_exist() -> None:
    documented = re.findall(r"^\| `(petstore_\w+)` \|", (DOCS / "metrics.md").read_text(), re.MULTILINE)
    assert set(documented) == {metric.name + ("_total" if isinstance(metric, Counter) else "") for metric in METRICS}
    assert len(documented) == len(METRICS)


def test_every_metric_is_shown_in_the_dashboard() -> None:
    text = json.dumps(DASHBOARD)
    assert [metric.name for metric in METRICS if metric.name not in text] == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_every_alert_has_a_severity_and_a_page_to_read(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("page", "ticket")
    assert rule["annotations"]["summary"]
    headings = re.findall(r"^## (.+)$", (DOCS / "at-3-am.md").read_text(), re.MULTILINE)
    assert rule["annotations"]["runbook"] in [anchor(heading) for heading in headings]


def anchor(heading: str) -> str:
    """What a heading is linked by: lower case, without punctuation, hyphens for spaces."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_the_dashboard_is_one_that_grafana_takes() -> None:
    assert {"title", "uid", "schemaVersion", "panels", "templating", "time"} <= set(DASHBOARD)
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(numbers)) == len(numbers)
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"])
                 for y in range(place["y"], place["y"] + place["h"])}  # fmt: skip
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
    for panel in PANELS:
        assert panel["datasource"]["uid"] == "${datasource}"
        assert panel["fieldConfig"]["defaults"]["unit"]
    assert [variable["name"] for variable in DASHBOARD["templating"]["list"]] == ["datasource", "instance"]


@pytest.mark.skipif(PROMTOOL is None, reason="Prometheus' promtool is not installed")
@pytest.mark.parametrize("words", ["check rules petstore-alerts.yml", "check config --syntax-only prometheus.yml"])
def test_prometheus_takes_the_files(words: str) -> None:
    done = subprocess.run(
        [str(PROMTOOL), *words.split()], cwd=DOCS / "monitoring", capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(PROMTOOL is None, reason="Prometheus' promtool is not installed")
def test_alerts_fire_when_they_should_and_not_before(tmp_path: Path) -> None:
    """Prometheus' own evaluation of the rules over a made-up hour."""
    series = {
        'up{job="petstore",instance="a"}': "1x30 0x30",
        'petstore_store_down{instance="a",environment="live",access="write"}': "0x30 1x30",
        'petstore_requests_total{instance="a",status="200"}': "0+600x60",
        'petstore_requests_total{instance="a",status="503"}': "0x30 0+60x30",
        'petstore_free_bytes{instance="a"}': "5e9x30 5e8x30",
        'petstore_worker_starts_total{instance="a"}': "2x30 2+1x30",
        'petstore_workers{instance="a"}': "2x60",
    }
    expected = ["PetstoreDown", "PetstoreStoreDown", "PetstoreErrors", "PetstoreDiskFull", "PetstoreWorkersDie"]

    def silent(name: str, minute: int) -> bool:
        file = tmp_path / "test.yml"
        given = [{"series": series_name, "values": values} for series_name, values in series.items()]
        wanted = [{"eval_time": f"{minute}m", "alertname": name, "exp_alerts": []}]
        file.write_text(
            yaml.safe_dump(
                {
                    "rule_files": [str(DOCS / "monitoring/petstore-alerts.yml")],
                    "evaluation_interval": "1m",
                    "tests": [{"interval": "1m", "input_series": given, "alert_rule_test": wanted}],
                }
            )
        )
        return subprocess.run([str(PROMTOOL), "test", "rules", str(file)], capture_output=True).returncode == 0

    for name in expected:
        assert silent(name, 25), name
        assert not silent(name, 55), name
