-- How long partitions had no owner, one, two or more, by whose eyes; from the first owner of each on.
SELECT scenario, parameters, as_seen_by, owners,
       count(*) AS count,
       sum(seconds) AS seconds,
       sum(seconds) / sum(sum(seconds)) OVER (PARTITION BY scenario, parameters, as_seen_by) AS share,
       max(seconds) AS max
FROM (SELECT *, (until_us - from_us) / 1e6 AS seconds FROM {occupancy} AS occupancy WHERE NOT reading)
GROUP BY scenario, parameters, as_seen_by, owners
ORDER BY scenario, parameters, as_seen_by, owners
