#!/bin/bash
#SBATCH --job-name=run.Train.bundle-0123456789ab
#SBATCH --output=/work/logs/Train/Train-bundle=4-%j.out
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --chdir=/work
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=6
#SBATCH --mem=30000M
#SBATCH --time=120
#SBATCH --propagate=NONE

export GREETING='it'"'"'s'

module load python

cd -- /work || exit 1
exec /env/bin/python -m espo_luigi.job --pilot /work/plan.json my.tasks

### /work/state/scripts/run.Train.000000000001.1.sh
#!/bin/bash

export SLURM_CPUS_PER_TASK=3 SLURM_MEM_PER_NODE=15000

start_of() { # when process $1 started: field 22 of its status, in which the name may hold blanks
    read -r -a fields <<< "$(sed 's/.*) //' "/proc/$1/stat")"
    echo "${fields[19]}"
}

stop_if_closed() {
    trap '' USR1 USR2
    closed=0
    began=$(start_of "$1")
    # A later process may have the same number.
    while sleep 10 && [ "$(start_of "$1")" = "$began" ] && kill -0 "$1"; do
        now=$(cat -- "$claim")
        [ -n "$now" ] && [ "$now" != "$owner" ] && closed=$((closed + 1))
        case $closed in
            0 | 1) ;;
            2) kill -TERM "$1" ;;
            *) kill -KILL "$1" ;;
        esac
    done
}

claim=/work/state/claims/run.Train.000000000001.1
job_id=$SLURM_JOB_ID
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
export GREETING='it'"'"'s'

cd -- /work || exit 1
stop_if_closed "$PPID" > /dev/null 2>&1 &
exec env -0
