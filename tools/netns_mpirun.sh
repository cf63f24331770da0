#!/usr/bin/env bash
# Runs a command under mpirun on several nodes that are network namespaces of this machine (netns_nodes.sh): ranks of one
# node talk through shared memory and ranks of different nodes through TCP, as on a real cluster. All is taken down at the
# end, whatever the end.
set -uo pipefail

usage() {
  cat <<'TEXT'
usage: tools/netns_mpirun.sh NODES RANKS_PER_NODE COMMAND [ARGUMENT…]

Ranks stand on nodes in ascending order. Needs root, iproute2, util-linux and Open MPI. Ends with mpirun's exit code; 77 if
this machine cannot do it.

Example, 8 ranks on 4 nodes:
  echo '--mesh tp2,dp4 --nodes 4' >layouts
  tools/netns_mpirun.sh 4 2 build/release/sixfold verify MODEL --layouts layouts
TEXT
}

if [ "${1:-}" = --help ] || [ "${1:-}" = -h ]; then usage; exit 0; fi
if [ $# -lt 3 ] || ! [[ $1 =~ ^[1-9][0-9]?$ && $2 =~ ^[1-9][0-9]{0,2}$ ]]; then usage >&2; exit 2; fi
nodes=$1 ranks_per_node=$2
shift 2

. "$(dirname "$0")/netns_nodes.sh"
mpirun=$(command -v mpirun.openmpi || command -v mpirun) || cannot "no mpirun here: install openmpi-bin"

folder=$(mktemp -d) || exit 1
launcher= watchdog=

clean_up() {
  trap '' INT TERM HUP
  [ -n "$watchdog" ] && kill "$watchdog" 2>/dev/null
  remove_nodes
  rm -rf "$folder"
}
trap clean_up EXIT
# The launcher ends its ranks and then itself; `wait` below sees it. It waits for ever for a node that is cut off.
pass_on() {
  [ -n "$launcher" ] && kill -"$1" "$launcher" 2>/dev/null || return
  [ -n "$watchdog" ] && return
  (sleep 10; kill -KILL "$launcher" 2>/dev/null) &
  watchdog=$!
}
trap 'pass_on INT' INT
trap 'pass_on TERM' TERM HUP

make_nodes
# What mpirun calls in the place of ssh: options, an address, and a line for a shell.
cat >"$folder/agent" <<TEXT
#!/bin/sh
while [ "\${1#-}" != "\$1" ]; do shift; done
node=\$((\${1##*.} - 1))
shift
exec "$folder/enter" "\$node" sh -c "\$*"
TEXT
chmod +x "$folder/agent"

hosts=
for n in $(seq 1 "$nodes"); do hosts+=${hosts:+,}10.77.0.$n:$ranks_per_node; done

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
"$folder/enter" 0 "$mpirun" -H "$hosts" -n $((nodes * ranks_per_node)) --map-by slot --bind-to none --oversubscribe \
  --mca plm_rsh_agent "$folder/agent" --mca plm_rsh_no_tree_spawn 1 --mca oob_tcp_if_include eth0 \
  --mca btl_tcp_if_include eth0 --mca pml ob1 --mca btl tcp,vader,self --mca mpi_yield_when_idle 1 "$@" <&0 &
launcher=$!
while true; do
  wait "$launcher"
  code=$?
  kill -0 "$launcher" 2>/dev/null || break  # else a signal came, which was passed on
done
exit "$code"
