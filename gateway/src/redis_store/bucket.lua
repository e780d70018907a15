-- A token bucket in whole millionths of a token, by this server's clock.
-- KEYS[1] the bucket; ARGV[1] capacity in tokens; ARGV[2] tokens a second (millionths a microsecond).
-- Gives back {1 if a token was taken, millionths left, microseconds until one more could be taken}.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local full = ARGV[1] * 1000000
local rate = tonumber(ARGV[2])
local level, at = full, now
local kept = redis.call('GET', KEYS[1])
if kept then
  local l, a = string.match(kept, '^(%d+):(%d+)$')
  level, at = tonumber(l), tonumber(a)
end
if now > at then
  level = level + (now - at) * rate
end
-- A clock that went back counts from where it is now and gives nothing; a lower capacity cuts off what is over it.
level = math.min(level, full)
local taken = 0
if level >= 1000000 then
  level = level - 1000000
  taken = 1
end
local wait = math.max(0, math.ceil((1000000 - level) / rate))
-- Full again after this long, and then there is nothing to remember. Value and expiry in one command.
local expiry = math.ceil((full - level) / rate / 1000) + 1000
redis.call('SET', KEYS[1], string.format('%.0f:%.0f', level, now), 'PX', string.format('%.0f', expiry))
return {taken, level, wait}
