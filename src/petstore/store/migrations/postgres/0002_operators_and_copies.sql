-- Who may sign in to the console. Only the SHA-256 of a token is kept.
CREATE TABLE operators (
    name    text COLLATE "C" PRIMARY KEY,
    digest  bytea            NOT NULL UNIQUE,
    created double precision NOT NULL,
    revoked double precision
);

-- Where the rows are being copied from; empty when no copy is under way.
CREATE TABLE copying (
    source text PRIMARY KEY
);
