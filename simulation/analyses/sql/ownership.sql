-- View `ownership`: one row for each time a member could fetch a partition: from the end of the assigned callback
-- until a revoked or lost callback begins, the coordinator removes the member, or its host crashes,
-- whichever is first. `until_us` is null where it lasts to the end of the trace; `believed_until_us` leaves out what
-- the coordinator does: a member that was fenced goes on until it hears of it. A single active consumer (`sac`) has
-- its stream while it is active, and until it has let go; its actor is `HOST/STREAM`.
-- Everything is partitioned by the run, so one shuffle serves all windows, here and in the views that follow.
WITH acts AS (
  SELECT /*+ REPARTITION(run_id) */ run_id, seq, t_us, actor, partitions, kind = 'member.state' AS sac,
         CASE WHEN kind = 'member.state' THEN split_part(actor, '/', 1) ELSE actor END AS host,
         CASE
           WHEN kind = 'callback.end' AND detail = 'assigned' AND error = '' THEN 'assigned'
           WHEN kind = 'callback.begin' AND detail IN ('revoked', 'lost') THEN detail
           WHEN kind = 'host' AND detail = 'crash' THEN 'crash'
           WHEN kind = 'member.removed' THEN 'fenced'
           WHEN kind = 'member.state' AND state_to = 'ACTIVE' THEN 'assigned'
           WHEN kind = 'member.state' AND state_from = 'STEPPING_DOWN' AND state_to <> 'LOST' THEN 'stepped down'
           WHEN kind = 'member.state' AND state_from IN ('ACTIVE', 'STEPPING_DOWN') AND state_to = 'LOST' THEN 'lost'
         END AS act
  FROM {trace} AS trace
  WHERE kind IN ('callback.begin', 'callback.end', 'host', 'member.removed')
     OR kind = 'member.state' AND (state_to = 'ACTIVE' OR state_from IN ('ACTIVE', 'STEPPING_DOWN'))
),
ended AS (
  SELECT *,
         last_value(
           CASE WHEN act IN ('crash', 'fenced') THEN named_struct('seq', seq, 't_us', t_us, 'act', act) END, true
         ) OVER later AS gone,
         last_value(CASE WHEN act = 'crash' THEN named_struct('seq', seq, 't_us', t_us) END, true) OVER later AS crash
  FROM acts
  WHERE act IS NOT NULL
  WINDOW later AS (PARTITION BY run_id, host ORDER BY seq DESC ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
),
each AS (
  SELECT run_id, seq, t_us, actor, sac, act, gone, crash, held.topic, held.partition
  FROM ended LATERAL VIEW explode(partitions) AS held
  WHERE act IN ('assigned', 'revoked', 'lost', 'stepped down')
),
followed AS (
  SELECT *,
         lead(named_struct('seq', seq, 't_us', t_us, 'act', act)) OVER (
           PARTITION BY run_id, topic, partition, actor ORDER BY seq
         ) AS next
  FROM each
)
SELECT run_id, topic, partition, actor, sac, seq, t_us AS from_us,
       least(next, gone).t_us AS until_us,
       least(next, gone).act AS ended_by,
       least(next.t_us, crash.t_us) AS believed_until_us
FROM followed
WHERE act = 'assigned'
