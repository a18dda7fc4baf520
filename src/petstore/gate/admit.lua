-- One batch of calls of a worker. Redis runs no other command meanwhile, so a batch is atomic, as a transaction of
-- gate/lmdb.py is. The rules are those of rate_limits.py in the same order; a test compares both on random requests.
--
-- ARGV[1]   the time in milliseconds; empty: the clock of Redis, so that the clocks of nodes do not matter
-- ARGV[2-4] the ban policy: length and ceiling in milliseconds, threshold (0: the key's limit per minute)
-- ARGV[5]   the versions to raise, as bits: 1 live catalogue, 2 live keys, 4 staging catalogue, 8 staging keys.
--           Empty in Redis Cluster, where the versions are in another slot and the worker has compared them already.
-- ARGV[6]   the calls, 32 bytes each: operation, keys' version under which the limits were read, per minute, per day
-- KEYS      the versions, unless ARGV[5] is empty; then the record of each call, in order
--
-- Returns the four versions, unless ARGV[5] is empty; then 48 bytes for each call: outcome, window, limit, remaining,
-- reset, wait.

local MINUTE, DAY = 60000, 86400000
local ADMITTED, LIMITED, BANNED, OUTDATED = 0, 1, 2, 3
local IN_MINUTE, IN_DAY = 0, 1
local KEY_LIVE, KEY_STAGING, ADDRESS, PEEK, LIFT = 0, 1, 2, 3, 4

local VERSIONS = '<i8i8i8i8'
local CALL = '<i8i8i8i8'
local WINDOWS = '<i8i8i8i8i8i8i8i8i8'
local WINDOW = '<i8i8'
local RESULT = '<i8i8i8i8i8i8'

local clock = redis.call('TIME')
local microseconds = clock[1] * 1000000 + clock[2]
local now = tonumber(ARGV[1]) or math.floor(microseconds / 1000)
local ban_length, ban_ceiling, ban_threshold = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local reply = {}

-- A version is raised to the time at least. So a version that a failover or an eviction lost cannot come again.
local versions = { 0, 0, 0, 0 }
local raise = tonumber(ARGV[5])
local records_from = raise and 1 or 0
if raise then
  local stored = redis.call('GET', KEYS[1])
  if stored then
    versions = { struct.unpack(VERSIONS, stored) }
  else
    raise = 15
  end
  if raise > 0 then
    for i = 1, 4 do
      if raise % 2 == 1 then versions[i] = math.max(versions[i] + 1, microseconds) end
      raise = math.floor(raise / 2)
    end
    local packed = struct.pack(VERSIONS, versions[1], versions[2], versions[3], versions[4])
    redis.call('SET', KEYS[1], packed, 'PX', 30 * DAY)
  end
  reply[1] = struct.pack(VERSIONS, versions[1], versions[2], versions[3], versions[4])
end

local function open(start, length)
  local age = now - start
  return -length < age and age < length
end

-- Decide one request of a key. Returns outcome, window, limit, remaining, reset, and whether `w` has changed.
local function admit(w, per_minute, per_day)
  local minute_start, minute_used, day_start, day_used, strike_start, strikes, ban_start, ban_end, bans =
    w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8], w[9]

  if now < ban_end and now >= ban_start - DAY then
    return BANNED, IN_MINUTE, per_minute, 0, ban_end, false
  end

  local minute_open, day_open = open(minute_start, MINUTE), open(day_start, DAY)
  local minute_left = minute_open and per_minute - minute_used or per_minute
  local day_left = day_open and per_day - day_used or per_day

  if minute_left > 0 and day_left > 0 then
    if minute_open then
      w[2] = minute_used + 1
    else
      w[1], w[2], w[6] = now, 1, 0
    end
    if day_open then
      w[4] = day_used + 1
    else
      w[3], w[4] = now, 1
    end
    if day_left <= minute_left then -- a tie speaks of the longer window
      return ADMITTED, IN_DAY, per_day, day_left - 1, w[3] + DAY, true
    end
    return ADMITTED, IN_MINUTE, per_minute, minute_left - 1, w[1] + MINUTE, true
  end

  -- Strikes are counted within the open minute or, when only the day is exhausted, within a minute of their own.
  local window = now
  if minute_open then
    window = minute_start
  elseif open(strike_start, MINUTE) then
    window = strike_start
  end
  strikes = window == strike_start and strikes + 1 or 1

  if strikes > (ban_threshold > 0 and ban_threshold or per_minute) then
    bans = (bans > 0 and now - ban_start < DAY) and bans + 1 or 1
    w[5], w[6], w[7], w[9] = 0, 0, now, bans
    w[8] = now + math.min(ban_length * 2 ^ math.min(bans - 1, 40), ban_ceiling)
    return BANNED, IN_MINUTE, per_minute, 0, w[8], true
  end

  w[5], w[6] = window, strikes
  local minute_end = minute_left <= 0 and minute_start + MINUTE or 0
  local day_end = day_left <= 0 and day_start + DAY or 0
  if day_end >= minute_end then
    return LIMITED, IN_DAY, per_day, 0, day_end, true
  end
  return LIMITED, IN_MINUTE, per_minute, 0, minute_end, true
