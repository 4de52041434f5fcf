-- Time until partitions got their first owner: since the run's start, or since their topic got them.
SELECT scenario, parameters, count,
       at[0] AS median, at[1] AS p90, at[2] AS p99, at[3] AS max
FROM (
  SELECT scenario, parameters,
         count(*) AS count,
         percentile_approx(gap_us / 1e6, array(0.5, 0.9, 0.99, 1.0), 10000) AS at
  FROM {handover} AS handover
  WHERE first AND gap_us IS NOT NULL
  GROUP BY scenario, parameters
)
ORDER BY scenario, parameters
