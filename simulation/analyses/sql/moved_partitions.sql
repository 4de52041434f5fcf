-- How many partitions rebalances moved, against the least that would have done.
SELECT scenario, parameters, count,
       at[0] AS median, at[1] AS p90, at[2] AS p99, at[3] AS max,
       moved, least, excess, run_moved_mean
FROM (
  SELECT scenario, parameters,
         count(*) AS count,
         percentile(moved, array(0.5, 0.9, 0.99, 1.0)) AS at,
         sum(moved) AS moved,
         sum(least) AS least,
         sum(moved) / nullif(sum(least), 0) AS excess,
         sum(moved) / count(DISTINCT run_id) AS run_moved_mean
  FROM {move} AS move
  GROUP BY scenario, parameters
)
ORDER BY scenario, parameters
