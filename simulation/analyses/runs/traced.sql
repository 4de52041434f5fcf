-- View `traced`: one row for each run of the trace, with the name from its first row, and the time of its last row.
-- Runs of worlds other than the simulated one have `world` as a parameter. `begun` is true if the trace has the run's
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
