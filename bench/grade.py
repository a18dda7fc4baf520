"""Grades the contenders with `petstore verify`, and lists the promises that each one breaks."""

import argparse
import json
import subprocess
import sys

from contenders import CONTENDERS, petstore_command
from running import Contender, Missing, started

ANIMALS = 300


def broken_promises(contender: Contender, level: str) -> list[str]:
    """Returns one line for each broken promise. Raises Missing."""
    contender.make_ready()
    with started(contender, ANIMALS) as running:
        done = subprocess.run(
            [petstore_command(), "verify", f"{running.url}/v1", "--write", "--level", level, "--json"],
            env={"PETSTORE_VERIFY_KEY": running.keys[0]},
            stdout=subprocess.PIPE,
        )
    results = json.loads(done.stdout)
    print(f"{contender.name}: {sum(each['result'] == 'ok' for each in results)} promises kept")
    return [f"  {each['check']}: {each['detail']}" for each in results if each["result"] == "broken"]


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench/grade.py", description=__doc__)
    parser.add_argument("--contenders", default="petstore,go,fastapi", help="names, separated by commas")
    parser.add_argument("--level", default="spec", choices=("spec", "contract"))
    options = parser.parse_args()
    for name in options.contenders.split(","):
        try:
            print("\n".join(broken_promises(CONTENDERS[name], options.level)))
        except Missing as missing:
            print(f"{name}: skipped: {missing}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
