"""Analyses of a verified program: times, memory, dependency graph, report."""
