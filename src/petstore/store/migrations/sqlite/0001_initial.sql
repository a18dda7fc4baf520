-- The tables of one environment in SQLite. The file's header identifies it as Petstore's (see
-- store/sqlite/migrations.py).

-- Records who added animals. `name` is a key id, an import id or an operator's name.
CREATE TABLE adders (
    id   INTEGER PRIMARY KEY AUTOINCREMENT,
    kind TEXT    NOT NULL CHECK (kind IN ('key', 'import', 'operator')),
    name TEXT    NOT NULL,
    UNIQUE (kind, name)
) STRICT;

-- The animals. AUTOINCREMENT never assigns an id twice, even after the row with the highest id has been removed.
CREATE TABLE pets (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    name        TEXT    NOT NULL,
    category_id INTEGER NOT NULL,
    status      TEXT    NOT NULL CHECK (status IN ('available', 'pending', 'sold')),
    edited      INTEGER NOT NULL DEFAULT 0 CHECK (edited IN (0, 1)), -- 1 if an operator has changed it
    added_by    INTEGER,          -- the number of the adder; NULL if it is not known
    added_at    INTEGER NOT NULL  -- in Unix seconds
) STRICT;
CREATE INDEX pets_by_status ON pets (status, id);
CREATE INDEX pets_edited ON pets (id) WHERE edited = 1;

