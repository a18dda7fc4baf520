-- The tables of one environment, for both backends. A name in braces, such as {{integer}}, is replaced with the backend's
-- spelling. `TYPES` in store/sqlite/migrations.py and store/postgres/migrations.py contains the spellings.

-- Records who added animals. `name` is a key id, an import id or an operator's name.
CREATE TABLE adders (
    id   {id},
    kind {key} NOT NULL CHECK (kind IN ('key', 'import', 'operator')),
    name {key} NOT NULL,
    UNIQUE (kind, name)
){strict};

-- The animals. An id is never assigned twice, even after the row with the highest id has been removed. Columns with a
-- fixed width come first, to reduce padding in PostgreSQL.
CREATE TABLE pets (
    id          {id},
    category_id {integer} NOT NULL,
    added_at    {integer} NOT NULL, -- in Unix seconds
    added_by    int, -- the number of the adder; NULL if it is not known
    edited      int  NOT NULL DEFAULT 0 CHECK (edited IN (0, 1)), -- 1 if an operator has changed it
    name        text NOT NULL,
    status      text NOT NULL CHECK (status IN ('available', 'pending', 'sold'))
){strict};
CREATE INDEX pets_by_status ON pets (status, id);
CREATE INDEX pets_edited ON pets (id) WHERE edited = 1;

-- Removals. An operator can remove several animals together. See docs/decisions/0022.
CREATE TABLE removals (
    id    {key}  PRIMARY KEY,
    at    {real} NOT NULL,
    actor text   NOT NULL
){clustered};

-- Removed animals, with all columns of `pets`. Restoring an animal moves it back.
CREATE TABLE removed_pets (
    id          {integer} PRIMARY KEY,
    category_id {integer} NOT NULL,
    added_at    {integer} NOT NULL,
    added_by    int,
    edited      int   NOT NULL,
    name        text  NOT NULL,
    status      text  NOT NULL,
    removal_id  {key} NOT NULL REFERENCES removals (id)
){strict};
CREATE INDEX removed_pets_by_removal ON removed_pets (removal_id, id);

-- A single row that counts committed changes other than new animals. See store/freshness.py.
CREATE TABLE changes (
    edited {integer} NOT NULL, -- animals changed, removed or restored
    keys   {integer} NOT NULL
){strict};
INSERT INTO changes VALUES (0, 0);

-- API keys.
CREATE TABLE keys (
    id         {key}     PRIMARY KEY,
    name       text      NOT NULL,
    contact    text      NOT NULL, -- whom to write to; may be empty
    plan       text      NOT NULL,
    per_minute {integer} NOT NULL,
    per_day    {integer} NOT NULL,
    scopes     text      NOT NULL,
    created    {real}    NOT NULL,
    expires    {real},
    revoked    {real},
    last_used  {real},
    suspended  {real}
){clustered};
CREATE INDEX keys_by_age ON keys (created, id);
CREATE INDEX keys_by_expiry ON keys (expires) WHERE expires IS NOT NULL;

-- SHA-256 hashes of the keys' secrets. Each rotation adds one. `number` counts a key's secrets from 1.
CREATE TABLE secrets (
    digest  {bytes} PRIMARY KEY,
    key_id  {key}   NOT NULL REFERENCES keys (id),
    number  int     NOT NULL,
    expires {real}, -- NULL for the newest secret
    UNIQUE (key_id, number)
){clustered};

-- Idempotency keys of create requests. Each record is written in the same transaction as its animal, so a retry that
-- finds no record can safely add the animal.
CREATE TABLE idempotency (
    key_id      {key}     NOT NULL,
    token       {key}     NOT NULL,
    body_digest {bytes}   NOT NULL,
    pet_id      {integer} NOT NULL,
    name        text      NOT NULL, -- the animal as it was when it was added
    category_id {integer} NOT NULL,
    status      text      NOT NULL,
    created     {real}    NOT NULL,
    PRIMARY KEY (key_id, token)
){clustered};
CREATE INDEX idempotency_by_age ON idempotency (created);

