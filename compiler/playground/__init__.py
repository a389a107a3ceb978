"""The playground: a page on this machine with an editor for a schedule, its timeline, and limits for every request."""
