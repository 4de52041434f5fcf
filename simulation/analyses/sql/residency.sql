-- How long members were in each state. A process that crashes or has stopped is in none; the last one ends with the run.
WITH moves AS (
  SELECT run_id, seq, t_us, actor, kind, state_to
  FROM {trace} AS trace
  WHERE kind = 'member.state' OR kind = 'host' AND detail IN ('crash', 'stopped', 'start')
),
stays AS (
  SELECT run_id, scenario, parameters, kind, state_to,
         (lead(t_us, 1, run_end_us) OVER (PARTITION BY run_id, actor ORDER BY seq) - t_us) / 1e6 AS seconds
  FROM moves JOIN {run} AS run USING (run_id)
)
SELECT scenario, parameters, state_to AS state,
       count(*) AS visits,
       sum(seconds) AS seconds,
       sum(seconds) / sum(sum(seconds)) OVER (PARTITION BY scenario, parameters) AS share,
       avg(seconds) AS mean,
       max(seconds) AS max
FROM stays
WHERE kind = 'member.state'
GROUP BY scenario, parameters, state_to
ORDER BY scenario, parameters, seconds DESC
