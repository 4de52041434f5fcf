-- How many heartbeats the coordinator answered during each rebalance that ended.
SELECT scenario, parameters,
       count(*) AS rebalances,
       avg(heartbeats) AS mean,
       percentile(heartbeats, 0.5) AS median,
       max(heartbeats) AS max
FROM {rebalance}
WHERE settled = 'Stable'
GROUP BY scenario, parameters
ORDER BY scenario, parameters
