"""The playground: a page on this host with an editor for a schedule, its timeline, and limits for every request."""
