# shellcheck shell=bash disable=SC2154
# Defines `stop_if_closed PROCESS`, which stops a member of a bundle after the driver has closed its claim.
#
# The member shares its job, which goes on. At each look, every ten seconds, the next step follows: time to end by
# itself, SIGTERM, SIGKILL. Only the command gets the signals: it ends its Dask workers.
# A separate process has to do this, as the member may hang in a way that blocks its own threads.

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
