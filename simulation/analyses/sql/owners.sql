-- Time that partitions had no owner, one, two or more, by observer, from each partition's first owner on.
SELECT scenario, parameters, as_seen_by, owners,
       sum(count) AS count,
       sum(us) / 1e6 AS seconds,
       sum(us) / sum(sum(us)) OVER (PARTITION BY scenario, parameters, as_seen_by) AS share,
       max(max_us) / 1e6 AS max
FROM {owning} AS owning
GROUP BY scenario, parameters, as_seen_by, owners
ORDER BY scenario, parameters, as_seen_by, owners
