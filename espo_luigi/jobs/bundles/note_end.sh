# shellcheck shell=bash disable=SC2034
# Defines `note_end CLAIM EXIT_CODE`, which writes beside the claim how a member of a bundle has ended.
#
# While the whole bundle is being stopped, nothing is written: the scheduler has the cause.

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
