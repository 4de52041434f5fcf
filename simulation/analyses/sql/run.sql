-- View `run`: one row a run, under its scenario and parameters, and when its last row is.
SELECT * FROM {traced}
