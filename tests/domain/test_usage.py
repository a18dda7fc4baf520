"""The form in which paths are stored with a key's recent errors."""

import pytest

from petstore.keys import mint
from petstore.usage import PATH_MAX, path_to_keep


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        ("/v1/pets", "/v1/pets"),
        ("/v1/pets/a b", "/v1/pets/a%20b"),
        ("/v1/\x00\x1b[2J\x7f\x9b", "/v1/%00%1B[2J%7F%C2%9B"),
        ("/v1/\u202e\u2028é\ud800", "/v1/%E2%80%AE%E2%80%A8%C3%A9%ED%A0%80"),
        ("/v1/100%25", "/v1/100%25"),
        ("/" + "x" * PATH_MAX, "/" + "x" * (PATH_MAX - 2) + "…"),
    ],
)
def test_a_path_is_kept_in_printable_ascii_and_bounded(path: str, kept: str) -> None:
    assert path_to_keep(path) == kept
    assert len(kept) <= PATH_MAX


@pytest.mark.parametrize("before", [0, PATH_MAX - 60, PATH_MAX - 20, PATH_MAX - 5])
def test_no_part_of_a_secret_is_kept_wherever_the_path_is_cut(before: int) -> None:
    secret = mint("live")
    kept = path_to_keep("/" + "x" * before + "/" + secret + "/pets")
    assert secret[len("pets_live_") :][:3] not in kept