end

-- Decide one request of an address, which has one window. Returns the same.
local function admit_address(w, per_minute)
  if not open(w[1], MINUTE) then w[1], w[2] = now, 0 end
  if w[2] >= per_minute then
    return LIMITED, IN_MINUTE, per_minute, 0, w[1] + MINUTE, false
  end
  w[2] = w[2] + 1
  return ADMITTED, IN_MINUTE, per_minute, per_minute - w[2], w[1] + MINUTE, true
end

-- A record with several calls in the batch is read once and written once.
local records, changed = {}, {}

local function record(name, form, empty)
  if not records[name] then
    local stored = redis.call('GET', name)
    records[name] = stored and { struct.unpack(form, stored) } or empty
  end
  return records[name]
end

local position = 1
for i = records_from + 1, #KEYS do
  local name = KEYS[i]
  local operation, keys_version, per_minute, per_day
  operation, keys_version, per_minute, per_day, position = struct.unpack(CALL, ARGV[6], position)
  local outcome, window, limit, remaining, reset, differs
  if operation == KEY_LIVE or operation == KEY_STAGING then
    if records_from == 1 and keys_version ~= versions[operation == KEY_LIVE and 2 or 4] then
      outcome, window, limit, remaining, reset, differs = OUTDATED, IN_MINUTE, 0, 0, now, false
    else
      local w = record(name, WINDOWS, { 0, 0, 0, 0, 0, 0, 0, 0, 0 })
      outcome, window, limit, remaining, reset, differs = admit(w, per_minute, per_day)
    end
  elseif operation == LIFT then
    local w = record(name, WINDOWS, { 0, 0, 0, 0, 0, 0, 0, 0, 0 })
    outcome, window, limit, remaining, reset, differs = ADMITTED, IN_MINUTE, 0, w[9], now, w[9] > 0
    w[5], w[6], w[7], w[8], w[9] = 0, 0, 0, 0, 0
  else
    local w = record(name, WINDOW, { 0, 0 })
    local start, used = w[1], w[2]
    outcome, window, limit, remaining, reset, differs = admit_address(w, per_minute)
    if operation == PEEK and differs then
      w[1], w[2], remaining, differs = start, used, remaining + 1, false
    end
  end
  if differs then changed[name] = true end
  reply[#reply + 1] = struct.pack(RESULT, outcome, window, limit, remaining, reset, reset - now)
end

-- A record expires when nothing in it can matter any more.
for name in pairs(changed) do
  local w = records[name]
  if #w >= 9 then
    local packed = struct.pack(WINDOWS, w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8], w[9])
    redis.call('SET', name, packed, 'PX', math.max(DAY, w[8] - now) + MINUTE)
  else
    redis.call('SET', name, struct.pack(WINDOW, w[1], w[2]), 'PX', 2 * MINUTE)
  end
end

return table.concat(reply)
