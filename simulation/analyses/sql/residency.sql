-- Time that members were in each state.
SELECT scenario, parameters, state,
       sum(visits) AS visits,
       sum(us) / 1e6 AS seconds,
       sum(us) / nullif(sum(sum(us)) OVER (PARTITION BY scenario, parameters), 0) AS share,
       sum(us) / 1e6 / sum(visits) AS mean,
       max(max_us) / 1e6 AS max
FROM {stay} AS stay
GROUP BY scenario, parameters, state
ORDER BY scenario, parameters, seconds DESC, state
