#!/usr/bin/env bash
# Runs a command under mpirun on several nodes that are network namespaces of this machine: each has its own address on a
# common bridge, its own host name and its own /dev/shm, so that ranks of one node talk through shared memory and ranks of
# different nodes through TCP, as on a real cluster. Nothing of the machine's own network is touched, runs may go side by
# side, and all is taken down at the end, whatever the end.
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

cannot() { echo "netns_mpirun.sh: $1" >&2; exit 77; }

if [ "${1:-}" = --help ] || [ "${1:-}" = -h ]; then usage; exit 0; fi
if [ $# -lt 3 ] || ! [[ $1 =~ ^[1-9][0-9]?$ && $2 =~ ^[1-9][0-9]{0,2}$ ]]; then usage >&2; exit 2; fi
nodes=$1 ranks_per_node=$2
shift 2

PATH=$PATH:/usr/sbin:/sbin
mpirun=$(command -v mpirun.openmpi || command -v mpirun) || cannot "no mpirun here: install openmpi-bin"
for program in ip unshare mount hostname; do command -v "$program" >/dev/null || cannot "no $program here"; done
[ "$(id -u)" -eq 0 ] || cannot "network namespaces need root"

tag=sixfold-$$
folder=$(mktemp -d) || exit 1
launcher= watchdog=

clean_up() {
  trap '' INT TERM HUP
  local n pid
  [ -n "$watchdog" ] && kill "$watchdog" 2>/dev/null
  for n in $(seq 0 $((nodes - 1))); do
    for pid in $(ip netns pids "$tag-n$n" 2>/dev/null); do kill -KILL "$pid" 2>/dev/null; done
  done
  for n in $(seq 0 $((nodes - 1))) switch; do
    [ "$n" = switch ] || n=n$n
    ip netns del "$tag-$n" 2>/dev/null
  done
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

make_network() {
  local n
  ip netns add "$tag-switch" && ip -n "$tag-switch" link add name switch type bridge &&
    ip -n "$tag-switch" link set switch up || return
  for n in $(seq 0 $((nodes - 1))); do
    ip netns add "$tag-n$n" &&
      ip -n "$tag-n$n" link add name eth0 type veth peer name "port$n" netns "$tag-switch" &&
      ip -n "$tag-switch" link set "port$n" master switch up &&
      ip -n "$tag-n$n" address add "10.77.0.$((n + 1))/24" dev eth0 &&
      ip -n "$tag-n$n" link set lo up && ip -n "$tag-n$n" link set eth0 up || return
  done
}
make_network 2>"$folder/errors" || cannot "no network of namespaces: $(tail -n 1 "$folder/errors")"

# Enters a node: enter NODE COMMAND…
cat >"$folder/enter" <<TEXT
#!/bin/sh
node=\$1
shift
exec ip netns exec "$tag-n\$node" unshare --uts --mount sh -c '
  hostname "\$0" && mount -t tmpfs -o size=1g tmpfs /dev/shm && exec "\$@"' "node\$node" "\$@"
TEXT
# What mpirun calls in the place of ssh: options, an address, and a line for a shell.
cat >"$folder/agent" <<TEXT
#!/bin/sh
while [ "\${1#-}" != "\$1" ]; do shift; done
node=\$((\${1##*.} - 1))
shift
exec "$folder/enter" "\$node" sh -c "\$*"
TEXT
chmod +x "$folder/enter" "$folder/agent"

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
