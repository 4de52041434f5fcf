-- Transitions of every kind of state machine: their number, their share of the transitions that leave the state, and
-- the time in the previous state.
SELECT scenario, parameters, machine, state_from, state_to, count,
       count / sum(count) OVER (PARTITION BY scenario, parameters, machine, state_from) AS share,
       runs, at[0] AS median, at[1] AS p90, at[2] AS p99, at[3] AS max
FROM (
  SELECT scenario, parameters, machine, state_from, state_to,
         count(*) AS count,
         count(DISTINCT run_id) AS runs,
         percentile_approx(stayed_us / 1e6, array(0.5, 0.9, 0.99, 1.0), 10000) AS at
  FROM {transition} AS transition
  GROUP BY scenario, parameters, machine, state_from, state_to
)
ORDER BY scenario, parameters, machine, state_from, count DESC, state_to
