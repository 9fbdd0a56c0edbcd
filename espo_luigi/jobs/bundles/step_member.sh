# shellcheck shell=bash disable=SC2034,SC2154
# Runs a member's command, which the header sets as "$@", in a step, and notes its end.
#
# Slurm's signals reach the command without this script, as they go to all processes of a step.

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