-- Imports of files. `added` is how many of the file's `total` animals have been added. `last_chunk` is the time of the
-- latest chunk. See docs/decisions/0014.
CREATE TABLE imports (
    id         {key}     PRIMARY KEY,
    at         {real}    NOT NULL,
    actor      text      NOT NULL,
    name       text      NOT NULL,
    sha256     {key}     NOT NULL,
    total      {integer} NOT NULL,
    added      {integer} NOT NULL,
    state      text      NOT NULL CHECK (state IN ('running', 'done', 'undoing', 'undone')),
    last_chunk {real}    NOT NULL
){clustered};
CREATE INDEX imports_by_age ON imports (at, id);
CREATE INDEX imports_by_file ON imports (sha256);
CREATE UNIQUE INDEX imports_running ON imports (sha256) WHERE state = 'running';

-- Chunks of imports. A chunk contains the `count` animals that follow the first `place` animals in the file. Their ids
-- are consecutive and start with `first_id`.
CREATE TABLE import_chunks (
    import_id {key}     NOT NULL,
    place     {integer} NOT NULL,
    first_id  {integer} NOT NULL,
    count     {integer} NOT NULL,
    PRIMARY KEY (import_id, place)
){clustered};

-- The audit log of operators' actions.
CREATE TABLE audit (
    id      {id},
    at      {real} NOT NULL,
    actor   text   NOT NULL,
    action  text   NOT NULL,
    subject text   NOT NULL,
    detail  text   NOT NULL
){strict};

-- Usage per key and operation, in intervals of 60, 3,600 and 86,400 seconds. The gate counts the measure `admitted`.
-- Workers count `client_error`, `server_error`, `refused` and `banned`. See docs/decisions/0009.
CREATE TABLE usage (
    seconds   {integer} NOT NULL,
    start     {integer} NOT NULL,
    key_id    {key}     NOT NULL,
    operation {key}     NOT NULL,
    measure   {key}     NOT NULL,
    count     {integer} NOT NULL CHECK (count >= 0),
    PRIMARY KEY (seconds, start, key_id, operation, measure)
){clustered};

-- Total usage, including requests without a valid key. With these totals, charts are fast for any number of keys.
CREATE TABLE usage_totals (
    seconds {integer} NOT NULL, -- 60 or 3,600
    start   {integer} NOT NULL,
    measure {key}     NOT NULL,
    count   {integer} NOT NULL CHECK (count >= 0),
    PRIMARY KEY (seconds, start, measure)
){clustered};

-- The gate's admission totals that have already been added to the usage. A gate that loses its totals begins a new
-- epoch and counts from zero. See docs/decisions/0013.
CREATE TABLE counted_admissions (
    key_id    {key}     NOT NULL,
    epoch     {integer} NOT NULL,
    operation {key}     NOT NULL,
    total     {integer} NOT NULL,
    PRIMARY KEY (key_id, epoch, operation)
){clustered};

-- Each key's most recent refused and failed requests.
CREATE TABLE recent_errors (
    key_id     {key}  NOT NULL,
    at         {real} NOT NULL,
    request_id {key}  NOT NULL,
    operation  text   NOT NULL,
    status     int    NOT NULL,
    code       text   NOT NULL,
    path       text   NOT NULL, -- without keys, in printable ASCII
    PRIMARY KEY (key_id, at, request_id)
){clustered};

-- Operators, who can sign in to the console. Tokens are stored as SHA-256 hashes.
CREATE TABLE operators (
    name    {key}   PRIMARY KEY,
    digest  {bytes} NOT NULL UNIQUE,
    created {real}  NOT NULL,
    revoked {real},
    role    text    NOT NULL CHECK (role IN ('operator', 'viewer'))
){clustered};
