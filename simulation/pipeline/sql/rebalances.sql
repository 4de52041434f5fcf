-- How long rebalances took, by scenario and parameters; heartbeats are those answered during one.
-- `formation_median` is that of each group's first one alone. `curve` holds the percentiles 0 to 100.
SELECT scenario, parameters, count, unfinished,
       curve[50] AS median, curve[90] AS p90, curve[99] AS p99, curve[100] AS max,
       formation_median, epochs_mean, heartbeats_mean, heartbeats_median, heartbeats_max, curve
FROM (
  SELECT scenario, parameters,
         count(seconds) AS count,
         count(*) - count(end_us) AS unfinished,
         percentile(seconds, :curve) AS curve,
         percentile(seconds, 0.5) FILTER (WHERE rebalance = 0) AS formation_median,
         avg(epochs) FILTER (WHERE end_us IS NOT NULL) AS epochs_mean,
         avg(heartbeats) FILTER (WHERE end_us IS NOT NULL) AS heartbeats_mean,
         percentile(heartbeats, 0.5) FILTER (WHERE end_us IS NOT NULL) AS heartbeats_median,
         max(heartbeats) FILTER (WHERE end_us IS NOT NULL) AS heartbeats_max
  FROM rebalance
  WHERE settled = 'Stable' OR end_us IS NULL
  GROUP BY scenario, parameters
)
ORDER BY scenario, parameters
