#!/bin/bash
#SBATCH --job-name=run.Train.bundle-0123456789ab
#SBATCH --output=/work/logs/Train/Train-bundle=4-%j.out
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --chdir=/work
#SBATCH --nodes=1
#SBATCH --ntasks=4
#SBATCH --cpus-per-task=3
#SBATCH --mem=60000M
#SBATCH --time=60
#SBATCH --propagate=NONE
#SBATCH --gres=gpu:4

stopping=
note_end() {
    [ "$2" -gt 128 ] && sleep 2
    # Its success is known, and its files are gone.
    [ "$2" -eq 0 ] && [ ! -e "$1" ] && return
    [ -z "$stopping" ] || return
    for pause in 1 2 4 8 15 30 60 0; do
        aside="$1.end.$HOSTNAME.$$.$RANDOM$RANDOM"
        ( set -C; printf '%s\n' "$SLURM_JOB_ID $2" > "$aside" ) && mv -fT -- "$aside" "$1.end" && break
        rm -f -- "$aside"
        sleep "$pause"
    done
}

at_once=4
trap '' USR1 USR2
trap 'stopping=yes; kill -TERM $(jobs -rp) 2>/dev/null' TERM

# The claims of a step's members, --, and the options of its srun.
step() {
    local claims=() code srun
    while [ "$1" != -- ]; do
        claims+=("$1")
        shift
    done
    rm -f -- "${claims[@]/%/.end}"
    srun "${@:2}" < /dev/null &
    srun=$!
    # At SIGTERM, srun kills what it runs; this signal it hands on, and jobs take it as they do SIGTERM.
    trap 'stopping=yes; kill -USR2 "$srun" 2>/dev/null' TERM
    wait "$srun"
    code=$?
    while kill -0 "$srun" 2>/dev/null; do
        wait "$srun"
        code=$?
    done
    for claim in "${claims[@]}"; do
        [ -e "$claim.end" ] || note_end "$claim" "$code"
    done
}

start() {
    while [ "$(jobs -rp | wc -l)" -ge "$at_once" ]; do
        wait -n
    done
    [ -n "$stopping" ] || step "$@" &
}

finish() {
    while [ -n "$(jobs -rp)" ]; do
        wait
    done
}

start /work/state/claims/run.Train.000000000000.1 -- --exclusive --nodes=1 --ntasks=1 --cpus-per-task=3 --mem=15000M --gres=gpu:1 --job-name=run.Train.000000000000.1 --output=/work/logs/Train/Train-n=0-%j-step-%s-task-%t.out --open-mode=append --kill-on-bad-exit=0 --wait=0 bash -- /work/state/scripts/run.Train.000000000000.1.sh
start /work/state/claims/run.Train.000000000001.1 -- --exclusive --nodes=1 --ntasks=1 --cpus-per-task=3 --mem=15000M --gres=gpu:1 --job-name=run.Train.000000000001.1 --output=/work/logs/Train/Train-n=1-%j-step-%s-task-%t.out --open-mode=append --kill-on-bad-exit=0 --wait=0 bash -- /work/state/scripts/run.Train.000000000001.1.sh
start /work/state/claims/run.Train.000000000002.1 -- --exclusive --nodes=1 --ntasks=1 --cpus-per-task=3 --mem=15000M --gres=gpu:1 --job-name=run.Train.000000000002.1 --output=/work/logs/Train/Train-n=2-%j-step-%s-task-%t.out --open-mode=append --kill-on-bad-exit=0 --wait=0 bash -- /work/state/scripts/run.Train.000000000002.1.sh
start /work/state/claims/run.Train.000000000003.1 -- --exclusive --nodes=1 --ntasks=1 --cpus-per-task=3 --mem=15000M --gres=gpu:1 --job-name=run.Train.000000000003.1 --output=/work/logs/Train/Train-n=3-%j-step-%s-task-%t.out --open-mode=append --kill-on-bad-exit=0 --wait=0 bash -- /work/state/scripts/run.Train.000000000003.1.sh

finish

### /work/state/scripts/run.Train.000000000001.1.sh
#!/bin/bash

export SLURM_CPUS_PER_TASK=3 SLURM_MEM_PER_NODE=15000

stopping=
note_end() {
    [ "$2" -gt 128 ] && sleep 2
    # Its success is known, and its files are gone.
    [ "$2" -eq 0 ] && [ ! -e "$1" ] && return
    [ -z "$stopping" ] || return
    for pause in 1 2 4 8 15 30 60 0; do
        aside="$1.end.$HOSTNAME.$$.$RANDOM$RANDOM"
        ( set -C; printf '%s\n' "$SLURM_JOB_ID $2" > "$aside" ) && mv -fT -- "$aside" "$1.end" && break
        rm -f -- "$aside"
        sleep "$pause"
    done
}

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

cd -- /work || exit 1
set -- /env/bin/python -m espo_luigi.job /work/jobs/1.json
trap 'stopping=yes' TERM
trap : USR1 USR2
"$@" &
child=$!
stop_if_closed "$child" > /dev/null 2>&1 &
watch=$!
wait "$child"
code=$?
while kill -0 "$child" 2>/dev/null; do
    wait "$child"
    code=$?
done
kill "$watch" 2>/dev/null
note_end "$claim" "$code"
exit "$code"
