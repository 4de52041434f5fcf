-- View `owning`: number and total length of the times in which the partitions of a run had each number of owners, by
-- observer (`as_seen_by`), from each partition's first owner on.
SELECT run_id, as_seen_by, owners, count(*)::BIGINT AS count,
       sum(until_us - from_us)::BIGINT AS us, max(until_us - from_us)::BIGINT AS max_us
FROM {occupancy}
WHERE NOT reading
GROUP BY run_id, as_seen_by, owners
