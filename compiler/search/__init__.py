"""Search for orders: `chimerac search` finds an order of the tasks, and proves a lower bound of the makespan of all orders."""
