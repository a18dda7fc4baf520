-- From release 1.1, whose triggers are dropped before: store/sqlite/connection.py.

-- Animals of an import that every reader sees already; imports that no reader has seen are left out.
INSERT INTO pets (id, name, category_id, status)
SELECT i.first_id + r.place, r.name, r.category_id, r.status FROM import_rows AS r
JOIN imports AS i ON i.id = r.import_id AND i.state = 'moving' ORDER BY 1;
DROP TABLE import_rows;

ALTER TABLE pets ADD COLUMN edited INTEGER NOT NULL DEFAULT 0 CHECK (edited IN (0, 1));
UPDATE pets SET edited = 1 WHERE id IN (SELECT id FROM changed_pets);
CREATE INDEX pets_edited ON pets (id) WHERE edited = 1;

CREATE TABLE changes (
    edited INTEGER NOT NULL,
    keys   INTEGER NOT NULL
) STRICT;
INSERT INTO changes SELECT (SELECT number + 1 FROM catalogue_changes), (SELECT number + 1 FROM key_changes);
DROP TABLE catalogue_changes;
DROP TABLE key_changes;

ALTER TABLE keys ADD COLUMN suspended REAL;
UPDATE keys SET suspended = (SELECT since FROM suspensions WHERE key_id = keys.id);
DROP TABLE suspensions;

ALTER TABLE idempotency RENAME TO old_idempotency;
DROP INDEX idempotency_by_age;
CREATE TABLE idempotency (
    key_id      TEXT    NOT NULL,
    token       TEXT    NOT NULL,
    body_digest BLOB    NOT NULL,
    pet_id      INTEGER NOT NULL,
    name        TEXT    NOT NULL,
    category_id INTEGER NOT NULL,
    status      TEXT    NOT NULL,
    created     REAL    NOT NULL,
    PRIMARY KEY (key_id, token)
) STRICT, WITHOUT ROWID;
CREATE INDEX idempotency_by_age ON idempotency (created);
INSERT INTO idempotency
SELECT o.key_id, o.token, o.body_digest, o.pet_id, coalesce(c.name, p.name), coalesce(c.category_id, p.category_id),
    o.status, o.created
FROM old_idempotency AS o LEFT JOIN pets AS p ON p.id = o.pet_id LEFT JOIN changed_pets AS c ON c.id = o.pet_id
WHERE coalesce(c.id, p.id) IS NOT NULL;
DROP TABLE old_idempotency;
DROP TABLE changed_pets;

CREATE TABLE import_chunks (
    import_id TEXT    NOT NULL,
    place     INTEGER NOT NULL,
    first_id  INTEGER NOT NULL,
    count     INTEGER NOT NULL,
    PRIMARY KEY (import_id, place)
) STRICT, WITHOUT ROWID;
INSERT INTO import_chunks SELECT id, 0, first_id, count FROM imports WHERE first_id IS NOT NULL;
ALTER TABLE imports RENAME TO old_imports;
DROP INDEX imports_by_age;
DROP INDEX import_that_moves;
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
INSERT INTO imports
SELECT id, at, actor, name, sha256, count, CASE state WHEN 'moving' THEN 'done' ELSE state END, '', touched
FROM old_imports WHERE state NOT IN ('loading', 'discarded');
DROP TABLE old_imports;

ALTER TABLE deeds RENAME TO audit;
ALTER TABLE audit ADD COLUMN name TEXT;
ALTER TABLE audit ADD COLUMN category_id INTEGER;
ALTER TABLE audit ADD COLUMN status TEXT;

DROP INDEX usage_by_key;
ALTER TABLE usage RENAME TO old_usage;
CREATE TABLE usage (
    seconds   INTEGER NOT NULL,
    start     INTEGER NOT NULL,
    key_id    TEXT    NOT NULL,
    operation TEXT    NOT NULL,
    response  TEXT    NOT NULL,
    count     INTEGER NOT NULL,
    PRIMARY KEY (seconds, start, key_id, operation, response)
) STRICT, WITHOUT ROWID;
INSERT INTO usage SELECT seconds, start, key_id, operation, answer, count FROM usage_by_operation;
-- What was counted before operations were kept apart.
INSERT INTO usage
SELECT a.seconds, a.start, a.key_id, '', a.answer, a.count - coalesce(o.count, 0)
FROM (
    SELECT 60 AS seconds, minute AS start, key_id, answer, count FROM usage_minutes
    UNION ALL SELECT 3600, hour, key_id, answer, count FROM old_usage
    UNION ALL SELECT 86400, day, key_id, answer, count FROM usage_days
) AS a LEFT JOIN (
    SELECT seconds, start, key_id, answer, sum(count) AS count FROM usage_by_operation
    GROUP BY seconds, start, key_id, answer
) AS o ON o.seconds = a.seconds AND o.start = a.start AND o.key_id = a.key_id AND o.answer = a.answer
WHERE a.count <> coalesce(o.count, 0);
DROP TABLE usage_by_operation;
DROP TABLE usage_minutes;
DROP TABLE old_usage;
DROP TABLE usage_days;

CREATE TABLE usage_totals (
    seconds  INTEGER NOT NULL,
    start    INTEGER NOT NULL,
    response TEXT    NOT NULL,
    count    INTEGER NOT NULL,
    PRIMARY KEY (seconds, start, response)
) STRICT, WITHOUT ROWID;
INSERT INTO usage_totals SELECT step, start, answer, count FROM traffic;
DROP TABLE traffic;

ALTER TABLE operators RENAME TO old_operators;
CREATE TABLE operators (
    name    TEXT PRIMARY KEY,
    digest  BLOB NOT NULL UNIQUE,
    created REAL NOT NULL,
    revoked REAL,
    role    TEXT NOT NULL CHECK (role IN ('operator', 'viewer'))
) STRICT, WITHOUT ROWID;
INSERT INTO operators
SELECT o.name, o.digest, o.created, o.revoked, coalesce(r.role, 'operator')
FROM old_operators AS o LEFT JOIN operator_roles AS r ON r.name = o.name;
DROP TABLE old_operators;
DROP TABLE operator_roles;
