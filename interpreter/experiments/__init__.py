"""Experiments: many runs that one file names, their figures in one table, and a report."""
