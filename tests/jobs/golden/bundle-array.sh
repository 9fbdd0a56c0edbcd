#!/bin/bash
#SBATCH --job-name=run.Train.bundle-0123456789ab
#SBATCH --output=/work/logs/Train/Train-%A_%a.out
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --chdir=/work
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=3
#SBATCH --mem=15000M
#SBATCH --time=60
#SBATCH --propagate=NONE
#SBATCH --array=0-3%2

members=(
    /work/state/scripts/run.Train.000000000000.1.sh
    /work/state/scripts/run.Train.000000000001.1.sh
    /work/state/scripts/run.Train.000000000002.1.sh
    /work/state/scripts/run.Train.000000000003.1.sh
)
exec bash -- "${members[SLURM_ARRAY_TASK_ID]}"

### /work/state/scripts/run.Train.000000000001.1.sh
#!/bin/bash

claim=/work/state/claims/run.Train.000000000001.1
job_id="${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"
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

export ESPO_JOB_NAME=run.Train.000000000001.1
export ESPO_ATTEMPT=1
export ESPO_CLAIM=/work/state/claims/run.Train.000000000001.1
export ESPO_LATE=$(( $(date +%s) + 3570 ))

cd -- /work || exit 1
exec /env/bin/python -m espo_luigi.job /work/jobs/1.json
