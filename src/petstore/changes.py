"""The kinds of changes that a store announces to the gate, which keeps a version number for each kind."""

from typing import Literal, get_args

# added: animals were appended to the list. edited: animals were changed, removed or restored.
# keys: existing keys were changed.
Change = Literal["added", "edited", "keys"]
CHANGES: tuple[Change, ...] = get_args(Change)
