-- Executes one batch of calls from a worker. Redis runs nothing else in the meantime, so a batch is atomic, like a
-- transaction in lmdb.py. The rules are the same as in rate_limits.py, in the same order. A test sends random requests
-- to both implementations and compares the results.
--
-- ARGV[1]   the time in milliseconds. If empty, the script uses the Redis clock, so the nodes' clocks do not matter.
-- ARGV[2-4] the ban policy: length and ceiling in milliseconds, and the threshold. A threshold of 0 means the key's
--           per-minute limit, but at most 1,000.
-- ARGV[5]   the changes to announce, as bits: 1 live added, 2 live edited, 4 live keys; 8, 16 and 32 for staging. Empty
--           in Redis Cluster, where the versions are in another slot and the worker has already compared them.
-- ARGV[6]   the calls, 40 bytes each: the operation, the version of the keys when the limits were read, the limits per
--           minute and per day, and the number of the API operation to count. For MARK, the per-minute limit is the
--           mark's lifetime in milliseconds; 0 removes the mark.
-- KEYS      the name of the versions record, unless ARGV[5] is empty, followed by the name of each call's record
--
-- Returns the six versions, unless ARGV[5] is empty, followed by 48 bytes for each call: outcome, window, limit,
-- remaining, reset, wait.

local MINUTE, DAY = 60000, 86400000
local STRIKES_MAX = 1000
local ADMITTED, LIMITED, BANNED, OUTDATED = 0, 1, 2, 3
local IN_MINUTE, IN_DAY = 0, 1
local KEY_LIVE, KEY_STAGING, ADDRESS, PEEK, LIFT, MARK, IS_MARKED = 0, 1, 2, 3, 4, 5, 6

local VERSIONS, VERSIONS_SIZE = '<i8i8i8i8i8i8', 48
local VERSION_MAX = 2 ^ 53 -- larger integers are not exact in Lua
local CALL = '<i8i8i8i8i8'
local CALL_SIZE = 40
-- A key's record, as in records.py: minute start, minute used, day start, day used, strikes, ban start, ban end, bans,
-- the environment (KEY_LIVE or KEY_STAGING), the epoch, and one count per operation, ordered by number.
local KEY = '<i8i8i8i8i8i8i8i8i8i8'
local KEY_SIZE = 80 -- without the counts
local WINDOWS_SIZE = 64 -- the shortest valid record, which has only the eight numbers before the environment
local KEY_MAX = 4096 -- bytes; much larger than any valid record
local COUNT, COUNT_SIZE = '<i8', 8
local WINDOW, WINDOW_SIZE = '<i8i8', 16
local RESULT = '<i8i8i8i8i8i8'

local clock = redis.call('TIME')
local microseconds = clock[1] * 1000000 + clock[2]
local now = tonumber(ARGV[1]) or math.floor(microseconds / 1000)
local ban_length, ban_ceiling, ban_threshold = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local reply = {}

-- Returns a record's bytes, or an empty string if it does not exist or is not a string. One invalid record must not
-- make the batch fail for other keys, so the script treats it as missing and overwrites it. This restarts a key's
-- windows or, if the record contains the versions, announces all changes.
local function stored_bytes(name)
  local stored = redis.pcall('GET', name)
  return type(stored) == 'string' and stored or ''
end

-- A new version is at least the current time, so that versions lost in a failover or an eviction are never reused.
local versions = { 0, 0, 0, 0, 0, 0 }
local announced = tonumber(ARGV[5])
local records_from = announced and 1 or 0
if announced then
  reply[1] = stored_bytes(KEYS[1])
  if #reply[1] == VERSIONS_SIZE then
    versions = { struct.unpack(VERSIONS, reply[1]) }
  else
    announced = 63
  end
  if announced > 0 then
    for i = 1, 6 do
      if announced % 2 == 1 then
        versions[i] = versions[i] < VERSION_MAX and math.max(versions[i] + 1, microseconds) or microseconds
      end
      announced = math.floor(announced / 2)
    end
    reply[1] = struct.pack(VERSIONS, unpack(versions, 1, 6))
    redis.call('SET', KEYS[1], reply[1], 'PX', 30 * DAY)
  end
end

local function open(start, length)
  local age = now - start
  return -length < age and age < length
end

-- Returns the header values for a refusal: window, limit, remaining and reset. They describe the exhausted window that
-- ends last, or the ban if it ends even later. A window that has expired ends in the past, so it is never chosen.
local function refusal(outcome, w, per_minute, per_day)
  local minute_end = w[2] >= per_minute and w[1] + MINUTE or 0
  local day_end = w[4] >= per_day and w[3] + DAY or 0
  if outcome == BANNED and w[7] > minute_end and w[7] > day_end then
    return IN_MINUTE, per_minute, 0, w[7]
  end
  if day_end >= minute_end then
    return IN_DAY, per_day, 0, day_end
  end
  return IN_MINUTE, per_minute, 0, minute_end
end

