"""The playground: the page of `chimerac serve`, with an editor for a schedule and its timeline, and the server of the page."""
