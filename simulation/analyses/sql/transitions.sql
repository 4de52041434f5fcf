-- The moves of every kind of machine: how often, which share of those that leave the state, and how long it was in the
-- state before. That time is unknown for the first move of a machine, and of a process that was started anew.
WITH moves AS (
  SELECT run_id, t_us, kind, state_from, state_to, machine,
         CASE WHEN lag(state_to) OVER by_machine = state_from THEN t_us - lag(t_us) OVER by_machine END AS stayed_us
  FROM (
    SELECT run_id, seq, t_us, kind, state_from, state_to,
           CASE
             WHEN kind = 'group.state' THEN 'group'
             WHEN kind = 'sac.consumer' THEN 'sac-consumer'
             WHEN kind = 'client.state' THEN 'stream-client'
             WHEN kind = 'thread.state' THEN 'stream-thread'
             WHEN contains(actor, '/') THEN 'sac-member'
             ELSE 'member'
           END AS machine,
           CASE WHEN kind = 'group.state' THEN `group` WHEN kind = 'sac.consumer' THEN concat(actor, split_part(detail, ' ', 2)) ELSE actor END AS each
    FROM {trace} AS trace
    WHERE kind IN ('client.state', 'group.state', 'member.state', 'sac.consumer', 'thread.state')
       OR kind = 'host' AND detail = 'start'
  )
  WINDOW by_machine AS (PARTITION BY run_id, machine, each ORDER BY seq)
)
SELECT scenario, parameters, machine, state_from, state_to, count,
       count / sum(count) OVER (PARTITION BY scenario, parameters, machine, state_from) AS share,
       runs, at[0] AS median, at[1] AS p90, at[2] AS p99, at[3] AS max
FROM (
  SELECT scenario, parameters, machine, state_from, state_to,
         count(*) AS count,
         count(DISTINCT run_id) AS runs,
         percentile_approx(stayed_us / 1e6, array(0.5, 0.9, 0.99, 1.0), 10000) AS at
  FROM moves JOIN {run} AS run USING (run_id)
  WHERE kind <> 'host'
  GROUP BY scenario, parameters, machine, state_from, state_to
)
ORDER BY scenario, parameters, machine, state_from, count DESC, state_to
