-- View `traced`: one row a run of the trace: its name as its first row tells it, and when its last row is.
-- Runs of another world than the simulated one are told apart by it. Texts are grouped by and not aggregated: so no
-- row has to be sorted.
SELECT run_id,
       coalesce(nullif(max(name), ''), 'trace') AS scenario,
       CASE WHEN min(world) = 'simulated' THEN '{{}}' ELSE concat('{{"world": "', regexp_replace(min(world), '[^0-9A-Za-z_. -]', '_'), '"}}') END AS parameters,
       max(run_end_us) AS run_end_us
FROM (
  SELECT run_id, world, CASE WHEN kind = 'run.start' THEN split_part(detail, ' ', 1) END AS name, max(t_us) AS run_end_us
  FROM {trace} AS trace
  GROUP BY run_id, world, CASE WHEN kind = 'run.start' THEN split_part(detail, ' ', 1) END
)
GROUP BY run_id
