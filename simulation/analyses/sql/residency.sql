-- How long members were in each state.
SELECT scenario, parameters, state,
       count(*) AS visits,
       sum(seconds) AS seconds,
       sum(seconds) / nullif(sum(sum(seconds)) OVER (PARTITION BY scenario, parameters), 0) AS share,
       avg(seconds) AS mean,
       max(seconds) AS max
FROM {stay} AS stay
GROUP BY scenario, parameters, state
ORDER BY scenario, parameters, seconds DESC, state
