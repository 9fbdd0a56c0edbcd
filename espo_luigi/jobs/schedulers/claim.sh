# shellcheck shell=bash disable=SC2154
# Claims the work of the submission, or ends the job. The header sets `claim`, the path, and `job_id`.
#
# Of all jobs that may ever start under this name, only one works: the job that creates the claim with its id, if the
# driver has not closed the claim before. A job that is started again finds its own id and goes on. The claim is written
# aside and linked, so that it appears whole. On a file system without hard links it is created under its name, and is
# empty for a moment. Of all that create it in either way, one succeeds. While the file system fails, and while a claim
# is empty, the job tries again for four minutes. With `set -C`, bash does not write through a link that somebody has
# put there, and only creates files.
#
# A job that was started again then writes which of its starts works. The earlier start may still run on a node that the
# scheduler lost; it reads this file before it publishes (`espo_luigi.jobs.node.claim`). The last start to write works.
# Each writes a unique text, as not every scheduler numbers restarts. The file is not the claim itself, so that a claim
# that the driver closes meanwhile stays closed.

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
