-- New tables and triggers only. A node of the version before this one may still work on the schema, and a change of the
-- tables that it uses would wait for the longest of its transactions, with everyone else behind it. A trigger waits for
-- transactions that write, and lets others read meanwhile.

-- Keys that an operator has suspended.
CREATE TABLE suspensions (
    key_id text COLLATE "C" PRIMARY KEY,
    since  double precision NOT NULL
);

-- The roles of operators; one without a row has the role `operator`.
CREATE TABLE operator_roles (
    name text COLLATE "C" PRIMARY KEY,
    role text             NOT NULL CHECK (role IN ('operator', 'viewer'))
);

-- An animal's name and category before an operator first changed or removed it. A repeated create is answered from it,
-- and undoing an import leaves these animals alone.
CREATE TABLE changed_pets (
    id          bigint PRIMARY KEY,
    name        text             NOT NULL,
    category_id bigint           NOT NULL,
    at          double precision NOT NULL
);

-- How often the catalogue was changed other than by adding animals, and whether an import is being moved. One row.
CREATE TABLE catalogue_changes (
    id     int     PRIMARY KEY CHECK (id = 1),
    number bigint  NOT NULL,
    moving boolean NOT NULL
);
INSERT INTO catalogue_changes VALUES (1, 0, false);

-- docs/decisions/0014: an import is loaded, then visible at once under the ids from `first_id` to `last_id`, and moved
-- into `pets` while it is visible. `touched` is the importer's sign of life.
CREATE TABLE imports (
    id       text COLLATE "C" PRIMARY KEY,
    at       double precision NOT NULL,
    actor    text             NOT NULL,
    name     text             NOT NULL,
    sha256   text             NOT NULL,
    count    bigint           NOT NULL,
    first_id bigint,
    last_id  bigint,
    state    text             NOT NULL CHECK (state IN ('loading', 'moving', 'done', 'undoing', 'undone', 'discarded')),
    touched  double precision NOT NULL
);
CREATE UNIQUE INDEX import_that_moves ON imports (state) WHERE state = 'moving'; -- one at a time
CREATE INDEX imports_by_age ON imports (at, id);

-- Animals of imports that are not in `pets` yet. The id of one is `first_id` of its import plus `place`.
CREATE TABLE import_rows (
    import_id   text COLLATE "C" NOT NULL,
    status      text COLLATE "C" NOT NULL CHECK (status IN ('available', 'pending', 'sold')),
    place       bigint           NOT NULL,
    name        text             NOT NULL,
    category_id bigint           NOT NULL,
    PRIMARY KEY (import_id, status, place)
);

-- The usage of keys, in the intervals of 60, 3,600 and 86,400 seconds. `usage_minutes`, `usage` and `usage_days` go on
-- holding all operations together.
CREATE TABLE usage_by_operation (
    seconds   bigint           NOT NULL,
    start     bigint           NOT NULL,
    key_id    text COLLATE "C" NOT NULL,
    operation text COLLATE "C" NOT NULL,
    answer    text COLLATE "C" NOT NULL,
    count     bigint           NOT NULL,
    PRIMARY KEY (seconds, start, key_id, operation, answer)
);

-- docs/decisions/0013: how much of the gate's totals of admissions is in the usage of keys. An epoch is one count from
-- zero: a gate that has lost its totals begins a new one.
CREATE TABLE counted_admissions (
    key_id    text COLLATE "C" NOT NULL,
    epoch     bigint           NOT NULL,
    operation text COLLATE "C" NOT NULL,
    total     bigint           NOT NULL,
    PRIMARY KEY (key_id, epoch, operation)
);

-- How often keys were changed other than by adding one. One row.
CREATE TABLE key_changes (
    id     int    PRIMARY KEY CHECK (id = 1),
    number bigint NOT NULL
);
INSERT INTO key_changes VALUES (1, 0);

-- Caches rely on these numbers, so triggers count: also what a node of the version before this one changes.
CREATE FUNCTION count_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('UPDATE %I.%I SET number = number + 1', TG_TABLE_SCHEMA, TG_ARGV[0]);
    RETURN NULL;
END $$;
CREATE TRIGGER pets_changed AFTER UPDATE OR DELETE ON pets
    FOR EACH STATEMENT EXECUTE FUNCTION count_change('catalogue_changes');
CREATE TRIGGER keys_changed AFTER DELETE OR UPDATE OF plan, per_minute, per_day, scopes, expires, revoked ON keys
    FOR EACH STATEMENT EXECUTE FUNCTION count_change('key_changes');
CREATE TRIGGER secrets_changed AFTER UPDATE OR DELETE ON secrets
    FOR EACH STATEMENT EXECUTE FUNCTION count_change('key_changes');
CREATE TRIGGER suspensions_changed AFTER INSERT OR DELETE ON suspensions
    FOR EACH STATEMENT EXECUTE FUNCTION count_change('key_changes');
