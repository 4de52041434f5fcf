-- Number of heartbeats that the coordinator answered during each rebalance that ended, and the bytes of these requests
-- and responses.
SELECT scenario, parameters, rebalances, mean,
       at[0] AS median, at[1] AS p90, at[2] AS p99, CAST(at[3] AS BIGINT) AS max,
       bytes_mean, bytes_at[0] AS bytes_median, bytes_at[1] AS bytes_p90, bytes_at[2] AS bytes_p99, bytes_at[3] AS bytes_max
FROM (
  SELECT scenario, parameters,
         count(*) AS rebalances,
         avg(heartbeats) AS mean,
         percentile_disc(array(0.5, 0.9, 0.99, 1.0)) WITHIN GROUP (ORDER BY heartbeats) AS at,
         avg(bytes) AS bytes_mean,
         percentile_disc(array(0.5, 0.9, 0.99, 1.0)) WITHIN GROUP (ORDER BY bytes) AS bytes_at
  FROM {rebalance} AS rebalance
  WHERE settled = 'Stable' AND NOT forms AND heartbeats IS NOT NULL
  GROUP BY scenario, parameters
)
ORDER BY scenario, parameters
