-- Without summaries it is unknown which runs had a bug.
SELECT scenario, parameters, '' AS mutant, 0L AS runs, 0L AS killed, 0.0D AS share, 0L AS failed, '' AS invariants,
       run_id AS example
FROM {run} AS run
WHERE false
