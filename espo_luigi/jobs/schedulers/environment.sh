# shellcheck shell=bash disable=SC1090,SC2154
# Reads the environment of the submission. The header sets `environment_file`.
#
# While the file system fails, the job tries again for four minutes, as long as for its claim.

for pause in 1 2 4 8 15 30 60 120 0; do [ -r "$environment_file" ] && break; sleep "$pause"; done
. "$environment_file" || exit 1
