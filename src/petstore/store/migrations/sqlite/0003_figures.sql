-- What keys used, by minute for the last hours and by day for ever; `usage` has the hours of the last weeks.
-- No index by key: whoever asks for a key names the minutes or days too.
CREATE TABLE usage_minutes (
    key_id TEXT    NOT NULL,
    minute INTEGER NOT NULL,
    answer TEXT    NOT NULL,
    count  INTEGER NOT NULL,
    PRIMARY KEY (minute, key_id, answer)
) STRICT, WITHOUT ROWID;

CREATE TABLE usage_days (
    key_id TEXT    NOT NULL,
    day    INTEGER NOT NULL,
    answer TEXT    NOT NULL,
    count  INTEGER NOT NULL,
    PRIMARY KEY (day, key_id, answer)
) STRICT, WITHOUT ROWID;
INSERT INTO usage_days (key_id, day, answer, count)
SELECT key_id, hour / 86400 * 86400 AS day, answer, sum(count) FROM usage GROUP BY day, key_id, answer;

-- All requests together, those without a valid key among them: a plot costs the same whatever the number of keys.
CREATE TABLE traffic (
    step   INTEGER NOT NULL, -- seconds: 60 or 3600
    start  INTEGER NOT NULL,
    answer TEXT    NOT NULL,
    count  INTEGER NOT NULL,
    PRIMARY KEY (step, start, answer)
) STRICT, WITHOUT ROWID;
INSERT INTO traffic (step, start, answer, count)
SELECT 3600, hour, answer, sum(count) FROM usage GROUP BY hour, answer;

CREATE INDEX keys_by_age ON keys (created, id);
