"""The kinds of change that a store announces. The gate keeps a version for each of them."""

from typing import Literal, get_args

# added: animals were added at the end of the list. edited: animals were changed, removed or restored.
# keys: existing keys were changed.
Change = Literal["added", "edited", "keys"]
CHANGES: tuple[Change, ...] = get_args(Change)
