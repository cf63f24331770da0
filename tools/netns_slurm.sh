#!/usr/bin/env bash
# Runs a command on the first node of a Slurm cluster whose nodes are network namespaces of this machine (netns_nodes.sh):
# munge, slurmctld and a slurmd on each, without systemd. Configuration, state, logs, keys and sockets are in a folder of
# their own below build/; it and all processes are gone at the end, whatever the end.
set -uo pipefail

usage() {
  cat <<'TEXT'
usage: tools/netns_slurm.sh NODES CPUS_PER_NODE COMMAND [ARGUMENT…]

Needs root, iproute2, util-linux, munge, and slurm-wlm with slurm-wlm-basic-plugins. CPUS_PER_NODE is what Slurm hands out;
the machine may have fewer. Ends with the command's exit code; 77 if this machine cannot do it. NETNS_SLURM in the command's
environment names the folder; "$NETNS_SLURM/enter" NODE COMMAND… runs a command on a node, from within and from without.

Example, 8 ranks on 4 nodes:
  tools/netns_slurm.sh 4 2 srun --mpi=pmix -n 8 build/release/sixfold generate models/toy --prompt Once --mesh tp2,dp4 --nodes 4
TEXT
}

if [ "${1:-}" = --help ] || [ "${1:-}" = -h ]; then usage; exit 0; fi
if [ $# -lt 3 ] || ! [[ $1 =~ ^[1-9][0-9]?$ && $2 =~ ^[1-9][0-9]{0,2}$ ]]; then usage >&2; exit 2; fi
nodes=$1 cpus=$2
shift 2

. "$(dirname "$0")/netns_nodes.sh"
for program in munged slurmctld slurmd srun sinfo; do
  command -v "$program" >/dev/null || cannot "no $program here: install slurm-wlm, slurm-wlm-basic-plugins and munge"
done

build=$(cd "$(dirname "$0")/.." && mkdir -p build && cd build && pwd) && folder=$(mktemp -d "$build/slurm.XXXXXX") || exit 1
command=

clean_up() {
  trap '' INT TERM HUP
  remove_nodes
  rm -rf "$folder"
}
trap clean_up EXIT
trap '[ -n "$command" ] && kill -INT "$command" 2>/dev/null' INT
trap '[ -n "$command" ] && kill -TERM "$command" 2>/dev/null' TERM HUP

# Slurm's longest socket is SPOOL/stepd.slurm.pmix.JOB.STEP, and an address of a socket has 107 bytes.
[ ${#folder} -le 70 ] || cannot "$folder: this path is too long for Slurm's sockets; put the checkout elsewhere"
make_nodes

write_configuration() {
  local n
  for n in $(seq 0 $((nodes - 1))); do mkdir -p "$folder/node$n/spool" "$folder/node$n/tmp" || return; done
  mkdir -p "$folder/state" && (umask 077; head -c 128 /dev/urandom >"$folder/munge.key") || return
  # Nothing here uses cgroups; version 1 is the one that is not looked for, and a network namespace has none mounted.
  echo 'CgroupPlugin=cgroup/v1' >"$folder/cgroup.conf"
  # TmpFS: PMIx keeps a folder of the job there, which nodes must not share.
  cat >"$folder/slurm.conf" <<TEXT
ClusterName=sixfold
SlurmctldHost=node0(10.77.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=2
StateSaveLocation=$folder/state
SlurmctldPidFile=$folder/slurmctld.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdPidFile=$folder/%n/slurmd.pid
SlurmdLogFile=$folder/%n/slurmd.log
SlurmdSpoolDir=$folder/%n/spool
TmpFS=$folder/%n/tmp
NodeName=node[0-$((nodes - 1))] NodeAddr=10.77.0.[1-$nodes] CPUs=$cpus
PartitionName=all Nodes=ALL Default=YES
TEXT
}

start_daemons() {
  local n
  # --force: whoever owns the folders above build/ is no matter for a key of this run alone.
  "$folder/enter" 0 munged --foreground --force --num-threads 2 --key-file "$folder/munge.key" --socket "$folder/munge.socket" \
    --pid-file "$folder/munged.pid" --seed-file "$folder/munged.seed" --log-file "$folder/munged.log" &
  for n in $(seq 100); do [ -S "$folder/munge.socket" ] && break; sleep 0.1; done
  [ -S "$folder/munge.socket" ] || return
  "$folder/enter" 0 slurmctld -D -c &
  for n in $(seq 0 $((nodes - 1))); do "$folder/enter" "$n" slurmd -D & done
  disown -a  # their end is no news
} >"$folder/daemons.log" 2>&1 </dev/null

# Until all nodes are idle, for a minute.
wait_for_nodes() {
  local end=$((SECONDS + 60))
  while [ $SECONDS -lt $end ]; do
    [ "$("$folder/enter" 0 sinfo -h -N -t idle -o %N 2>/dev/null | wc -l)" -eq "$nodes" ] && return
    sleep 0.25
  done
  return 1
}

export SLURM_CONF=$folder/slurm.conf NETNS_SLURM=$folder
if ! { write_configuration && start_daemons && wait_for_nodes; }; then
  tail -n 15 "$folder"/*.log "$folder"/node*/*.log >&2
  echo "netns_slurm.sh: Slurm did not come up; the ends of its logs are above" >&2
  exit 1
fi

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
"$folder/enter" 0 "$@" <&0 &
command=$!
while true; do
  wait "$command"
  code=$?
  kill -0 "$command" 2>/dev/null || break  # else a signal came, which was passed on
done
exit "$code"
