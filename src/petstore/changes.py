"""What a write can change, as the store announces it and the gate keeps versions of it."""

from typing import Literal, get_args

# Animals added at the end of the list; animals changed, removed or restored; keys other than new ones.
Change = Literal["added", "edited", "keys"]
CHANGES: tuple[Change, ...] = get_args(Change)
