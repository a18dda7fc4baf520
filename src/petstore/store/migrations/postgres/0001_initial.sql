-- Ids come from a sequence: they grow, and none is given twice.
CREATE SEQUENCE pet_ids;
CREATE TABLE pets (
    id          bigint PRIMARY KEY DEFAULT nextval('pet_ids'),
    name        text   NOT NULL,
    category_id bigint NOT NULL,
    status      text   NOT NULL CHECK (status IN ('available', 'pending', 'sold'))
);
ALTER SEQUENCE pet_ids OWNED BY pets.id;
CREATE INDEX pets_by_status ON pets (status, id);

-- COLLATE "C": keys are listed in the order of their bytes, as everywhere.
CREATE TABLE keys (
    id         text COLLATE "C" PRIMARY KEY,
    name       text             NOT NULL,
    plan       text             NOT NULL,
    per_minute bigint           NOT NULL,
    per_day    bigint           NOT NULL,
    scopes     text             NOT NULL,
    created    double precision NOT NULL,
    expires    double precision,
    revoked    double precision,
    last_used  double precision
);

-- A key has one secret, or several while a rotation overlaps. Only the SHA-256 of a secret is kept.
CREATE TABLE secrets (
    digest  bytea PRIMARY KEY,
    key_id  text COLLATE "C" NOT NULL REFERENCES keys (id),
    expires double precision
);
CREATE INDEX secrets_by_key ON secrets (key_id);

-- Written in the same transaction as the animal: a retry after a lost answer finds it or nothing happened.
CREATE TABLE idempotency (
    key_id      text COLLATE "C" NOT NULL,
    token       text COLLATE "C" NOT NULL,
    body_digest bytea            NOT NULL,
    pet_id      bigint           NOT NULL,
    status      text             NOT NULL, -- as it was when the animal was added
    created     double precision NOT NULL,
    PRIMARY KEY (key_id, token)
);
CREATE INDEX idempotency_by_age ON idempotency (created);

CREATE SEQUENCE deed_ids;
CREATE TABLE deeds (
    id      bigint PRIMARY KEY DEFAULT nextval('deed_ids'),
    at      double precision NOT NULL,
    actor   text             NOT NULL,
    action  text             NOT NULL,
    subject text             NOT NULL,
    detail  text             NOT NULL
);
ALTER SEQUENCE deed_ids OWNED BY deeds.id;

CREATE TABLE usage (
    key_id text COLLATE "C" NOT NULL,
    hour   bigint           NOT NULL,
    answer text COLLATE "C" NOT NULL,
    count  bigint           NOT NULL,
    PRIMARY KEY (hour, key_id, answer)
);
CREATE INDEX usage_by_key ON usage (key_id, hour);
