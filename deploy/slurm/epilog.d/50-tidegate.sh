#!/bin/sh
# Reports to Tidegate's agent on this node that a job gave its GPUs back. See ../README.md.
#
# A failing epilog drains the node, and a hanging one delays the job. This one does neither, whatever the agent does.
PATH="${PATH:-/usr/sbin:/usr/bin:/sbin:/bin}:/usr/local/bin"
export PATH
for program in tidegate-node tidegate; do
    if command -v "$program" >/dev/null 2>&1; then
        timeout --kill-after=1 3 "$program" event release --source epilog </dev/null >/dev/null 2>&1
        break
    fi
done
exit 0
