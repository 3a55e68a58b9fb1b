#!/bin/bash
# Takes off the limit of QOS TIDEGATE_QOS what of its loans has ended by TIDEGATE_END (seconds since 1970). Submitted with each loan to
# begin when the loan ends, because a limit does not end by itself; nobody else needs to live for it. What a person wrote stands.
set -u -f
PATH="$PATH:/usr/bin:/bin"
[ -z "${TIDEGATE_PROGRAMS:-}" ] || PATH="$TIDEGATE_PROGRAMS:$PATH"
now=$(date +%s)
[ "$now" -ge "$TIDEGATE_END" ] || now=$TIDEGATE_END

# Limits are in the answer as cpu=1,gres/gpu=8,...; says the number of GPUs.
gpus() {
    sed -n 's|.*gres/gpu=\([0-9]*\).*|\1|p' <<<",$1"
}

for attempt in $(seq 60); do
    [ "$attempt" = 1 ] || sleep 10
    told=$(sacctmgr -nP show qos where name="$TIDEGATE_QOS" format=grptres,description) || continue
    [ -n "$told" ] || exit 0
    limit=$(gpus "${told%%|*}")
    description=${told#*|}
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
    # Only if it still stands as it was read.
    sacctmgr -i modify qos where name="$TIDEGATE_QOS" description="$description" set "${set[@]}" && break
    ours=no
done
[ "$ours" = yes ] || exit 0

# A lower limit stops nobody: what started last goes back to the queue until the rest is within it.
held=0 jobs=()
while read -r job tres; do
    each=$(gpus "$tres")
    [ -n "$each" ] || continue
    jobs+=("$job $each")
    held=$((held + each))
done < <(squeue --noheader --qos="$TIDEGATE_QOS" --states=RUNNING --sort=-S -O 'JobID:30,tres-alloc:300')
for entry in ${jobs[@]+"${jobs[@]}"}; do
    [ "$held" -gt $((base + left)) ] || break
    # One that may not start again stays, and nobody goes in its place.
    scontrol requeue "${entry% *}"
    held=$((held - ${entry#* }))
done
