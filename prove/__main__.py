"""`python -m prove [name …] [--scale short|full]`: runs proofs and prints one line per proof.

Exits with status 1 if any proof fails.
"""

import argparse
import importlib
import json
import os
import platform
import signal
import sys
import time
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.backends import remove_shared
from harness.claims import Broken, Skipped
from prove.proof import FULL, PROOFS, SHORT, Figures, Proof, Scale

RESULTS = Path(__file__).parent / "results"


def proof_of(name: str) -> Proof:
    proof: Proof = importlib.import_module(f"prove.{name}").prove
    return proof


def run(name: str, scale: Scale) -> tuple[str, Figures]:
    """Runs a proof. Returns ok, FAILED or SKIPPED, with the figures or the reason."""
    try:
        return "ok", proof_of(name)(scale)
    except Skipped as reason:
        return "SKIPPED", {"because": str(reason)}
    except Broken as broken:
        return "FAILED", {"because": str(broken)}
    except Exception as error:  # any exception means that nothing was proved
        traceback.print_exc(limit=-8)
        return "FAILED", {"because": f"the proof itself failed: {error!r}"}


def main() -> int:
    parser = argparse.ArgumentParser(prog="make prove", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="name", help=f"{', '.join(PROOFS)}, or attacks (all attacks); default: all proofs"
    )
    parser.add_argument("--scale", choices=["short", "full"], default="full")
    parser.add_argument("--plant", action="store_true", help="plant a fault in each proof, which must then fail")
    for option in (
        "kills",
        "cuts",
        "slow-clients",
        "history-seconds",
        "soak-minutes",
        "schema-cases",
        "reloads",
        "messages",
        "trials",
        "usage-kills",
        "upgrades",
        "stops",
        "imported",
        "import-kills",
        "creates",
        "outages",
    ):
        parser.add_argument(f"--{option}", type=float, metavar="N", help="override the scale's value")
    chosen = parser.parse_args()
    names: list[str] = []
    for name in chosen.names:
        found = [proof for proof in PROOFS if proof == name or proof.startswith(f"{name}.")]
        if not found:
            parser.error(f"no such proof: {name}")
        names += found
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("Stopped, after shutting down all servers."))
    scale = _scaled(FULL if chosen.scale == "full" else SHORT, chosen)
    failed = False
    for name in names or PROOFS:
        began = time.monotonic()
        outcome, figures = run(name, scale)
        seconds = round(time.monotonic() - began, 1)
        text = ", ".join(f"{what} {figure}" for what, figure in figures.items())
        print(f"{outcome:<7} {name:<19} {text} ({seconds} s)", flush=True)
        failed = failed or outcome == "FAILED"
        if not scale.plant:
            _keep(name, scale, outcome, figures, seconds)
    remove_shared()
    return int(failed)


def _scaled(scale: Scale, chosen: Any) -> Scale:
    given = {
        field: type(getattr(scale, field))(getattr(chosen, field))
        for field in scale._fields
        if getattr(chosen, field, None) is not None and field not in ("name", "plant")
    }
    return scale._replace(plant=chosen.plant, **given)


def _keep(name: str, scale: Scale, outcome: str, figures: Figures, seconds: float) -> None:
    """Saves figures in one file per scale, plus one for custom sizes. A proof's new figures replace its old ones."""
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / f"{scale.name if scale in (FULL, SHORT) else 'other'}.json"
    kept = json.loads(file.read_text()) if file.exists() else {}
    machine = f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, Python {platform.python_version()}"
    when = datetime.now(UTC).isoformat(timespec="seconds")
    kept[name] = {"outcome": outcome, **figures, "seconds": seconds, "at": when, "machine": machine}
    file.write_text(json.dumps({key: kept[key] for key in PROOFS if key in kept}, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    sys.exit(main())
