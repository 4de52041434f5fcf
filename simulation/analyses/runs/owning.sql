-- View `owning`: how often and how long the partitions of a run had how many owners together, `as_seen_by` whom; from
-- the first owner of each on.
SELECT run_id, as_seen_by, owners, count(*)::BIGINT AS count,
       sum(until_us - from_us)::BIGINT AS us, max(until_us - from_us)::BIGINT AS max_us
FROM {occupancy}
WHERE NOT reading
GROUP BY run_id, as_seen_by, owners
