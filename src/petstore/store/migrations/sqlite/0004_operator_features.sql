-- New tables only. A process of the version before this one may still run on the file, and it inserts rows of `keys`,
-- `operators` and `idempotency` by position: a further column there would stop it.

-- Keys that an operator has suspended.
CREATE TABLE suspensions (
    key_id TEXT PRIMARY KEY,
    since  REAL NOT NULL
) STRICT, WITHOUT ROWID;

-- The roles of operators; one without a row has the role `operator`.
CREATE TABLE operator_roles (
    name TEXT PRIMARY KEY,
    role TEXT NOT NULL CHECK (role IN ('operator', 'viewer'))
) STRICT, WITHOUT ROWID;

-- An animal's name and category before an operator first changed or removed it. A repeated create is answered from it,
-- and undoing an import leaves these animals alone.
CREATE TABLE changed_pets (
    id          INTEGER PRIMARY KEY,
    name        TEXT    NOT NULL,
    category_id INTEGER NOT NULL,
    at          REAL    NOT NULL
) STRICT;

-- How often the catalogue was changed other than by adding animals, and whether an import is being moved. One row.
CREATE TABLE catalogue_changes (
    id     INTEGER PRIMARY KEY CHECK (id = 1),
    number INTEGER NOT NULL,
    moving INTEGER NOT NULL
) STRICT;
INSERT INTO catalogue_changes VALUES (1, 0, 0);

-- docs/decisions/0014: an import is loaded, then visible at once under the ids from `first_id` to `last_id`, and moved
-- into `pets` while it is visible. `touched` is the importer's sign of life.
CREATE TABLE imports (
    id       TEXT    PRIMARY KEY,
    at       REAL    NOT NULL,
    actor    TEXT    NOT NULL,
    name     TEXT    NOT NULL,
    sha256   TEXT    NOT NULL,
    count    INTEGER NOT NULL,
    first_id INTEGER,
    last_id  INTEGER,
    state    TEXT    NOT NULL CHECK (state IN ('loading', 'moving', 'done', 'undoing', 'undone', 'discarded')),
    touched  REAL    NOT NULL
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX import_that_moves ON imports (state) WHERE state = 'moving'; -- one at a time
CREATE INDEX imports_by_age ON imports (at, id);

-- Animals of imports that are not in `pets` yet. The id of one is `first_id` of its import plus `place`.
CREATE TABLE import_rows (
    import_id   TEXT    NOT NULL,
    status      TEXT    NOT NULL CHECK (status IN ('available', 'pending', 'sold')),
    place       INTEGER NOT NULL,
    name        TEXT    NOT NULL,
    category_id INTEGER NOT NULL,
    PRIMARY KEY (import_id, status, place)
) STRICT, WITHOUT ROWID;

-- The usage of keys, in the intervals of 60, 3,600 and 86,400 seconds. `usage_minutes`, `usage` and `usage_days` go on
-- holding all operations together.
CREATE TABLE usage_by_operation (
    seconds   INTEGER NOT NULL,
    start     INTEGER NOT NULL,
    key_id    TEXT    NOT NULL,
    operation TEXT    NOT NULL,
    answer    TEXT    NOT NULL,
    count     INTEGER NOT NULL,
    PRIMARY KEY (seconds, start, key_id, operation, answer)
) STRICT, WITHOUT ROWID;

-- docs/decisions/0013: how much of the gate's totals of admissions is in the usage of keys. An epoch is one count from
-- zero: a gate that has lost its totals begins a new one.
CREATE TABLE counted_admissions (
    key_id    TEXT    NOT NULL,
    epoch     INTEGER NOT NULL,
    operation TEXT    NOT NULL,
    total     INTEGER NOT NULL,
    PRIMARY KEY (key_id, epoch, operation)
) STRICT, WITHOUT ROWID;

-- How often keys were changed other than by adding one. One row.
CREATE TABLE key_changes (
    id     INTEGER PRIMARY KEY CHECK (id = 1),
    number INTEGER NOT NULL
) STRICT;
INSERT INTO key_changes VALUES (1, 0);

-- Caches rely on these numbers, so triggers count: also what a process of the version before this one changes.
CREATE TRIGGER pet_updated AFTER UPDATE ON pets BEGIN UPDATE catalogue_changes SET number = number + 1; END;
CREATE TRIGGER pet_removed AFTER DELETE ON pets BEGIN UPDATE catalogue_changes SET number = number + 1; END;
CREATE TRIGGER key_updated AFTER UPDATE OF plan, per_minute, per_day, scopes, expires, revoked ON keys
    BEGIN UPDATE key_changes SET number = number + 1; END;
CREATE TRIGGER key_removed AFTER DELETE ON keys BEGIN UPDATE key_changes SET number = number + 1; END;
CREATE TRIGGER secret_updated AFTER UPDATE ON secrets BEGIN UPDATE key_changes SET number = number + 1; END;
CREATE TRIGGER secret_removed AFTER DELETE ON secrets BEGIN UPDATE key_changes SET number = number + 1; END;
CREATE TRIGGER key_suspended AFTER INSERT ON suspensions BEGIN UPDATE key_changes SET number = number + 1; END;
CREATE TRIGGER key_resumed AFTER DELETE ON suspensions BEGIN UPDATE key_changes SET number = number + 1; END;
