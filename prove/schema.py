"""Runs schemathesis with every check and phase against the running service, until enough cases have been generated."""

import json
import re
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

from harness.claims import hold, progress, temporary_directory
from harness.servers import Key, Server, started
from prove.proof import Figures, Scale

CONFIGURATION = Path(__file__).parent.parent / "schemathesis.toml"
PHASES = "examples,coverage,fuzzing,stateful"
EXAMPLES = 2_000  # at most, per operation and run


def prove(scale: Scale) -> Figures:
    generated = runs = 0
    with (
        temporary_directory() as data,
        started(Server(data / "data", "own", "--address-per-minute", "1000000")) as server,
    ):
        server.fill(30)
        key = server.key()
        document = _document(server, lie=scale.plant)
        (data / "openapi.json").write_text(json.dumps(document))
        while generated < scale.schema_cases:
            examples = min(EXAMPLES, max(20, (scale.schema_cases - generated) // 10))
            generated += _run(server, key, data, seed=2030 + runs, examples=examples)
            runs += 1
            progress(f"schema: {generated:,} of {scale.schema_cases:,} cases")
    return {"cases": generated, "runs": runs, "findings": 0}


def _document(server: Server, *, lie: bool) -> dict[str, Any]:
    with urllib.request.urlopen(server.origin + "/openapi.json") as answer:
        document: dict[str, Any] = json.load(answer)
    if lie:  # planted fault: the document requires a member that the service never sends
        document["components"]["schemas"]["Pet"]["required"].append("colour")
    return document


def _run(server: Server, key: Key, data: Path, *, seed: int, examples: int) -> int:
    """Returns the number of generated cases. Raises Broken if a check fails."""
    outcome = subprocess.run(
        [
            str(Path(sys.executable).with_name("schemathesis")), "--config-file", str(CONFIGURATION),
            "run", str(data / "openapi.json"), "--url", server.url(""), "--header",
            f"Authorization: Bearer {key.secret}", "--checks", "all", "--phases", PHASES,
            "--max-examples", str(examples), "--seed", str(seed), "--no-color", "--generation-database", "none",
            "--suppress-health-check", "all",
        ],
        cwd=data, capture_output=True, text=True, check=False,
    )  # fmt: skip
    found = re.search(r"^\s*([\d,]+) generated", outcome.stdout, re.MULTILINE)
    hold(outcome.returncode == 0, f"schemathesis with seed {seed} finds no fault: {_first_finding(outcome.stdout)}")
    hold(found is not None, f"schemathesis reports how many cases it generated: {outcome.stdout[-300:]}")
    return int(found[1].replace(",", "")) if found else 0


def _first_finding(output: str) -> str:
    _, _, findings = output.partition("FAILURES")
    return " ".join(findings.split())[:500]