-- Decides on one request with a key. Returns whether `w` has changed, the outcome, window, limit, remaining and reset.
local function admit(w, per_minute, per_day)
  local ban_start, ban_end = w[6], w[7]
  if now < ban_end then
    if now >= ban_start - DAY then -- requests during a ban are not strikes and do not extend the ban
      return false, BANNED, refusal(BANNED, w, per_minute, per_day)
    end
    w[6], w[7], w[8] = 0, 0, 0 -- the clock was set back by more than a day
  end

  local minute_open, day_open = open(w[1], MINUTE), open(w[3], DAY)
  local minute_left = minute_open and per_minute - w[2] or per_minute
  local day_left = day_open and per_day - w[4] or per_day

  if minute_left > 0 and day_left > 0 then
    if minute_open then
      w[2] = w[2] + 1
    else
      w[1], w[2] = now, 1
    end
    if day_open then
      w[4] = w[4] + 1
    else
      w[3], w[4] = now, 1
    end
    w[5] = 0
    if day_left <= minute_left then -- in a tie, the headers show the longer window
      return true, ADMITTED, IN_DAY, per_day, day_left - 1, w[3] + DAY
    end
    return true, ADMITTED, IN_MINUTE, per_minute, minute_left - 1, w[1] + MINUTE
  end

  local outcome = LIMITED
  w[5] = w[5] + 1
  if w[5] > (ban_threshold > 0 and ban_threshold or math.min(per_minute, STRIKES_MAX)) then
    outcome = BANNED
    w[5] = 0
    w[8] = (w[8] > 0 and now - w[6] < DAY) and w[8] + 1 or 1
    w[6] = now
    w[7] = now + math.min(ban_length * 2 ^ math.min(w[8] - 1, 40), ban_ceiling)
  end
  return true, outcome, refusal(outcome, w, per_minute, per_day)
end

-- Decides on one request from an address, which has only one window. Returns the same values as `admit`.
local function admit_address(w, per_minute)
  if not open(w[1], MINUTE) then w[1], w[2] = now, 0 end
  if w[2] >= per_minute then
    return false, LIMITED, IN_MINUTE, per_minute, 0, w[1] + MINUTE
  end
  w[2] = w[2] + 1
  return true, ADMITTED, IN_MINUTE, per_minute, per_minute - w[2], w[1] + MINUTE
end

-- Caches records, so that each one is read and written only once, even if several calls in the batch use it.
local records, changed = {}, {}

-- Pads a record with zeros up to the given size.
local function padded(stored, size)
  if #stored >= size then return stored end
  return stored .. string.rep('\0', size - #stored)
end

local function key_record(name)
  if not records[name] then
    local stored = stored_bytes(name)
    if #stored < WINDOWS_SIZE or #stored > KEY_MAX then stored = '' end
    local w = { struct.unpack(KEY, padded(stored, KEY_SIZE)) }
    if w[2] < 0 or w[4] < 0 or w[9] < KEY_LIVE or w[9] > KEY_STAGING then
      w, stored = { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }, ''
    end
    w.counts = string.sub(stored, KEY_SIZE + 1)
    records[name] = w
  end
  return records[name]
end

local function address_record(name)
  if not records[name] then
    local stored = stored_bytes(name)
    local w = #stored == WINDOW_SIZE and { struct.unpack(WINDOW, stored) } or { 0, 0 }
    records[name] = w[2] >= 0 and w or { 0, 0 }
  end
  return records[name]
end

-- Counts an admission. A new epoch is the current time, so that it differs from all earlier epochs. Preserves the
-- counts of operations that only newer releases know.
local function count_admission(w, environment, number)
  if w[10] == 0 then w[9], w[10] = environment, microseconds end
  local from = number * COUNT_SIZE
  local counts = padded(w.counts, from + COUNT_SIZE)
  local count = struct.pack(COUNT, struct.unpack(COUNT, counts, from + 1) + 1)
  w.counts = string.sub(counts, 1, from) .. count .. string.sub(counts, from + COUNT_SIZE + 1)
end

local position = 1
for i = records_from + 1, records_from + #ARGV[6] / CALL_SIZE do
  local name = KEYS[i]
  local operation, keys_version, per_minute, per_day, number
  operation, keys_version, per_minute, per_day, number, position = struct.unpack(CALL, ARGV[6], position)
  local differs, outcome, window, limit, remaining, reset
  if operation == KEY_LIVE or operation == KEY_STAGING then
    if records_from == 1 and keys_version ~= versions[operation == KEY_LIVE and 3 or 6] then
      differs, outcome, window, limit, remaining, reset = false, OUTDATED, IN_MINUTE, 0, 0, now
    else
      local w = key_record(name)
      differs, outcome, window, limit, remaining, reset = admit(w, per_minute, per_day)
      if outcome == ADMITTED then count_admission(w, operation, number) end
    end
  elseif operation == LIFT then
    local w = key_record(name)
    differs, outcome, window, limit, remaining, reset = w[8] > 0, ADMITTED, IN_MINUTE, 0, w[8], now
    if differs then w[5], w[6], w[7], w[8] = 0, 0, 0, 0 end
  elseif operation == MARK or operation == IS_MARKED then
    if operation == MARK and per_minute > 0 then
      redis.call('SET', name, '1', 'PX', per_minute)
    elseif operation == MARK then
      redis.call('DEL', name)
    end
    differs, outcome, window, limit, remaining, reset = false, ADMITTED, IN_MINUTE, 0, redis.call('EXISTS', name), now
  else
    local w = address_record(name)
    local start, used = w[1], w[2]
    differs, outcome, window, limit, remaining, reset = admit_address(w, per_minute)
    if operation == PEEK and differs then
      w[1], w[2], remaining, differs = start, used, remaining + 1, false
    end
  end
  if differs then changed[name] = true end
  reply[#reply + 1] = struct.pack(RESULT, outcome, window, limit, remaining, reset, reset - now)
end

-- Key records never expire, because their counts might not have been collected yet.
for name in pairs(changed) do
  local w = records[name]
  if w.counts then
    redis.call('SET', name, struct.pack(KEY, unpack(w, 1, 10)) .. w.counts)
  else
    redis.call('SET', name, struct.pack(WINDOW, w[1], w[2]), 'PX', 2 * MINUTE)
  end
end

return table.concat(reply)
