# What differs between clusters: the one file to fill in. submit.sh reads it where a job is submitted, and train.sbatch on the
# first node of the job. It is a file of bash; a line that is not needed may stay as it is.

# --- the job -----------------------------------------------------------------------------------------------------------------

ACCOUNT=${ACCOUNT:-}                # of sbatch --account. Empty: the default of the cluster
PARTITION=${PARTITION:-}            # of sbatch --partition
MODULES=${MODULES:-}                # for `module load`, such as "python/3.11 cuda/12.4"
SBATCH_OPTIONS=()                   # more options of sbatch, such as (--qos=long --gres=gpu:4)

# --- storage: absolute paths that all nodes see. Empty: the folder in which the job is submitted ------------------------------

export CHIMERAC_WORK_DIR=${CHIMERAC_WORK_DIR:-}   # logs, checkpoints, prepared files, such as $SCRATCH/chimerac
export CHIMERAC_DATA_DIR=${CHIMERAC_DATA_DIR:-}   # data sets, such as /data/shared

# --- Python and the ranks ------------------------------------------------------------------------------------------------------

PYTHON=${PYTHON:-python}            # of the environment with chimerac[train], such as $HOME/chimerac/.venv/bin/python
RANKS_PER_NODE=${RANKS_PER_NODE:-}  # empty: it follows from the program and the number of nodes
MAX_RESTARTS=${MAX_RESTARTS:-1}     # how often a failed job is started again on the same nodes

# The network interface between the nodes, for gloo and for NCCL. Leave it out if each node's host name resolves to an address
# that the others reach (getent hosts NODE). `ip -brief address` lists the interfaces.
# export GLOO_SOCKET_IFNAME=ib0
# export NCCL_SOCKET_IFNAME=ib0
