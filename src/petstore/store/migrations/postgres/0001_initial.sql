-- The tables of one environment in PostgreSQL.

-- A single row that identifies this schema as Petstore's. Every migration updates the version.
CREATE TABLE format (
    product text PRIMARY KEY CHECK (product = 'petstore'),
    version int  NOT NULL
);
INSERT INTO format VALUES ('petstore', 1);

-- Records who added animals. `name` is a key id, an import id or an operator's name.
CREATE SEQUENCE adders_id_seq;
CREATE TABLE adders (
    id   int              PRIMARY KEY DEFAULT nextval('adders_id_seq'),
    kind text COLLATE "C" NOT NULL CHECK (kind IN ('key', 'import', 'operator')),
    name text COLLATE "C" NOT NULL,
    UNIQUE (kind, name)
);
ALTER SEQUENCE adders_id_seq OWNED BY adders.id;

-- The animals. The sequence never assigns an id twice. Fixed-width columns come first, to reduce padding.
CREATE SEQUENCE pets_id_seq;
CREATE TABLE pets (
    id          bigint   PRIMARY KEY DEFAULT nextval('pets_id_seq'),
    category_id bigint   NOT NULL,
    added_at    bigint   NOT NULL, -- in Unix seconds
    added_by    int,               -- the number of the adder; NULL if it is not known
    edited      smallint NOT NULL DEFAULT 0 CHECK (edited IN (0, 1)), -- 1 if an operator has changed it
    name        text     NOT NULL,
    status      text     NOT NULL CHECK (status IN ('available', 'pending', 'sold'))
);
ALTER SEQUENCE pets_id_seq OWNED BY pets.id;
CREATE INDEX pets_by_status ON pets (status, id);
CREATE INDEX pets_edited ON pets (id) WHERE edited = 1;

-- Removals. An operator can remove several animals together. See docs/decisions/0022.
CREATE TABLE removals (
    id    text COLLATE "C" PRIMARY KEY,
    at    double precision NOT NULL,
    actor text             NOT NULL
);

-- Removed animals, with all columns of `pets`. Restoring an animal moves it back.
CREATE TABLE removed_pets (
    id          bigint           PRIMARY KEY,
    category_id bigint           NOT NULL,
    added_at    bigint           NOT NULL,
    added_by    int,
    edited      smallint         NOT NULL,
    name        text             NOT NULL,
    status      text             NOT NULL,
    removal_id  text COLLATE "C" NOT NULL REFERENCES removals (id)
);
CREATE INDEX removed_pets_by_removal ON removed_pets (removal_id, id);

-- A single row that counts committed changes other than new animals. See store/freshness.py.
CREATE TABLE changes (
    edited bigint NOT NULL, -- animals changed, removed or restored
    keys   bigint NOT NULL
);
INSERT INTO changes VALUES (0, 0);

-- API keys. COLLATE "C" sorts ids by their bytes, as SQLite does.
CREATE TABLE keys (
    id         text COLLATE "C" PRIMARY KEY,
    name       text             NOT NULL,
    contact    text             NOT NULL, -- whom to write to; may be empty
    plan       text             NOT NULL,
    per_minute bigint           NOT NULL,
    per_day    bigint           NOT NULL,
    scopes     text             NOT NULL,
    created    double precision NOT NULL,
    expires    double precision,
    revoked    double precision,
    last_used  double precision,
    suspended  double precision
);
CREATE INDEX keys_by_age ON keys (created, id);
CREATE INDEX keys_by_expiry ON keys (expires) WHERE expires IS NOT NULL;

-- SHA-256 hashes of the keys' secrets. A key has one secret, or several during the overlap of a rotation.
CREATE TABLE secrets (
    digest  bytea            PRIMARY KEY,
    key_id  text COLLATE "C" NOT NULL REFERENCES keys (id),
    expires double precision
);
CREATE INDEX secrets_by_key ON secrets (key_id);

-- Idempotency keys of create requests. Each record is written in the same transaction as its animal, so a retry that
-- finds no record can safely add the animal.
CREATE TABLE idempotency (
    key_id      text COLLATE "C" NOT NULL,
    token       text COLLATE "C" NOT NULL,
    body_digest bytea            NOT NULL,
    pet_id      bigint           NOT NULL,
    name        text             NOT NULL, -- the animal as it was when it was added
    category_id bigint           NOT NULL,
    status      text             NOT NULL,
    created     double precision NOT NULL,
    PRIMARY KEY (key_id, token)
);
CREATE INDEX idempotency_by_age ON idempotency (created);

