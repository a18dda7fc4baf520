"""What happens to a key's next request after its ban is lifted."""

import msgspec
import pytest

from petstore.keys import ApiKey, new_key
from petstore.maintenance.bans import AfterBan, after_ban
from petstore.plans import Limits
from petstore.rate_limits import SECOND, Window, Windows

NOW = 1_800_000_000.0
MILLISECONDS = int(NOW * SECOND)
BANNED = Windows(ban_start=MILLISECONDS - 10, ban_end=MILLISECONDS + 60_000, bans=1)


def key() -> ApiKey:
    return new_key("live", "enterprise", now=NOW - 100, limits=Limits(5, 50))


@pytest.mark.parametrize(
    ("windows", "used_up", "wait"),
    [
        (BANNED, None, 0),
        (BANNED._replace(minute_start=MILLISECONDS - 20_500, minute_used=5), "minute", 40),
        (BANNED._replace(minute_start=MILLISECONDS - 60_000, minute_used=5), None, 0),
        (BANNED._replace(minute_start=MILLISECONDS, minute_used=5, day_start=MILLISECONDS, day_used=50), "day", 86_400),
    ],
)
def test_a_limit_that_is_used_up_still_refuses_the_key(windows: Windows, used_up: Window | None, wait: int) -> None:
    assert after_ban(key(), windows, NOW) == AfterBan("active", used_up, int(NOW) + wait)


def test_the_text_says_from_when_a_request_is_admitted() -> None:
    assert str(after_ban(key(), BANNED, NOW)) == "The next request will be admitted."
    used_up = BANNED._replace(minute_start=MILLISECONDS, minute_used=5)
    assert str(after_ban(key(), used_up, NOW)) == (
        "The per-minute limit is used up. Requests will be admitted again from 2027-01-15 08:01:00Z."
    )
    suspended = msgspec.structs.replace(key(), suspended=NOW)
    assert str(after_ban(suspended, used_up, NOW)) == "The key is suspended, so its requests are still refused."
