# Nodes as network namespaces of this machine, for scripts that source this file: each node has its own address on a common
# bridge, its own host name (node0, node1, …) and its own /dev/shm. Nothing of the machine's own network is touched, and runs
# may go side by side. The caller sets `nodes` and `folder`, traps its end with a function that calls remove_nodes, and calls
# make_nodes; then "$folder/enter" NODE COMMAND… runs a command on a node.

PATH=$PATH:/usr/sbin:/sbin
tag=sixfold-$$

cannot() { echo "${0##*/}: $1" >&2; exit 77; }

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

make_nodes() {
  local program
  for program in ip unshare mount hostname; do command -v "$program" >/dev/null || cannot "no $program here"; done
  [ "$(id -u)" -eq 0 ] || cannot "network namespaces need root"
  make_network 2>"$folder/errors" || cannot "no network of namespaces: $(tail -n 1 "$folder/errors")"
  cat >"$folder/enter" <<TEXT
#!/bin/sh
node=\$1
shift
exec ip netns exec "$tag-n\$node" unshare --uts --mount sh -c '
  hostname "\$0" && mount -t tmpfs -o size=1g tmpfs /dev/shm && exec "\$@"' "node\$node" "\$@"
TEXT
  chmod +x "$folder/enter"
  "$folder/enter" 0 true 2>"$folder/errors" || cannot "cannot enter a node: $(tail -n 1 "$folder/errors")"
}

# Ends what runs on the nodes, also what is being started, and takes them down.
remove_nodes() {
  local n look pids
  for n in $(seq 0 $((nodes - 1))); do
    for look in 1 2 3 4 5; do
      pids=$(ip netns pids "$tag-n$n" 2>/dev/null)
      [ -n "$pids" ] || break
      kill -KILL $pids 2>/dev/null
    done
  done
  for n in $(seq 0 $((nodes - 1))); do ip netns del "$tag-n$n" 2>/dev/null; done
  ip netns del "$tag-switch" 2>/dev/null
}
