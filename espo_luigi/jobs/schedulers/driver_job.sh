# shellcheck shell=bash disable=SC2154
# Runs a driver, and has Slurm queue the job again once the driver was terminated before the end of its run. The header
# sets `note`, a path; `token`, which the note holds as long as this job is the driver; `command`, the driver's command,
# whose first word is Python; and `pause`, the seconds between tries.
#
# Slurm sends SIGTERM to this script some time before the end of the job, and at a preemption. The driver then leaves
# its jobs to the next driver. The job keeps its id, so that its drivers never work at the same time.

told=0
driver=
trap 'told=$((told + 1)); [ -z "$driver" ] || kill -TERM "$driver" 2>/dev/null' TERM
say() { echo "$(date +%T) $*"; }
end() {
    say "$2"
    exit "$1"
}

# Whether the note names this job. While the file system fails, this looks again for four minutes.
is_named() {
    local wait
    for wait in 1 2 4 8 15 30 60 120 0; do
        grep -qF -- "$token" "$note" 2>/dev/null && return 0
        ls -- "${note%/*}" > /dev/null 2>&1 && { [ ! -e "$note" ] || [ -r "$note" ]; } && return 1
        sleep "$wait"
    done
    return 1
}

# Whether the lock of a driver that may be alive is there, such as that of the driver on a node that has died.
is_locked() {
    "${command[0]}" -P -c '
import sys
from pathlib import Path
from espo_luigi.jobs.lock import DriverLock
from espo_luigi.jobs.retry import DRIVERS_PATIENCE_SECONDS, persistently
sys.exit(persistently(DriverLock(Path(sys.argv[1])).holder, DRIVERS_PATIENCE_SECONDS) is None)' "${note%/*}"
}

is_named || end 0 "this driver was stopped, or another one was submitted meanwhile: nothing is done"
if [ "${SLURM_RESTART_COUNT:-0}" != 0 ] && is_locked; then
    say "waiting until the driver that holds ${note%/*}/driver.lock has ended or counts as dead"
    while [ "$told" = 0 ] && is_locked; do
        sleep "$pause" & wait "$!"
    done
    # A driver refreshes its locks in turn, so that they grow too old at slightly different times.
    sleep "$((pause / 2))"
    is_named || end 0 "this driver was stopped while it waited: nothing is done"
fi

code=143
SECONDS=0
if [ "$told" = 0 ]; then
    say "the driver starts: ${command[*]}"
    # With -m, bash leaves the driver its Ctrl-C, by which threads end their work.
    set -m
    "${command[@]}" < /dev/null &
    driver=$!
    set +m
    [ "$told" = 0 ] || kill -TERM "$driver"
    # A signal ends `wait`, but not the driver.
    heard=
    while [ "$heard" != "$told" ]; do
        heard=$told
        wait "$driver"
        code=$?
    done
    driver=
    # Of a driver that ends in the moment of the signal, bash may lose the code, and gives 255.
    [ "$told" = 0 ] || [ "$code" != 255 ] || code=143
fi

short="$note.short"
if [ "$told" = 0 ] || [ "$code" != 143 ]; then
    is_named && rm -f -- "$note" "$short"
    exit "$code"
fi
is_named || end "$code" "this run was stopped: its driver does not start again"
n=0
[ "$SECONDS" -ge 300 ] || n=$(($(cat -- "$short" 2>/dev/null || echo 0) + 1))
if [ "$n" -ge 5 ]; then
    rm -f -- "$note" "$short"
    end "$code" "the driver was terminated $n times in a row within 300 s of its start, and gets nowhere: it does not \
start again. Give it more time (espo submit --time), or another partition"
fi
echo "$n" > "$short"
for _ in 1 2 3 4 5 6; do
    [[ $(scontrol --oneliner show job "$SLURM_JOB_ID") =~ \ JobState=([A-Z_]+) ]] && state=${BASH_REMATCH[1]} || state=
    # After a preemption, Slurm itself queues the job again. After scancel it must not be queued again, but would be.
    case $state in
        RUNNING)
            scontrol requeue "$SLURM_JOB_ID"
            # A requeue ends the job's processes, sometimes scontrol's, too, before it has the answer.
            case $? in 0 | 137 | 143) end "$code" "job $SLURM_JOB_ID is queued again: the next driver goes on" ;; esac
            ;;
        ?*) end "$code" "job $SLURM_JOB_ID is $state: it is left to Slurm" ;;
    esac
    sleep "$pause" & wait "$!"
done
end "$code" "Slurm did not take job $SLURM_JOB_ID back: give the same \`espo submit\` again"
