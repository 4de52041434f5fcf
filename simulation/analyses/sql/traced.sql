-- View `traced`: one row a run of the trace: its name as its first row tells it, and when its last row is.
-- Runs of another world than the simulated one are told apart by it.
SELECT run_id,
       coalesce(nullif(split_part(min_by(detail, seq) FILTER (WHERE kind = 'run.start'), ' ', 1), ''), 'trace')
         AS scenario,
       CASE WHEN min(world) = 'simulated' THEN '{{}}' ELSE concat('{{"world": "', min(world), '"}}') END AS parameters,
       max(t_us) AS run_end_us
FROM {trace} AS trace
GROUP BY run_id
