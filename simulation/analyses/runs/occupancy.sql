-- View `occupancy`: one row for each stretch of time in which a partition has the same number of owners, from its first
-- owner on. `as_seen_by` is the observer: `coordinator`, `members` (those that the coordinator has not fenced), or `all
-- members`, including those that do not know yet that they are fenced. `last` is the stretch at the end of the run.
-- Owners are the members that hold the partition. For single active consumers, those that read it are also counted, in
-- rows of their own (`reading`). A log of groups tells only what the coordinator sees.
WITH spans AS (
  SELECT run_id, topic, partition, sac, from_us, 'members' AS as_seen_by, false AS reading, held_until_us AS until_us
  FROM {ownership}
  UNION ALL
  SELECT run_id, topic, partition, sac, from_us, 'all members', false, believed_until_us FROM {ownership}
  UNION ALL
  SELECT run_id, topic, partition, sac, from_us, 'members', true, until_us FROM {ownership} WHERE sac
  UNION ALL
  SELECT run_id, topic, partition, sac, from_us, 'coordinator', false, until_us FROM {holding}
  UNION ALL
  SELECT run_id, topic, partition, sac, from_us, 'coordinator', true, until_us FROM {holding} WHERE sac AND reads
),
held AS (
  SELECT run_id, as_seen_by, reading, topic, partition, sac, from_us, least(until_us, run_end_us) AS until_us, run_end_us
  FROM spans JOIN {traced} USING (run_id)
  WHERE as_seen_by = 'coordinator' OR NOT logged
),
changes AS (
  SELECT run_id, as_seen_by, reading, topic, partition, t_us, sum(change) AS change,
         max(sac) AS sac, max(run_end_us) AS run_end_us
  FROM (
    SELECT *, from_us AS t_us, 1 AS change FROM held WHERE until_us > from_us
    UNION ALL
    SELECT *, until_us AS t_us, -1 AS change FROM held WHERE until_us > from_us
  )
  GROUP BY run_id, as_seen_by, reading, topic, partition, t_us
  HAVING sum(change) <> 0
)
SELECT run_id, as_seen_by, reading, topic, partition, sac, t_us AS from_us,
       lead(t_us, 1, run_end_us) OVER so_far AS until_us,
       (sum(change) OVER so_far)::BIGINT AS owners,
       lead(t_us) OVER so_far IS NULL AS last
FROM changes
WHERE t_us < run_end_us
WINDOW so_far AS (PARTITION BY run_id, as_seen_by, reading, topic, partition ORDER BY t_us)
