# What differs between clusters. train.sbatch reads this file on the first node of the job.

# module load python/3.11            # the modules of the cluster, if it has some
# . .venv/bin/activate               # the virtual environment with chimerac[train]; all nodes have to see it

PYTHON=${PYTHON:-python}

# How many ranks each node has. Empty: it follows from the program and the number of nodes.
RANKS_PER_NODE=${RANKS_PER_NODE:-}

# How often a failed job is started again on the same nodes.
MAX_RESTARTS=${MAX_RESTARTS:-1}

# The network interface between the nodes, for gloo and for NCCL. Leave it out if each node's host name resolves to an address
# that the others reach (getent hosts NODE). `ip -brief address` lists the interfaces.
# export GLOO_SOCKET_IFNAME=ib0
# export NCCL_SOCKET_IFNAME=ib0
