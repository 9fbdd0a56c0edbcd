# shellcheck shell=bash disable=SC2154
# Prints the environment of a member's command for the process that runs this script: the pilot's child, which then does
# the member's work.

stop_if_closed "$PPID" > /dev/null 2>&1 &
exec env -0
