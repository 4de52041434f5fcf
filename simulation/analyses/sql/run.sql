-- View `run`: one row a run, under its scenario and parameters, and when its last row is.
SELECT run_id, scenario, parameters, run_end_us FROM {traced} AS traced
