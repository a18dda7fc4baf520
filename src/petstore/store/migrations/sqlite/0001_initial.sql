-- AUTOINCREMENT: an id is never given twice, not even after the newest row is gone.
CREATE TABLE pets (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    name        TEXT    NOT NULL,
    category_id INTEGER NOT NULL,
    status      TEXT    NOT NULL CHECK (status IN ('available', 'pending', 'sold'))
) STRICT;
CREATE INDEX pets_by_status ON pets (status, id);

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
    last_used  REAL
) STRICT, WITHOUT ROWID;

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
    status      TEXT    NOT NULL, -- as it was when the animal was added
    created     REAL    NOT NULL,
    PRIMARY KEY (key_id, token)
) STRICT, WITHOUT ROWID;
CREATE INDEX idempotency_by_age ON idempotency (created);

CREATE TABLE deeds (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    at      REAL NOT NULL,
    actor   TEXT NOT NULL,
    action  TEXT NOT NULL,
    subject TEXT NOT NULL,
    detail  TEXT NOT NULL
) STRICT;

CREATE TABLE usage (
    key_id TEXT    NOT NULL,
    hour   INTEGER NOT NULL,
    answer TEXT    NOT NULL,
    count  INTEGER NOT NULL,
    PRIMARY KEY (hour, key_id, answer)
) STRICT, WITHOUT ROWID;
CREATE INDEX usage_by_key ON usage (key_id, hour);
