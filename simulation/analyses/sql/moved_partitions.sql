-- Number of partitions that rebalances moved, compared with the smallest number that was necessary. `run_moved_mean` is
-- the mean over all runs, including those without a rebalance that ended.
SELECT scenario, parameters, count,
       at[0] AS median, at[1] AS p90, at[2] AS p99, at[3] AS max,
       moved, least, excess, moved / runs AS run_moved_mean
FROM (
  SELECT scenario, parameters,
         count(*) AS count,
         percentile_disc(array(0.5, 0.9, 0.99, 1.0)) WITHIN GROUP (ORDER BY moved) AS at,
         sum(moved) AS moved,
         sum(least) AS least,
         sum(moved) / nullif(sum(least), 0) AS excess
  FROM {move} AS move
  GROUP BY scenario, parameters
)
JOIN (SELECT scenario, parameters, count(*) AS runs FROM {run} AS run GROUP BY scenario, parameters) USING (scenario, parameters)
ORDER BY scenario, parameters
