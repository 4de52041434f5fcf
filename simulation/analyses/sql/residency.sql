-- How long members were in each state. A process that crashes or has stopped is in none; the last one ends with the run.
-- All single active consumers of a process go with it; their actors are `HOST/STREAM`.
WITH moves AS (
  SELECT run_id, seq, t_us, actor, split_part(actor, '/', 1) AS host, kind, state_to
  FROM {trace} AS trace
  WHERE kind = 'member.state' OR kind = 'host' AND detail IN ('crash', 'stopped', 'start')
),
ended AS (
  SELECT *,
         lead(t_us) OVER (PARTITION BY run_id, actor ORDER BY seq) AS next_us,
         last_value(CASE WHEN kind = 'host' THEN t_us END, true) OVER (
           PARTITION BY run_id, host ORDER BY seq DESC ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
         ) AS gone_us
  FROM moves
),
stays AS (
  SELECT run_id, scenario, parameters, kind, state_to, (least(next_us, gone_us, run_end_us) - t_us) / 1e6 AS seconds
  FROM ended JOIN {run} AS run USING (run_id)
)
SELECT scenario, parameters, state_to AS state,
       count(*) AS visits,
       sum(seconds) AS seconds,
       sum(seconds) / nullif(sum(sum(seconds)) OVER (PARTITION BY scenario, parameters), 0) AS share,
       avg(seconds) AS mean,
       max(seconds) AS max
FROM stays
WHERE kind = 'member.state'
GROUP BY scenario, parameters, state_to
ORDER BY scenario, parameters, seconds DESC
