-- Runs by scenario and parameters, from the summaries of a campaign.
SELECT scenario, parameters,
       count(*) AS runs,
       count_if(error IS NOT NULL) AS failed,
       count_if(violations > 0) AS violating,
       coalesce(sum(violations), 0) AS violations,
       count_if(NOT converged) AS unconverged,
       count_if(traced) AS traced,
       avg(wall_seconds) AS wall_seconds_mean,
       sum(heartbeats) AS heartbeats
FROM {summary} AS summary
GROUP BY scenario, parameters
ORDER BY scenario, parameters
