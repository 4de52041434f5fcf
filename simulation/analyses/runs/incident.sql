-- View `incident`: one row for each refusal, removal or violation: fencings with their cause, refused commits with the
-- error, violations with the invariant. A run can have many of one cause.
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
