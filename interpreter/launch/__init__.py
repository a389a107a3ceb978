"""Running a program as a job: options, settings, plans, jobs, comparison of the ranks, records, the launcher, failures."""
