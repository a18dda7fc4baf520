"""Keys: limits, states and durations, and the format of secrets, on which secret scanners rely."""

import zlib
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from petstore.errors import OperatorError
from petstore.keys import (
    BASE62,
    ENVIRONMENTS,
    PREFIXES,
    SCOPES,
    Environment,
    Scope,
    checksum,
    digest_of,
    limits_of,
    mint,
    new_key,
    parse_duration,
    well_formed,
    without_keys,
)
from petstore.plans import PLANS, Limits


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_a_minted_key_has_prefix_30_random_and_6_checksum_characters(environment: Environment) -> None:
    secret = mint(environment)
    prefix = {"live": "pets_live_", "staging": "pets_test_"}[environment]
    assert secret.startswith(prefix)
    assert len(secret) == len(prefix) + 36
    assert set(secret[len(prefix) :]) <= set(BASE62)
    value = 0
    for digit in secret[-6:]:
        value = value * 62 + BASE62.index(digit)
    assert value == zlib.crc32(secret[:-6].encode())
    assert well_formed(secret, environment)


def test_keys_do_not_repeat() -> None:
    assert len({mint("live") for _ in range(1_000)}) == 1_000


@given(position=st.integers(0, 45), replacement=st.sampled_from(BASE62 + "-_é"))
def test_any_changed_character_breaks_the_checksum(position: int, replacement: str) -> None:
    secret = "pets_live_" + "a" * 30
    secret += checksum(secret)
    changed = secret[:position] + replacement + secret[position + 1 :]
    assert well_formed(changed, "live") == (changed == secret)


@pytest.mark.parametrize("other", ["", "x", "pets_live_", "pets_live_" + "a" * 36, "pets_live_" + "é" * 36])
def test_other_texts_are_not_keys(other: str) -> None:
    assert not well_formed(other, "live")


def test_a_key_of_one_environment_is_not_well_formed_in_the_other() -> None:
    assert not well_formed(mint("live"), "staging")
    assert not well_formed(mint("staging"), "live")


def test_digest_is_sha256() -> None:
    assert digest_of("abc").hex() == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_plans_are_those_of_the_contract() -> None:
    assert {
        "free": Limits(60, 1_000),
        "pro": Limits(300, 10_000),
        "business": Limits(1_000, 100_000),
        "enterprise": None,
    } == PLANS
    assert set(PREFIXES) == set(ENVIRONMENTS)


def test_only_enterprise_takes_limits_and_it_needs_them() -> None:
    with pytest.raises(OperatorError, match="per minute"):
        new_key("live", "enterprise", now=0)
    with pytest.raises(OperatorError, match="fixed"):
        new_key("live", "pro", now=0, limits=Limits(1, 1))
    with pytest.raises(OperatorError, match="from 1 to"):
        new_key("live", "enterprise", now=0, limits=Limits(0, 1))
    assert new_key("live", "enterprise", now=0, limits=Limits(7, 9)).limits == Limits(7, 9)


def test_a_key_has_a_scope() -> None:
    with pytest.raises(OperatorError, match="at least one scope"):
        new_key("live", "free", now=0, scopes=())
    once: Iterator[Scope] = iter(("write", "read"))
    assert new_key("live", "free", now=0, scopes=once).scopes == ("read", "write")


def test_a_name_has_at_most_255_characters_and_no_control_characters() -> None:
    assert new_key("live", "free", now=0, name="é" * 255).name == "é" * 255
    for name in ("é" * 256, "a\nb", "\ud800"):
        with pytest.raises(OperatorError, match="at most 255"):
            new_key("live", "free", now=0, name=name)


def test_limits_are_whole_numbers_from_1_to_10_to_the_12() -> None:
    for limits in (Limits(1, 1), Limits(10**12, 10**12)):
        assert limits_of("enterprise", *limits) == limits
    for wrong in (Limits(0, 1), Limits(1, 0), Limits(10**12 + 1, 1), Limits(1, 10**12 + 1)):
        with pytest.raises(OperatorError, match="from 1 to 1,000,000,000,000"):
            limits_of("enterprise", *wrong)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0s", 0), ("3s", 3), ("2m", 120), ("2h", 7_200), (" 90d ", 7_776_000), ("2w", 1_209_600), ("36525d", 3155760000)],
)
def test_a_duration_is_a_number_with_a_unit(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "3", "s", "-3s", "3 s", "1.5h", "１h", "1h2m", "3y", "1234567890s"])
def test_other_texts_are_not_durations(text: str) -> None:
    with pytest.raises(OperatorError, match="not a duration"):
        parse_duration(text)


def test_no_duration_is_longer_than_a_hundred_years() -> None:
    with pytest.raises(OperatorError, match="longer than a hundred years"):
        parse_duration("52596001m")  # one minute too long


def test_keys_in_a_text_are_redacted() -> None:
    secrets = [mint(environment) for environment in ENVIRONMENTS]
    assert without_keys(f"/v1/{secrets[0]}?key={secrets[1]}&a=1") == "/v1/pets_live_…?key=pets_test_…&a=1"


def test_a_key_is_valid_until_its_expiry_or_revocation() -> None:
    key = new_key("live", "free", now=0, expires=100.0)
    assert [key.usable(now) for now in (99.9, 100.0)] == [True, False]
    assert [key.state(now) for now in (99.9, 100.0)] == ["active", "expired"]
    revoked = msgspec.structs.replace(key, revoked=50.0)
    assert (revoked.usable(1), revoked.state(1)) == (False, "revoked")
    assert new_key("live", "free", now=0).usable(1e12)
    with pytest.raises(AttributeError):
        key.name = "another"  # type: ignore[misc]  # keys are immutable


def test_a_new_key_has_an_id_of_12_characters_and_the_given_scopes() -> None:
    key = new_key("live", "free", now=0, scopes=["write"])
    assert key.id.startswith("key_") and len(key.id) == 16 and set(key.id[4:]) <= set(BASE62)
    assert key.scopes == ("write",)
    assert new_key("live", "free", now=0, scopes=["write", "read"]).scopes == SCOPES == ("read", "write")
