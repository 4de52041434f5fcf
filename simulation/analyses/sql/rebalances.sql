-- Durations of rebalances, by scenario and parameters. `formed_median` is the time until all first members were STABLE
-- at the group's epoch. `curve` holds the percentiles 0 to 100. All of them are null if any length is unknown.
SELECT scenario, parameters, coalesce(count, 0) AS count,
       curve[50] AS median, curve[90] AS p90, curve[99] AS p99, curve[100] AS max,
       formed_median, epochs_mean, coalesce(unfinished, 0) AS unfinished, curve
FROM (
  SELECT scenario, parameters,
         count(end_us) AS count,
         count(*) - count(end_us) AS unfinished,
         CASE WHEN count(seconds) = count(end_us) THEN percentile_disc({curve}) WITHIN GROUP (ORDER BY seconds) END AS curve,
         avg(epochs) FILTER (WHERE end_us IS NOT NULL) AS epochs_mean
  FROM {rebalance} AS rebalance
  WHERE (settled = 'Stable' OR end_us IS NULL) AND NOT forms
  GROUP BY scenario, parameters
)
FULL JOIN (
  SELECT scenario, parameters, percentile_disc(0.5) WITHIN GROUP (ORDER BY seconds) AS formed_median
  FROM {formation} AS formation
  WHERE seconds IS NOT NULL
  GROUP BY scenario, parameters
) USING (scenario, parameters)
ORDER BY scenario, parameters
