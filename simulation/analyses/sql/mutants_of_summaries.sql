-- Runs with a known bug, from the summaries of a campaign, and the invariants that they violated.
SELECT scenario, parameters, mutant,
       count(*) AS runs,
       count_if(violations > 0) AS killed,
       count_if(violations > 0) / count(*) AS share,
       count_if(error IS NOT NULL) AS failed,
       coalesce(array_join(array_sort(collect_set(invariant)), ', '), '') AS invariants,
       min(CASE WHEN violations > 0 THEN run_id END) AS example
FROM (SELECT *, get_json_object(parameters, '$.mutant') AS mutant FROM {summary} AS summary)
WHERE mutant <> 'none'
GROUP BY scenario, parameters, mutant
ORDER BY scenario, parameters
