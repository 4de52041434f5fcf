-- View `incident`: one row for what was refused, taken away or found wrong: fencings with their cause, commits
-- refused with the error, violations with the invariant. Of one cause there can be many in a run.
SELECT run_id, seq, t_us, actor,
       CASE
         WHEN kind = 'violation' THEN 'violation'
         WHEN kind = 'commit' THEN 'commit'
         ELSE 'fencing'
       END AS incident,
       CASE WHEN kind = 'member.removed' THEN detail ELSE error END AS name
FROM {trace}
WHERE kind = 'violation'
   OR kind = 'member.removed' AND detail <> 'left'
   OR kind = 'commit' AND error NOT IN ('', 'NONE')
   OR kind = 'heartbeat' AND error IN ('FENCED_MEMBER_EPOCH', 'UNKNOWN_MEMBER_ID', 'FENCED_INSTANCE_ID')