-- Imports of files. `added` is how many of the file's `total` animals have been added. `last_chunk` is the time of the
-- latest chunk. See docs/decisions/0014.
CREATE TABLE imports (
    id         text COLLATE "C" PRIMARY KEY,
    at         double precision NOT NULL,
    actor      text             NOT NULL,
    name       text             NOT NULL,
    sha256     text COLLATE "C" NOT NULL,
    total      bigint           NOT NULL,
    added      bigint           NOT NULL,
    state      text             NOT NULL CHECK (state IN ('running', 'done', 'undoing', 'undone')),
    last_chunk double precision NOT NULL
);
CREATE INDEX imports_by_age ON imports (at, id);
CREATE INDEX imports_by_file ON imports (sha256);
CREATE UNIQUE INDEX imports_running ON imports (sha256) WHERE state = 'running';

-- Chunks of imports. A chunk contains the `count` animals that follow the first `place` animals in the file. Their ids
-- are consecutive and start with `first_id`.
CREATE TABLE import_chunks (
    import_id text COLLATE "C" NOT NULL,
    place     bigint           NOT NULL,
    first_id  bigint           NOT NULL,
    count     bigint           NOT NULL,
    PRIMARY KEY (import_id, place)
);

-- The audit log of operators' actions.
CREATE SEQUENCE audit_id_seq;
CREATE TABLE audit (
    id      bigint           PRIMARY KEY DEFAULT nextval('audit_id_seq'),
    at      double precision NOT NULL,
    actor   text             NOT NULL,
    action  text             NOT NULL,
    subject text             NOT NULL,
    detail  text             NOT NULL
);
ALTER SEQUENCE audit_id_seq OWNED BY audit.id;

-- Usage per key and operation, in intervals of 60, 3,600 and 86,400 seconds. The gate counts the measure `admitted`.
-- Workers count `client_error`, `server_error`, `refused` and `banned`. See docs/decisions/0009.
CREATE TABLE usage (
    seconds   bigint           NOT NULL,
    start     bigint           NOT NULL,
    key_id    text COLLATE "C" NOT NULL,
    operation text COLLATE "C" NOT NULL,
    measure   text COLLATE "C" NOT NULL,
    count     bigint           NOT NULL CHECK (count >= 0),
    PRIMARY KEY (seconds, start, key_id, operation, measure)
);

-- Total usage, including requests without a valid key. With these totals, charts are fast for any number of keys.
CREATE TABLE usage_totals (
    seconds bigint           NOT NULL, -- 60 or 3,600
    start   bigint           NOT NULL,
    measure text COLLATE "C" NOT NULL,
    count   bigint           NOT NULL CHECK (count >= 0),
    PRIMARY KEY (seconds, start, measure)
);

-- The gate's admission totals that have already been added to the usage. A gate that loses its totals begins a new
-- epoch and counts from zero. See docs/decisions/0013.
CREATE TABLE counted_admissions (
    key_id    text COLLATE "C" NOT NULL,
    epoch     bigint           NOT NULL,
    operation text COLLATE "C" NOT NULL,
    total     bigint           NOT NULL,
    PRIMARY KEY (key_id, epoch, operation)
);

-- Each key's most recent refused and failed requests.
CREATE TABLE recent_errors (
    key_id     text COLLATE "C" NOT NULL,
    at         double precision NOT NULL,
    request_id text COLLATE "C" NOT NULL,
    operation  text             NOT NULL,
    status     int              NOT NULL,
    code       text             NOT NULL,
    path       text             NOT NULL, -- without keys, in printable ASCII
    PRIMARY KEY (key_id, at, request_id)
);

-- Operators, who can sign in to the console. Tokens are stored as SHA-256 hashes.
CREATE TABLE operators (
    name    text COLLATE "C" PRIMARY KEY,
    digest  bytea            NOT NULL UNIQUE,
    created double precision NOT NULL,
    revoked double precision,
    role    text             NOT NULL CHECK (role IN ('operator', 'viewer'))
);

-- The source of an unfinished copy into this store. Empty if no copy is in progress.
CREATE TABLE copying (
    source text PRIMARY KEY
);