-- Removals. An operator can remove several animals together. See docs/decisions/0022.
CREATE TABLE removals (
    id    TEXT PRIMARY KEY,
    at    REAL NOT NULL,
    actor TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Removed animals, with all columns of `pets`. Restoring an animal moves it back.
CREATE TABLE removed_pets (
    id          INTEGER PRIMARY KEY,
    name        TEXT    NOT NULL,
    category_id INTEGER NOT NULL,
    status      TEXT    NOT NULL,
    edited      INTEGER NOT NULL,
    added_by    INTEGER,
    added_at    INTEGER NOT NULL,
    removal_id  TEXT    NOT NULL REFERENCES removals (id)
) STRICT;
CREATE INDEX removed_pets_by_removal ON removed_pets (removal_id, id);

-- A single row that counts committed changes other than new animals. See store/freshness.py.
CREATE TABLE changes (
    edited INTEGER NOT NULL, -- animals changed, removed or restored
    keys   INTEGER NOT NULL
) STRICT;
INSERT INTO changes VALUES (0, 0);

-- API keys.
CREATE TABLE keys (
    id         TEXT    PRIMARY KEY,
    name       TEXT    NOT NULL,
    contact    TEXT    NOT NULL, -- whom to write to; may be empty
    plan       TEXT    NOT NULL,
    per_minute INTEGER NOT NULL,
    per_day    INTEGER NOT NULL,
    scopes     TEXT    NOT NULL,
    created    REAL    NOT NULL,
    expires    REAL,
    revoked    REAL,
    last_used  REAL,
    suspended  REAL
) STRICT, WITHOUT ROWID;
CREATE INDEX keys_by_age ON keys (created, id);
CREATE INDEX keys_by_expiry ON keys (expires) WHERE expires IS NOT NULL;

-- SHA-256 hashes of the keys' secrets. A key has one secret, or several during the overlap of a rotation.
CREATE TABLE secrets (
    digest  BLOB PRIMARY KEY,
    key_id  TEXT NOT NULL REFERENCES keys (id),
    expires REAL
) STRICT, WITHOUT ROWID;
CREATE INDEX secrets_by_key ON secrets (key_id);

-- Idempotency keys of create requests. Each record is written in the same transaction as its animal, so a retry that
-- finds no record can safely add the animal.
CREATE TABLE idempotency (
    key_id      TEXT    NOT NULL,
    token       TEXT    NOT NULL,
    body_digest BLOB    NOT NULL,
    pet_id      INTEGER NOT NULL,
    name        TEXT    NOT NULL, -- the animal as it was when it was added
    category_id INTEGER NOT NULL,
    status      TEXT    NOT NULL,
    created     REAL    NOT NULL,
    PRIMARY KEY (key_id, token)
) STRICT, WITHOUT ROWID;
CREATE INDEX idempotency_by_age ON idempotency (created);

-- Imports of files. `added` is how many of the file's `total` animals have been added. `last_chunk` is the time of the
-- latest chunk. See docs/decisions/0014.
CREATE TABLE imports (
    id         TEXT    PRIMARY KEY,
    at         REAL    NOT NULL,
    actor      TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    sha256     TEXT    NOT NULL,
    total      INTEGER NOT NULL,
    added      INTEGER NOT NULL,
    state      TEXT    NOT NULL CHECK (state IN ('running', 'done', 'undoing', 'undone')),
    last_chunk REAL    NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX imports_by_age ON imports (at, id);
CREATE INDEX imports_by_file ON imports (sha256);
CREATE UNIQUE INDEX imports_running ON imports (sha256) WHERE state = 'running';

-- Chunks of imports. A chunk contains the `count` animals that follow the first `place` animals in the file. Their ids
-- are consecutive and start with `first_id`.
CREATE TABLE import_chunks (
    import_id TEXT    NOT NULL,
    place     INTEGER NOT NULL,
    first_id  INTEGER NOT NULL,
    count     INTEGER NOT NULL,
    PRIMARY KEY (import_id, place)
) STRICT, WITHOUT ROWID;

-- The audit log of operators' actions.
CREATE TABLE audit (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    at      REAL NOT NULL,
    actor   TEXT NOT NULL,
    action  TEXT NOT NULL,
    subject TEXT NOT NULL,
    detail  TEXT NOT NULL
) STRICT;

-- Usage per key and operation, in intervals of 60, 3,600 and 86,400 seconds. The gate counts the measure `admitted`.
-- Workers count `client_error`, `server_error`, `refused` and `banned`. See docs/decisions/0009.
CREATE TABLE usage (
    seconds   INTEGER NOT NULL,
    start     INTEGER NOT NULL,
    key_id    TEXT    NOT NULL,
    operation TEXT    NOT NULL,
    measure   TEXT    NOT NULL,
    count     INTEGER NOT NULL CHECK (count >= 0),
    PRIMARY KEY (seconds, start, key_id, operation, measure)
) STRICT, WITHOUT ROWID;

-- Total usage, including requests without a valid key. With these totals, charts are fast for any number of keys.
CREATE TABLE usage_totals (
    seconds INTEGER NOT NULL, -- 60 or 3,600
    start   INTEGER NOT NULL,
    measure TEXT    NOT NULL,
    count   INTEGER NOT NULL CHECK (count >= 0),
    PRIMARY KEY (seconds, start, measure)
) STRICT, WITHOUT ROWID;

-- The gate's admission totals that have already been added to the usage. A gate that loses its totals begins a new
-- epoch and counts from zero. See docs/decisions/0013.
CREATE TABLE counted_admissions (
    key_id    TEXT    NOT NULL,
    epoch     INTEGER NOT NULL,
    operation TEXT    NOT NULL,
    total     INTEGER NOT NULL,
    PRIMARY KEY (key_id, epoch, operation)
) STRICT, WITHOUT ROWID;

-- Each key's most recent refused and failed requests.
CREATE TABLE recent_errors (
    key_id     TEXT    NOT NULL,
    at         REAL    NOT NULL,
    request_id TEXT    NOT NULL,
    operation  TEXT    NOT NULL,
    status     INTEGER NOT NULL,
    code       TEXT    NOT NULL,
    path       TEXT    NOT NULL, -- without keys, in printable ASCII
    PRIMARY KEY (key_id, at, request_id)
) STRICT, WITHOUT ROWID;

-- Operators, who can sign in to the console. Tokens are stored as SHA-256 hashes.
CREATE TABLE operators (
    name    TEXT PRIMARY KEY,
    digest  BLOB NOT NULL UNIQUE,
    created REAL NOT NULL,
    revoked REAL,
    role    TEXT NOT NULL CHECK (role IN ('operator', 'viewer'))
) STRICT, WITHOUT ROWID;

-- The source of an unfinished copy into this store. Empty if no copy is in progress.
CREATE TABLE copying (
    source TEXT PRIMARY KEY
) STRICT, WITHOUT ROWID;
