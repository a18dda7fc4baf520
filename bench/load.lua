-- What wrk sends in each row of the race, and one line of JSON at the end for load.py.
-- Arguments after `--`: row, number of animals, a tag that makes this run's names its own, a file of cursors or of keys.

local sent = 0

-- Requests made beforehand and sent in turn: wrk must not be what is measured.
local function in_turn(ready)
  return function()
    sent = sent % #ready + 1
    return ready[sent]
  end
end

-- Ids spread over all animals: a get must find any of them.
local function gets(animals)
  local ready = {}
  for i = 1, 4096 do
    ready[i] = wrk.format("GET", "/v1/pets/" .. math.random(1, animals))
  end
  return in_turn(ready)
end

-- The same for pages all over the list.
local function pages(file)
  local ready = {}
  for cursor in io.lines(file) do
    ready[#ready + 1] = wrk.format("GET", "/v1/pets?cursor=" .. cursor)
  end
  return in_turn(ready)
end

-- Another key for each request: what is remembered of one does not help the next.
local function keys(file)
  local ready = {}
  for key in io.lines(file) do
    ready[#ready + 1] = "GET /v1/pets HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " .. key .. "\r\n\r\n"
  end
  return in_turn(ready)
end

local function create(tag)
  sent = sent + 1
  local body = '{"name":"' .. tag .. " " .. sent .. '","categoryId":7,"status":"available"}'
  return wrk.format("POST", "/v1/pets", nil, body)
end

function init(args)
  local row, animals, tag = args[1], tonumber(args[2]), args[3]
  math.randomseed(1) -- the same ids for every contender
  if row == "get" then
    request = gets(animals)
  elseif row == "cursors" then
    request = pages(args[4])
  elseif row == "keys" then
    request = keys(args[4])
  elseif row == "create" then
    wrk.headers["Content-Type"] = "application/json"
    request = function() return create(tag) end
  elseif row == "mixed" then
    wrk.headers["Content-Type"] = "application/json"
    local list = wrk.format("GET", "/v1/pets")
    local turn = 0
    request = function()
      turn = turn + 1
      if turn % 10 == 0 then return create(tag) end
      return list
    end
  end -- the others need no function: wrk repeats the request of its command line
end

function done(summary, latency)
  local e = summary.errors
  io.write(string.format(
    'RACE {"requests":%d,"microseconds":%d,"p50":%d,"p99":%d,"status":%d,"socket":%d,"timeout":%d}\n',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    e.status, e.connect + e.read + e.write, e.timeout))
end
