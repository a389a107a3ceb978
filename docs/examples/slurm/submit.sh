#!/bin/bash
# Submits a job script with the settings of a cluster:
#
#     bash docs/examples/slurm/submit.sh cluster.sh --nodes 2 docs/examples/slurm/train.sbatch schedules/chimera.sched -p D=8
#
# The first argument is a copy of cluster.sh, filled in. The others are those of sbatch: options, a job script, and its
# arguments. The job script finds the path of the settings in CHIMERAC_CLUSTER.

set -euo pipefail

if [ $# -lt 2 ] || [ ! -f "$1" ]; then
    echo "usage: submit.sh CLUSTER_FILE [options of sbatch] JOB_SCRIPT [arguments]; ${1:+there is no file $1}" >&2
    exit 2
fi
cluster=$(realpath "$1")
shift
# shellcheck source=cluster.sh
. "$cluster"

options=("${SBATCH_OPTIONS[@]}")
if [ -n "$ACCOUNT" ]; then
    options+=(--account "$ACCOUNT")
fi
if [ -n "$PARTITION" ]; then
    options+=(--partition "$PARTITION")
fi
if [ -n "$CHIMERAC_WORK_DIR" ]; then
    mkdir -p "$CHIMERAC_WORK_DIR"
    options+=(--output "$CHIMERAC_WORK_DIR/%x-%j.log")
fi

# Options of the command line come last, so they override those of the file. Some clusters pass no variables on to a job, so
# the ones that it needs are named.
export CHIMERAC_CLUSTER=$cluster
exec sbatch "${options[@]}" --export "ALL,CHIMERAC_CLUSTER=$cluster" "$@"
