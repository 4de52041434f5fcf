-- Partitions that two members could fetch at the same time, neither of them fenced: must be 0.
SELECT scenario, parameters,
       count_if(shared_us > 0) AS count,
       sum(shared_us) / 1e6 AS seconds
FROM {handover} AS handover
GROUP BY scenario, parameters
ORDER BY scenario, parameters
