-- Time that partitions had no active consumer between two active ones, for single active consumers.
SELECT scenario, parameters, as_seen_by, count,
       at[0] AS median, at[1] AS p90, at[2] AS p99, at[3] AS max,
       run_seconds_mean, unfinished
FROM (
  SELECT scenario, parameters, as_seen_by,
         count_if(NOT last) AS count,
         percentile_approx(seconds, array(0.5, 0.9, 0.99, 1.0), 10000) FILTER (WHERE NOT last) AS at,
         sum(until_us - from_us) / 1e6 / count(DISTINCT run_id) AS run_seconds_mean,
         count_if(last) AS unfinished
  FROM (SELECT *, (until_us - from_us) / 1e6 AS seconds FROM {sac_gap} AS sac_gap)
  GROUP BY scenario, parameters, as_seen_by
)
ORDER BY scenario, parameters, as_seen_by
