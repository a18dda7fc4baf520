"""Imports animals from files, and undoes imports."""

from collections.abc import Callable

from petstore.admin.actor import Actor
from petstore.errors import OperatorError, Unavailable
from petstore.formats.pet_files import Checked, PetFile
from petstore.pets import Import, Undone
from petstore.store import Store
from petstore.wording import counted, when


class ImportActions:
    def __init__(self, store: Store, actor: Actor) -> None:
        self._store = store
        self._actor = actor

    async def begin(self, name: str, checked: Checked, repeats: str = "") -> Import:
        """Begins an import of a checked file. If the same content is already being imported, returns that import.

        If the content has already been imported, returns the earlier import, whose state is `done`. To import it again,
        for example after asking the operator, pass the earlier import's id as `repeats`.
        """
        shown = name.encode(errors="replace").decode()  # file names are not always valid UTF-8
        entry = self._actor.new_entry("import", shown)
        begun = await self._store.imports.begin(checked.sha256, checked.animals, entry, repeats)
        if begun.total != checked.animals:  # the earlier import used a different format
            raise OperatorError(
                f"{begun.id} imported the same content as {counted(begun.total, 'animal')}, not {checked.animals:,};"
                " use the same --format again"
            )
        return begun

    async def add_pets(
        self, begun: Import, file: PetFile, checked: Checked, adding: Callable[[int], None] = lambda count: None
    ) -> Import:
        """Adds the rest of a file's animals to an import. Several processes can call this for the same import.

        Calls `adding` with the number of animals added so far. Raises OperatorError if another operator
        undoes the import. If this call fails or is cancelled, importing the same file again resumes the import.
        """
        try:
            await self._add_rest(begun, file, checked, adding)
        except (OperatorError, Unavailable) as error:
            raise OperatorError(
                f"{error}; import the same file again to resume {begun.id},"
                f" or remove its animals with `petstore pets undo-import {begun.id}`"
            ) from error
        found = await self._import(begun.id)
        if found.state != "done":
            raise OperatorError(f"{begun.id} was undone, so no more animals were added")
        return found

    async def _add_rest(self, begun: Import, file: PetFile, checked: Checked, adding: Callable[[int], None]) -> None:
        """Adds animals in chunks until the import is complete or another operator undoes it."""
        imports, size = self._store.imports, self._store.database.bounds.import_chunk
        place = begun.added
        adding(place)
        while place < begun.total:
            async for first, pets in file.batches(checked):
                while first <= place < first + len(pets):
                    chunk = pets[place - first :][:size]
                    if await imports.add_chunk(begun.id, place, chunk, self._actor.clock()):
                        place += len(chunk)
                    else:
                        found = await self._import(begun.id)
                        if found.state in ("undoing", "undone"):
                            return
                        place = found.added
                    adding(place)

    async def earlier(self, sha256: str) -> Import | None:
        """Returns the running import of a file with this hash, the newest finished one if none is running, or None.

        Raises OperatorError if the disk has too little free space for an import.
        """
        self._store.database.check_space()
        return await self._store.imports.of_file(sha256, self._actor.clock())

    async def undo(self, import_id: str, removing: Callable[[int], None] = lambda searched: None) -> Undone:
        """Removes an import's animals, except those that an operator has changed. Resumes an interrupted undo.

        In the result, `removed` does not count animals that an operator had already removed.
        Calls `removing` with the number of animals removed or kept so far.
        """
        found = await self._import(import_id)
        before = await self._store.imports.undone(import_id)
        gone = 0 if found.state == "undoing" else before.removed
        kept = f", {before.kept:,} kept" if before.kept else ""
        entry = self._actor.new_entry("undo import", import_id, f"{found.name}, {counted(before.left, 'animal')}{kept}")
        is_undone = found.state != "undone" and await self._store.imports.undo(import_id, entry, removing)
        counts = await self._store.imports.undone(import_id)
        if not is_undone:
            raise OperatorError(
                f"{import_id} has already been undone: {counts.removed:,} removed, {counts.kept:,} kept"
            )
        return counts._replace(removed=counts.removed - gone)

    async def _import(self, import_id: str) -> Import:
        found = await self._store.imports.get(import_id, self._actor.clock())
        if found is None:
            raise OperatorError(f"no import has the id {import_id} in {self._store.environment}")
        return found


def described_import(found: Import) -> str:
    return f"{found.id}, {counted(found.added, 'animal')}, {when(found.at)}"
