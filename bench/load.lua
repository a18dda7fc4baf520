-- Defines what wrk sends in each row of the race, and prints one line of JSON for load.py at the end.
-- Arguments after `--`: the row, the number of animals, a tag that makes the requests of this run unique, a file of
-- keys, and a file of cursors. Requests are joined from prepared parts, so that wrk is not the bottleneck.

local random, format = math.random, string.format
local sent = 0
local heads, cursors, hex, queries = {}, {}, {}, {}
local animals, tag, run

-- The header lines of an instrumented client. The traceparent comes last, because its value differs in each request.
local function head_of(key)
  return " HTTP/1.1\r\nHost: api.example.com\r\nUser-Agent: python-httpx/0.28.1\r\nAccept: application/json\r\n"
    .. "Accept-Encoding: gzip, deflate\r\nAccept-Language: en\r\nConnection: keep-alive\r\n"
    .. "Authorization: Bearer " .. key .. "\r\ntraceparent: 00-"
end

-- Returns a message with a random key. The counter makes its traceparent unique.
local function message(start, rest)
  sent = sent + 1
  return start .. heads[random(#heads)] .. hex[random(#hex)] .. format("%016x", sent) .. "-" .. hex[random(#hex)]
    .. "-01\r\n" .. rest
end

local function list() return message(queries[random(#queries)], "\r\n") end

local function get() return message("GET /v1/pets/" .. random(animals), "\r\n") end

local function page() return message("GET /v1/pets?cursor=" .. cursors[random(#cursors)], "\r\n") end

local function create()
  local body = '{"name":"' .. tag .. " " .. sent .. '","categoryId":7,"status":"available"}'
  return message("POST /v1/pets", "Content-Type: application/json\r\nContent-Length: " .. #body
    .. "\r\nIdempotency-Key: " .. run .. format("%016x", sent) .. "\r\n\r\n" .. body)
end

local turns = { list, list, get, list, list, list, get, list, list, create }

local function mix() return turns[sent % #turns + 1]() end

local function first_page() return message("GET /v1/pets", "\r\n") end

local function make_parts(key_file, cursor_file)
  for key in io.lines(key_file) do heads[#heads + 1] = head_of(key) end
  for i = 1, 4096 do hex[i] = format("%08x%08x", random(0, 2 ^ 32 - 1), random(0, 2 ^ 32 - 1)) end
  run = hex[1]
  -- Every query returns 20 animals. It has no parameters, one, or both in either order, equally often for each status.
  for _, status in ipairs({ "available", "pending", "sold" }) do
    local chosen = "status=" .. status
    for _, query in ipairs({ "", "?limit=20", "?" .. chosen, "?limit=20&" .. chosen, "?" .. chosen .. "&limit=20" }) do
      queries[#queries + 1] = "GET /v1/pets" .. query
    end
  end
  if cursor_file then
    for cursor in io.lines(cursor_file) do cursors[#cursors + 1] = cursor end
  end
end

function init(args)
  local row = args[1]
  animals, tag = tonumber(args[2]), args[3]
  if row == "same" then return end -- without a function, wrk repeats the request on its command line
  local seed = 0 -- the same requests for every contender, but different ones in each run
  for i = 1, #tag do seed = (seed * 31 + tag:byte(i)) % 2 ^ 31 end
  math.randomseed(seed)
  make_parts(args[4], args[5])
  local functions = { list = list, get = get, create = create, mix = mix, cursors = page }
  request = functions[row] or first_page
end

function done(summary, latency)
  local e = summary.errors
  io.write(format(
    'RACE {"requests":%d,"microseconds":%d,"p50":%d,"p99":%d,"status":%d,"socket":%d,"timeout":%d}\n',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    e.status, e.connect + e.read + e.write, e.timeout))
end
