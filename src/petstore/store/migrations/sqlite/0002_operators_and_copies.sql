-- Who may sign in to the console. Only the SHA-256 of a token is kept.
CREATE TABLE operators (
    name    TEXT PRIMARY KEY,
    digest  BLOB NOT NULL UNIQUE,
    created REAL NOT NULL,
    revoked REAL
) STRICT, WITHOUT ROWID;

-- Where the rows are being copied from; empty when no copy is under way.
CREATE TABLE copying (
    source TEXT PRIMARY KEY
) STRICT, WITHOUT ROWID;
