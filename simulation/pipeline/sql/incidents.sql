-- What was refused, taken away or found wrong, in one scan: fencings by cause, commits refused by error,
-- violations by invariant.
SELECT incident, scenario, parameters, name,
       count(*) AS count,
       count(DISTINCT run_id) AS runs,
       min(run_id) AS example
FROM (
  SELECT run_id,
         CASE
           WHEN kind = 'violation' THEN 'violation'
           WHEN kind = 'commit' THEN 'commit'
           ELSE 'fencing'
         END AS incident,
         CASE WHEN kind = 'member.removed' THEN detail ELSE error END AS name
  FROM trace
  WHERE kind = 'violation'
     OR kind = 'member.removed' AND detail <> 'left'
     OR kind = 'commit' AND error NOT IN ('', 'NONE')
     OR kind = 'heartbeat' AND error IN ('FENCED_MEMBER_EPOCH', 'UNKNOWN_MEMBER_ID', 'FENCED_INSTANCE_ID')
) JOIN run USING (run_id)
GROUP BY incident, scenario, parameters, name
ORDER BY incident, scenario, parameters, count DESC, name
