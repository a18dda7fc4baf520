"""Scrapes /metrics and parses the result with the Prometheus parser."""

from collections.abc import Mapping

import httpx
from prometheus_client.parser import text_string_to_metric_families

from harness.servers import Server


class Scrape:
    def __init__(self, text: str) -> None:
        self.families = {family.name: family for family in text_string_to_metric_families(text)}
        self.samples = [sample for family in self.families.values() for sample in family.samples]

    def value(self, name: str, **labels: str) -> float:
        """Returns the sum of all samples that have this name and these labels."""
        return sum(s.value for s in self.samples if s.name == name and labels.items() <= s.labels.items())

    def of(self, name: str) -> Mapping[tuple[tuple[str, str], ...], float]:
        """Returns the values of all samples with this name, by their labels."""
        return {tuple(sorted(s.labels.items())): s.value for s in self.samples if s.name == name}


def scrape(server: Server) -> Scrape:
    with httpx.Client(timeout=15, verify=False) as client:
        answer = client.get(server.origin + "/metrics")
    assert answer.status_code == 200, answer.text
    return Scrape(answer.text)
