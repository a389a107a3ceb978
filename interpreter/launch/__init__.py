"""Starting a run: options, settings, plans, jobs, comparison of the ranks, records."""
