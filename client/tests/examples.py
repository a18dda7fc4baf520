"""The Python examples in the client's README, the client's reference and docs/api.md."""

import re
from pathlib import Path

CLIENT = Path(__file__).parents[1]
README = (CLIENT / "README.md").read_text()
REFERENCE = (CLIENT.parent / "docs/reference/client.md").read_text()
API = (CLIENT.parent / "docs/api.md").read_text()


def _examples(name: str, document: str) -> dict[str, str]:
    found = re.findall(r"^```python\n(.*?)^```", document, re.MULTILINE | re.DOTALL)
    return {f"{name}_{number}": example for number, example in enumerate(found, start=1)}


EXAMPLES = _examples("readme", README) | _examples("reference", REFERENCE) | _examples("api", API)
