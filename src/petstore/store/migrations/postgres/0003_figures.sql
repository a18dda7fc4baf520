-- What keys used, by minute for the last hours and by day for ever; `usage` has the hours of the last weeks.
-- No index by key: whoever asks for a key names the minutes or days too.
CREATE TABLE usage_minutes (
    key_id text COLLATE "C" NOT NULL,
    minute bigint           NOT NULL,
    answer text COLLATE "C" NOT NULL,
    count  bigint           NOT NULL,
    PRIMARY KEY (minute, key_id, answer)
);

CREATE TABLE usage_days (
    key_id text COLLATE "C" NOT NULL,
    day    bigint           NOT NULL,
    answer text COLLATE "C" NOT NULL,
    count  bigint           NOT NULL,
    PRIMARY KEY (day, key_id, answer)
);
INSERT INTO usage_days (key_id, day, answer, count)
SELECT key_id, hour / 86400 * 86400, answer, sum(count) FROM usage GROUP BY 1, 2, 3;

-- All requests together, those without a valid key among them: a plot costs the same whatever the number of keys.
CREATE TABLE traffic (
    step   bigint           NOT NULL, -- seconds: 60 or 3600
    start  bigint           NOT NULL,
    answer text COLLATE "C" NOT NULL,
    count  bigint           NOT NULL,
    PRIMARY KEY (step, start, answer)
);
INSERT INTO traffic (step, start, answer, count)
SELECT 3600, hour, answer, sum(count) FROM usage GROUP BY hour, answer;

CREATE INDEX keys_by_age ON keys (created, id);
