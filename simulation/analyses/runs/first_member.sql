-- View `first_member`: one row for each of the members with which a run begins: those that started first, whatever
-- happened to them later. `members` is their number. It is empty if the trace does not have that number.
SELECT run_id, actor, members
FROM (
  SELECT run_id, actor, row_number() OVER (PARTITION BY run_id ORDER BY min(seq)) AS place
  FROM {trace}
  WHERE kind = 'host' AND detail = 'start'
  GROUP BY run_id, actor
) JOIN (
  SELECT run_id, try_cast(split_part(arg_min(detail, seq), ' ', 3) AS INT) AS members
  FROM {trace}
  WHERE kind = 'run.start'
  GROUP BY run_id
) USING (run_id)
WHERE place <= members
