-- View `traced`: one row a run of the trace: its name as its first row tells it, and when its last row is.
SELECT run_id,
       coalesce(nullif(split_part(min_by(detail, seq) FILTER (WHERE kind = 'run.start'), ' ', 1), ''), 'trace')
         AS scenario,
       '{}' AS parameters,
       max(t_us) AS run_end_us
FROM trace
GROUP BY run_id
