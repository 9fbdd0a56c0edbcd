#!/bin/bash
#$ -N espo.2024.Adjust.0123456789ab.1
#$ -o '/work/sge_logs/Adjust/Adjust-region=south_nodup+var=tasmax-$JOB_ID.out'
#$ -j y
#$ -S /bin/bash
#$ -cwd
#$ -r y
#$ -notify
#$ -l h_rt=3600,h_vmem=64G
#$ -w e
environment_file=/work/state/environment.sh
for pause in 1 2 4 8 15 30 60 120 0; do [ -r "$environment_file" ] && break; sleep "$pause"; done
. "$environment_file" || exit 1
trap '' USR1
export ESPO_MEMORY_MIB=65536

claim=/work/state/claims/2024.Adjust.0123456789ab.1
job_id=$JOB_ID.${SGE_TASK_ID:-undefined}
job_id=${job_id%.undefined}
aside=${claim%/*}/.${claim##*/}.$job_id.$HOSTNAME.$$.$RANDOM$RANDOM
begun=again
for pause in 1 2 4 8 15 30 60 120 0; do
    why=$( rm -f -- "$aside"; set -C
        { printf '%s\n' "$job_id" > "$aside" && [ -s "$aside" ] &&
            { ln -- "$aside" "$claim" || printf '%s\n' "$job_id" > "$claim"; }; } 2>&1 ) &&
        begun=first
    owner=$(cat -- "$claim" 2>/dev/null)
    [ -n "$owner" ] && break
    sleep "$pause"
done
rm -f -- "$aside"
if [ -z "$owner" ]; then
    echo "Cannot claim the work by $claim ($why): nothing is done, as another job might do the same." >&2
    exit 1
fi
if [ "$owner" != "$job_id" ]; then
    echo "This work belongs to '$owner': job $job_id does nothing." >&2
    exit 0
fi

export ESPO_OWNER=$job_id ESPO_START=0
if [ "$begun" = again ]; then
    ESPO_START=$(date +%s.%N).$HOSTNAME.$$
    start="$claim.start"
    aside="$start.$HOSTNAME.$$.$RANDOM$RANDOM"
    for pause in 1 2 4 8 15 30 60 120 0; do
        rm -f -- "$aside"
        ( set -C; printf '%s\n' "$ESPO_START" > "$aside" ) && mv -fT -- "$aside" "$start" && break
        sleep "$pause"
    done
    rm -f -- "$aside"
    if [ "$(cat -- "$start")" != "$ESPO_START" ]; then
        echo "Cannot write $start: nothing is done, as an earlier start of this job may still be at work." >&2
        exit 1
    fi
fi

export ESPO_JOB_NAME=2024.Adjust.0123456789ab.1
export ESPO_ATTEMPT=1
export ESPO_CLAIM=/work/state/claims/2024.Adjust.0123456789ab.1
export ESPO_LATE=$(( $(date +%s) + 3570 ))

cd -- /work || exit 1
exec /env/bin/python -m espo_luigi.job /work/jobs/adjust.json
