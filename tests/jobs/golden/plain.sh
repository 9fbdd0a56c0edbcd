#!/bin/bash
#SBATCH --job-name=espo6.Adjust.0123456789ab.1
#SBATCH --output=slurm_logs/Adjust/Adjust-region=south_nodup,var=tasmax-%j.out
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --chdir=/work
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=15
#SBATCH --mem=61440M
#SBATCH --time=60

claim=/work/state/claims/espo6.Adjust.0123456789ab.1
( set -o noclobber; printf '%s\n' "$SLURM_JOB_ID" > "$claim" ) 2>/dev/null
[ -s "$claim" ] || sleep 2
if ! owner=$(cat -- "$claim"); then
    echo "Cannot write $claim: nothing is done, as another job might do the same work." >&2
    exit 1
fi
if [ -n "$owner" ] && [ "$owner" != "$SLURM_JOB_ID" ]; then
    echo "This work belongs to '$owner': job $SLURM_JOB_ID does nothing." >&2
    exit 0
fi

if [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ]; then
    start="$claim.start"
    printf '%s\n' "$SLURM_RESTART_COUNT" > "$start-$SLURM_RESTART_COUNT" && mv -f -- "$start-$SLURM_RESTART_COUNT" "$start" || exit 1
fi

export ESPO_JOB_NAME=espo6.Adjust.0123456789ab.1
export ESPO_ATTEMPT=1
export ESPO_CLAIM=/work/state/claims/espo6.Adjust.0123456789ab.1

cd -- /work || exit 1
exec /env/bin/python -m espo_luigi.job /work/jobs/adjust.json
