-- View `traced`: one row for each run of the trace, with the name from its first row, and the time of its last row.
-- Runs of worlds other than the simulated one have `world` as a parameter. `begun` is true if the trace has the run's
-- start, its end or a violation. `logged` is true if the rows are from Kafka's own log of groups, which no judge
-- judges; `violations` are null then. `began_at` is the time of the clock at the run's start, if its first row has it.
SELECT run_id,
       coalesce(nullif(max(split_part(detail, ' ', 1)) FILTER (WHERE kind = 'run.start'), ''), 'trace') AS scenario,
       CASE
         WHEN min(world) = 'simulated' THEN '{{}}'
         ELSE concat('{{"world": "', regexp_replace(min(world), '[^0-9A-Za-z_. -]', '_', 'g'), '"}}')
       END AS parameters,
       try_cast(nullif(max(split_part(detail, ' ', 4)) FILTER (WHERE kind = 'run.start'), '') AS TIMESTAMP) AS began_at,
       min(world) = '{log_world}' AS logged,
       max(t_us) AS run_end_us,
       count_if(kind IN ('run.start', 'run.end', 'violation')) > 0 AS begun,
       CASE WHEN min(world) <> '{log_world}' THEN count_if(kind = 'violation')::BIGINT END AS violations
FROM {trace}
GROUP BY run_id
