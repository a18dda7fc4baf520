"""`keys update` and `pets update` run at the same time as other changes, and no change is lost."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import pytest

from harness.commands import Commands, Processes
from harness.stores import BY
from petstore.keys import ApiKey, KeyChanges
from petstore.pets import Pet, PetChanges
from petstore.store.keys import Keys
from petstore.store.pets import Pets


def at_once(petstore: Commands, *commands: list[str]) -> None:
    """Runs commands at the same time, each in a separate process."""
    processes = Processes(petstore.server)
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda words: processes.text(*words), commands))


def test_updates_in_flight_of_different_fields_both_survive(petstore: Commands) -> None:
    key_id = petstore.json("keys", "create", "--plan", "free", "--name", "Ada")["id"]
    pet_id = str(petstore.json("pets", "add", "--name", "Rex", "--category-id", "7")["id"])
    at_once(
        petstore,
        ["keys", "update", key_id, "--plan", "pro"],
        ["keys", "update", key_id, "--name", "Ada's shop"],
        ["pets", "update", pet_id, "--name", "Max"],
        ["pets", "set-status", pet_id, "sold"],
    )
    key, pet = petstore.json("keys", "show", key_id), petstore.json("pets", "show", pet_id)
    assert (key["plan"], key["per_minute"], key["name"]) == ("pro", 300, "Ada's shop")
    assert (pet["name"], pet["status"]) == ("Max", "sold")
    details = {entry.detail for entry in petstore.entries()[:4]}
    assert details == {
        "plan free → pro; per minute 60 → 300; per day 1,000 → 10,000",
        "name Ada → Ada's shop",
        "name Rex → Max",
        "available → sold",
    }


def test_a_change_between_the_read_and_the_write_of_keys_update_survives(petstore: Commands) -> None:
    made = petstore.json("keys", "create", "--plan", "enterprise", "--per-minute", "5", "--per-day", "50")
    update = Keys.update

    async def after_a_colleague(self: Keys, key_id: str, *arguments: Any) -> ApiKey | None:
        await update(self, key_id, KeyChanges(name="Grace", per_day=70), BY)
        return await update(self, key_id, *arguments)

    with mock.patch.object(Keys, "update", after_a_colleague):
        petstore.text("keys", "update", made["id"], "--per-minute", "7")
    key = petstore.json("keys", "show", made["id"])
    assert (key["name"], key["per_minute"], key["per_day"]) == ("Grace", 7, 70)
    assert petstore.entries()[0].detail == "per minute 5 → 7"


def test_limits_for_a_key_that_has_just_lost_its_plan_are_refused(petstore: Commands) -> None:
    made = petstore.json("keys", "create", "--plan", "enterprise", "--per-minute", "5", "--per-day", "50")
    update = Keys.update

    async def after_a_colleague(self: Keys, key_id: str, *arguments: Any) -> ApiKey | None:
        await update(self, key_id, KeyChanges(plan="free"), BY)
        return await update(self, key_id, *arguments)

    with mock.patch.object(Keys, "update", after_a_colleague):
        message = petstore.fails_in_one_line("keys", "update", made["id"], "--per-minute", "7", "--name", "Ada")
    assert "the free plan has fixed limits" in message
    key = petstore.json("keys", "show", made["id"])
    assert (key["plan"], key["per_minute"], key["name"]) == ("free", 60, "")


def test_a_rotation_that_a_colleague_has_made_in_the_meantime_is_not_repeated(petstore: Commands) -> None:
    key_id = petstore.json("keys", "create", "--plan", "free")["id"]
    rotate = Keys.rotate

    async def after_a_colleague(self: Keys, *arguments: Any) -> object:
        await rotate(self, key_id, "the colleague's secret", 1, 0.0, BY)
        return await rotate(self, *arguments)

    with mock.patch.object(Keys, "rotate", after_a_colleague):
        message = petstore.fails_in_one_line("keys", "rotate", key_id, "--yes")
    assert f"someone else has just rotated {key_id}" in message and "repeat the rotation" in message
    assert [entry.action for entry in petstore.entries()] == ["rotate key", "create key"]


@pytest.mark.parametrize("words", [["pets", "update", "1", "--status", "sold"], ["pets", "set-status", "1", "sold"]])
def test_a_change_between_the_read_and_the_write_of_an_animal_survives(petstore: Commands, words: list[str]) -> None:
    petstore.text("pets", "add", "--name", "Rex", "--category-id", "7")
    method = "update" if words[1] == "update" else "set_status"
    original, update = getattr(Pets, method), Pets.update

    async def after_a_colleague(self: Pets, *arguments: Any) -> Pet | list[Pet] | None:
        await update(self, 1, PetChanges(name="Max", status="pending"), BY)
        changed: Pet | list[Pet] | None = await original(self, *arguments)
        return changed

    with mock.patch.object(Pets, method, after_a_colleague):
        assert petstore.json(*words)["name"] == "Max"
    pet = petstore.json("pets", "show", "1")
    assert (pet["name"], pet["status"]) == ("Max", "sold")
    assert petstore.entries()[0].detail.removeprefix("status ") == "pending → sold"
