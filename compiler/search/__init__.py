"""Search for orders: `chimerac search` finds the order of a rank's tasks, with a proved lower bound of its makespan."""
