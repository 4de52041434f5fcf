-- View `occupancy`: one row for each stretch of time in which a partition has the same number of owners, from its
-- first owner on, `as_seen_by` whom: `coordinator`, `members` (those that the coordinator has not fenced), or
-- `all members`, those included that do not know yet that they are fenced. `last` is the stretch at the end of the run.
WITH held AS (
  SELECT /*+ BROADCAST(run) */ run_id, as_seen_by, topic, partition, sac, from_us,
         least(until_us, run_end_us) AS until_us, scenario, parameters, run_end_us
  FROM (
    SELECT run_id, topic, partition, sac, from_us,
           explode(map('members', until_us, 'all members', believed_until_us)) AS (as_seen_by, until_us)
    FROM {ownership} AS ownership
    UNION ALL
    SELECT run_id, topic, partition, sac, from_us, 'coordinator' AS as_seen_by, until_us
    FROM {holding} AS holding
  ) JOIN {run} AS run USING (run_id)
),
changes AS (
  SELECT run_id, as_seen_by, topic, partition, t_us, sum(change) AS change,
         max(sac) AS sac, max(run_end_us) AS run_end_us, max(scenario) AS scenario, max(parameters) AS parameters
  FROM (
    SELECT *, explode(map(from_us, 1, until_us, -1)) AS (t_us, change)
    FROM held
    WHERE until_us > from_us
  )
  GROUP BY run_id, as_seen_by, topic, partition, t_us
  HAVING sum(change) <> 0
)
SELECT run_id, scenario, parameters, as_seen_by, topic, partition, sac, t_us AS from_us,
       lead(t_us, 1, run_end_us) OVER so_far AS until_us,
       sum(change) OVER so_far AS owners,
       lead(t_us) OVER so_far IS NULL AS last
FROM changes
WHERE t_us < run_end_us
WINDOW so_far AS (PARTITION BY run_id, as_seen_by, topic, partition ORDER BY t_us)
