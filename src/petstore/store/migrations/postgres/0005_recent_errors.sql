-- The last refused requests and errors of each key, for its page in the console.
CREATE TABLE recent_errors (
    key_id     text COLLATE "C" NOT NULL,
    at         double precision NOT NULL,
    request_id text COLLATE "C" NOT NULL,
    operation  text             NOT NULL,
    status     int              NOT NULL,
    PRIMARY KEY (key_id, at, request_id)
);
