-- View `traced`: one row a run of the trace: its name as its first row tells it, and when its last row is.
-- Runs of another world than the simulated one are told apart by it. `begun` is true if the trace has the run's
-- start, its end or a violation.
SELECT run_id,
       coalesce(nullif(max(split_part(detail, ' ', 1)) FILTER (WHERE kind = 'run.start'), ''), 'trace') AS scenario,
       CASE
         WHEN min(world) = 'simulated' THEN '{{}}'
         ELSE concat('{{"world": "', regexp_replace(min(world), '[^0-9A-Za-z_. -]', '_', 'g'), '"}}')
       END AS parameters,
       max(t_us) AS run_end_us,
       count_if(kind IN ('run.start', 'run.end', 'violation')) > 0 AS begun,
       count_if(kind = 'violation')::BIGINT AS violations
FROM {trace}
GROUP BY run_id
