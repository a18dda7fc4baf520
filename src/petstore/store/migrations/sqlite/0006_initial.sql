-- AUTOINCREMENT: an id is never given twice, not even after the newest row is gone.
CREATE TABLE pets (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    name        TEXT    NOT NULL,
    category_id INTEGER NOT NULL,
    status      TEXT    NOT NULL CHECK (status IN ('available', 'pending', 'sold')),
    edited      INTEGER NOT NULL DEFAULT 0 CHECK (edited IN (0, 1)) -- an operator has changed or restored it
) STRICT;
CREATE INDEX pets_by_status ON pets (status, id);
CREATE INDEX pets_edited ON pets (id) WHERE edited = 1;

-- How far the changes go that are not new animals. One row; store/freshness.py says what for.
CREATE TABLE changes (
    edited INTEGER NOT NULL, -- animals changed, removed or restored
    keys   INTEGER NOT NULL
) STRICT;
INSERT INTO changes VALUES (0, 0);

CREATE TABLE keys (
    id         TEXT    PRIMARY KEY,
    name       TEXT    NOT NULL,
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

-- A key has one secret, or several while a rotation overlaps. Only the SHA-256 of a secret is kept.
CREATE TABLE secrets (
    digest  BLOB PRIMARY KEY,
    key_id  TEXT NOT NULL REFERENCES keys (id),
    expires REAL
) STRICT, WITHOUT ROWID;
CREATE INDEX secrets_by_key ON secrets (key_id);

-- Written in the same transaction as the animal: a retry after a lost answer finds it or nothing happened.
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

-- docs/decisions/0014. `owner` is the token of the process that adds chunks, `touched` its last sign of life.
CREATE TABLE imports (
    id      TEXT    PRIMARY KEY,
    at      REAL    NOT NULL,
    actor   TEXT    NOT NULL,
    name    TEXT    NOT NULL,
    sha256  TEXT    NOT NULL,
    total   INTEGER NOT NULL,
    state   TEXT    NOT NULL CHECK (state IN ('running', 'done', 'undoing', 'undone')),
    owner   TEXT    NOT NULL,
    touched REAL    NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX imports_by_age ON imports (at, id);
CREATE INDEX imports_by_file ON imports (sha256);

-- The animals of a file that follow `place` others have the ids from `first_id` on.
CREATE TABLE import_chunks (
    import_id TEXT    NOT NULL,
    place     INTEGER NOT NULL,
    first_id  INTEGER NOT NULL,
    count     INTEGER NOT NULL,
    PRIMARY KEY (import_id, place)
) STRICT, WITHOUT ROWID;

CREATE TABLE audit (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    at          REAL NOT NULL,
    actor       TEXT NOT NULL,
    action      TEXT NOT NULL,
    subject     TEXT NOT NULL,
    detail      TEXT NOT NULL,
    name        TEXT, -- the values of an animal that was removed
    category_id INTEGER,
    status      TEXT
) STRICT;

-- The requests of keys, in intervals of 60, 3,600 and 86,400 seconds. An empty operation: counted before 1.1.
CREATE TABLE usage (
    seconds   INTEGER NOT NULL,
    start     INTEGER NOT NULL,
    key_id    TEXT    NOT NULL,
    operation TEXT    NOT NULL,
    response  TEXT    NOT NULL,
    count     INTEGER NOT NULL,
    PRIMARY KEY (seconds, start, key_id, operation, response)
) STRICT, WITHOUT ROWID;

-- All requests together, those without a valid key among them: a plot costs the same whatever the number of keys.
CREATE TABLE usage_totals (
    seconds  INTEGER NOT NULL, -- 60 or 3,600
    start    INTEGER NOT NULL,
    response TEXT    NOT NULL,
    count    INTEGER NOT NULL,
    PRIMARY KEY (seconds, start, response)
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

-- The last refused requests and errors of each key, for its page in the console.
CREATE TABLE recent_errors (
    key_id     TEXT    NOT NULL,
    at         REAL    NOT NULL,
    request_id TEXT    NOT NULL,
    operation  TEXT    NOT NULL,
    status     INTEGER NOT NULL,
    PRIMARY KEY (key_id, at, request_id)
) STRICT, WITHOUT ROWID;

-- Who may sign in to the console. Only the SHA-256 of a token is kept.
CREATE TABLE operators (
    name    TEXT PRIMARY KEY,
    digest  BLOB NOT NULL UNIQUE,
    created REAL NOT NULL,
    revoked REAL,
    role    TEXT NOT NULL CHECK (role IN ('operator', 'viewer'))
) STRICT, WITHOUT ROWID;

-- Where the rows are being copied from; empty when no copy is under way.
CREATE TABLE copying (
    source TEXT PRIMARY KEY
) STRICT, WITHOUT ROWID;
