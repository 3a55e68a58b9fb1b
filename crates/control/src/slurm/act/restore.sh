#!/bin/bash
# Ends loans by QOS: takes loans that have ended by TIDEGATE_END (seconds since 1970) off the limit
# of QOS TIDEGATE_QOS. Submitted with each loan, to begin when it ends: a limit does not end by
# itself, and nothing else of ours needs to run. A limit that a person changed is left alone.
set -u -f
PATH="$PATH:/usr/bin:/bin"
[ -z "${TIDEGATE_PROGRAMS:-}" ] || PATH="$TIDEGATE_PROGRAMS:$PATH"
now=$(date +%s)
[ "$now" -ge "$TIDEGATE_END" ] || now=$TIDEGATE_END

# Prints the number of GPUs in a limit such as cpu=1,gres/gpu=8.
gpus() {
    sed -n 's|.*gres/gpu=\([0-9]*\).*|\1|p' <<<",$1"
}

for attempt in $(seq 60); do
    [ "$attempt" = 1 ] || sleep 10
    row=$(sacctmgr -nP show qos where name="$TIDEGATE_QOS" format=grptres,description) || continue
    [ -n "$row" ] || exit 0
    limit=$(gpus "${row%%|*}")
    description=${row#*|}
    base='' others='' kept='' lent=0 left=0 ended=no
    for word in $description; do
        IFS=: read -r mark id to _ end _ <<<"$word"
        if [ "$mark" = tidegate ] && [ "$id" = base ]; then
            base=$to
        elif [ "$mark" != tidegate ] || [ -z "$end" ]; then
            others="$others$word "
        elif [ "$end" -le "$now" ]; then
            lent=$((lent + to)) ended=yes
        else
            lent=$((lent + to)) left=$((left + to)) kept="$kept $word"
        fi
    done
    [ "$ended" = yes ] && [ -n "$base" ] || exit 0
    after="$others"
    [ -z "$kept" ] || after="${others}tidegate:base:$base$kept"
    set=("Description=${after% }")
    ours=no
    if [ "$limit" = $((base + lent)) ]; then
        ours=yes
        set+=("GrpTRES=gres/gpu=$((base + left))")
    fi
    # Only if the description is still the one that was read.
    sacctmgr -i modify qos where name="$TIDEGATE_QOS" description="$description" set "${set[@]}" && break
    ours=no
done
[ "$ours" = yes ] || exit 0

# A lower limit stops no job: requeue the jobs that started last until the rest is within it.
held=0 jobs=()
while read -r job tres; do
    each=$(gpus "$tres")
    [ -n "$each" ] || continue
    jobs+=("$job $each")
    held=$((held + each))
done < <(squeue --noheader --qos="$TIDEGATE_QOS" --states=RUNNING --sort=-S -O 'JobID:30,tres-alloc:300')
for entry in ${jobs[@]+"${jobs[@]}"}; do
    [ "$held" -gt $((base + left)) ] || break
    # A job that may not be requeued stays, and no other is stopped in its place.
    scontrol requeue "${entry% *}"
    held=$((held - ${entry#* }))
done
