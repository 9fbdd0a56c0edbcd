# shellcheck shell=bash disable=SC2034,SC2154
# Defines `start`, which runs a step of a bundle, and `finish`. The header sets `at_once`, the most steps at a time.

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
