-- View `run`, if a campaign wrote summaries: each traced run with its scenario and parameters.
SELECT traced.run_id, summary.scenario, summary.parameters, run_end_us
FROM {traced} AS traced JOIN {summary} AS summary USING (run_id)
