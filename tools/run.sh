#!/usr/bin/env bash
# Serves the default model, asks it one question over HTTP with the answer streamed, prints the URL and a curl line. At a
# terminal the server keeps running until Ctrl-C; without one it is drained and the script ends with 0.
set -euo pipefail
cd "$(dirname "$0")/.."
sixfold=build/release/sixfold
port=${SIXFOLD_PORT:-8000}
case $port in *://*) port=8000 ;; esac  # Kubernetes' variable of a service of this name
log=build/run-server.log

"$sixfold" serve --port "$port" >"$log" 2>&1 &
server=$!
stop() { kill -TERM "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true; }
trap stop EXIT

for _ in $(seq 600); do
  curl -fs "http://127.0.0.1:$port/health" >/dev/null 2>&1 && kill -0 "$server" 2>/dev/null && break
  if ! kill -0 "$server" 2>/dev/null; then cat "$log" >&2; trap - EXIT; exit 1; fi
  sleep 0.1
done
python3 tools/ask.py "http://127.0.0.1:$port" "What is a lighthouse for? Answer in two sentences."

model=$(curl -fs "http://127.0.0.1:$port/v1/models" | python3 -c 'import json,sys; print(json.load(sys.stdin)["data"][0]["id"])')
cat <<TEXT

Serving $model at http://127.0.0.1:$port/v1 (log: $log). Try:

  curl http://127.0.0.1:$port/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{"model": "$model", "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 64}'

TEXT
if [ -t 0 ] && [ -t 1 ]; then
  echo "Ctrl-C ends it."
  wait "$server" || true
else
  kill -TERM "$server"
  code=0; wait "$server" || code=$?
  trap - EXIT
  echo "no terminal: the server was drained and ended with $code"
  exit "$code"
fi
