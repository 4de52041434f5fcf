-- View `transition`: one row for each transition of a machine of any kind, with the time in the previous state
-- (`stayed_us`). That is null for the first transition of a machine, of a restarted process, and for joining
-- in Kafka's own log of groups.
WITH moves AS (
  SELECT run_id, seq, t_us, kind, state_from, state_to, world,
         CASE
           WHEN kind = 'group.state' THEN 'group'
           WHEN kind = 'sac.consumer' THEN 'sac-consumer'
           WHEN kind = 'client.state' THEN 'stream-client'
           WHEN kind = 'thread.state' THEN 'stream-thread'
           WHEN single.actor IS NOT NULL THEN 'sac-member'
           ELSE 'member'
         END AS machine,
         CASE
           WHEN kind = 'group.state' THEN "group"
           WHEN kind = 'sac.consumer' THEN concat(trace.actor, split_part(detail, ' ', 2))
           ELSE trace.actor
         END AS each
  FROM {trace} AS trace LEFT JOIN {single_active} AS single USING (run_id, actor)
  WHERE kind IN ('client.state', 'group.state', 'member.state', 'sac.consumer', 'thread.state')
     OR kind = 'host' AND detail = 'start'
),
timed AS (
  SELECT *,
         CASE
           WHEN lag(kind) OVER by_machine <> 'host' AND lag(state_to) OVER by_machine = state_from
             AND NOT (world = '{log_world}' AND state_from = 'JOINING')
           THEN t_us - lag(t_us) OVER by_machine
         END AS stayed_us
  FROM moves
  WINDOW by_machine AS (PARTITION BY run_id, machine, each ORDER BY seq)
)
SELECT run_id, machine, state_from, state_to, stayed_us FROM timed WHERE kind <> 'host'
