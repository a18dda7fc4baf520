"""The audit log in PostgreSQL."""

from petstore.ledger import Deed, FoundDeeds
from petstore.search import SEARCH_STEP, spellings
from petstore.store.postgres.base import PostgresBase, any_in

_NEWEST = 2**63 - 1


class PostgresLedger(PostgresBase):
    """See `Ledger` for what each method promises."""

    async def record(self, deed: Deed) -> None:
        await self._pool.run(lambda connection: self._record(connection, deed))

    async def find_deeds(
        self, *, before: int | None = None, limit: int = 100, actor: str = "", action: str = "", text: str = ""
    ) -> FoundDeeds:
        start = _NEWEST if before is None else before
        who, what = spellings(actor), spellings(text)
        conditions = [
            f"({any_in(['actor'], who, 4)})" if actor else "true",
            "($3 = '' OR action = $3)",
            f"({any_in(['subject', 'detail'], what, 4 + len(who))})" if text else "true",
        ]
        rows = await self._rows(
            f"SELECT * FROM ({self._deeds_sql}) AS d WHERE {' AND '.join(conditions)} LIMIT {limit + 1}",
            start, SEARCH_STEP, action, *who, *what,
        )  # fmt: skip
        found = [(number, Deed(*rest)) for number, *rest in rows]
        if len(found) > limit:
            return FoundDeeds(found[:limit], found[limit - 1][0], more=True)
        last = await self._rows(f"{self._deeds_sql} OFFSET {SEARCH_STEP - 1}", start, 1)
        return FoundDeeds(found, last[0][0] if last else 0, more=bool(last))

    @property
    def _deeds_sql(self) -> str:
        return (
            f"SELECT id, at, actor, action, subject, detail FROM {self._schema}.deeds"
            " WHERE id < $1 ORDER BY id DESC LIMIT $2"
        )
