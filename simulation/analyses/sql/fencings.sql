-- Members that were removed or fenced, by cause, and the time until the process on that host was STABLE again.
SELECT scenario, parameters, cause, count, runs, example, recovered,
       at[0] AS median, at[1] AS p90, at[2] AS p99, at[3] AS max
FROM (
  SELECT scenario, parameters, name AS cause,
         count(*) AS count,
         count(DISTINCT run_id) AS runs,
         min(run_id) AS example,
         count(stable_us) AS recovered,
         percentile_approx((stable_us - fenced_us) / 1e6, array(0.5, 0.9, 0.99, 1.0), 10000) AS at
  FROM {fencing} AS fencing
  GROUP BY scenario, parameters, name
)
ORDER BY scenario, parameters, count DESC, cause
