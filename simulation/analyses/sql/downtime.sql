-- Time that a partition had no owner between two owners, by scenario, parameters and cause. Rows with `cause` 'all' are
-- for all causes together and come first. `run_seconds_mean` adds up all partitions of a run and is the mean over all
-- runs, including those without any, so the causes add up. There can be millions of handovers, so the percentiles (0 to
-- 100 in `curve`) are approximate, to a ten-thousandth of the rank. All times are null if any is unknown: the longest may
-- be among those.
SELECT scenario, parameters, cause, count, unknown,
       curve[50] AS median, curve[90] AS p90, curve[99] AS p99, curve[100] AS max,
       seconds / runs AS run_seconds_mean, curve
FROM (
  SELECT scenario, parameters, coalesce(cause, 'all') AS cause, cause IS NULL AS of_all,
         count(*) AS count,
         count(*) - count(gap_us) AS unknown,
         CASE WHEN count(gap_us) = count(*) THEN percentile_approx(seconds, {curve}, 10000) END AS curve,
         CASE WHEN count(gap_us) = count(*) THEN sum(gap_us) / 1e6 END AS seconds
  FROM (SELECT *, gap_us / 1e6 AS seconds FROM {handover} AS handover WHERE apart)
  GROUP BY GROUPING SETS ((scenario, parameters), (scenario, parameters, cause))
)
JOIN (SELECT scenario, parameters, count(*) AS runs FROM {run} AS run GROUP BY scenario, parameters) USING (scenario, parameters)
ORDER BY scenario, parameters, of_all DESC, cause
