"""What one started rank is told to do: options, jobs, agreement of the ranks, records."""
