-- The last refused requests and errors of each key, for its page in the console.
CREATE TABLE recent_errors (
    key_id     TEXT    NOT NULL,
    at         REAL    NOT NULL,
    request_id TEXT    NOT NULL,
    operation  TEXT    NOT NULL,
    status     INTEGER NOT NULL,
    PRIMARY KEY (key_id, at, request_id)
) STRICT, WITHOUT ROWID;
