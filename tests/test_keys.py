"""The format of keys: what a scanner may rely on."""

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from petstore.errors import OperatorError
from petstore.keys import BASE62, ENVIRONMENTS, PREFIXES, Environment, digest_of, mint, new_key, well_formed
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
    from petstore.keys import checksum

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


def test_plans_are_the_specification_s() -> None:
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
