-- The records that new owners of partitions had to catch up with, and to process again, by the reason for which the
-- previous owner released the partition. Rows for 'all' reasons together come first. `run_again_mean` is the mean over
-- all runs, so the causes add up.
SELECT scenario, parameters, cause, count,
       lag_at[0] AS lag_median, lag_at[1] AS lag_p90, lag_at[2] AS lag_p99, lag_at[3] AS lag_max,
       at[0] AS median, at[1] AS p90, at[2] AS p99, at[3] AS max, behind,
       again, again_max, again / runs AS run_again_mean
FROM (
  SELECT scenario, parameters, coalesce(cause, 'all') AS cause, cause IS NULL AS of_all,
         count(*) AS count,
         percentile_approx(CAST(lag AS DOUBLE), array(0.5, 0.9, 0.99, 1.0), 10000) AS lag_at,
         percentile_approx(caught_up_us / 1e6, array(0.5, 0.9, 0.99, 1.0), 10000) AS at,
         count(lag) - count(caught_up_us) AS behind,
         sum(again) AS again,
         max(again) AS again_max
  FROM {recovery} AS recovery
  GROUP BY GROUPING SETS ((scenario, parameters), (scenario, parameters, cause))
)
JOIN (SELECT scenario, parameters, count(*) AS runs FROM {run} AS run GROUP BY scenario, parameters) USING (scenario, parameters)
ORDER BY scenario, parameters, of_all DESC, cause
