"""Tasks whose blocks are computed by Dask workers in jobs of their own, or on several nodes."""

import logging
import time
from pathlib import Path

import luigi
import numpy as np
from toy_tasks import Count

from espo_luigi import Resources, install
from espo_luigi.store.blocks import HeldStore
from espo_luigi.store.publish import partial_of

install()


def _block(start: int, folder: str, seconds: float) -> np.ndarray:
    """Noise that depends on the block's place only; say which job made it."""
    import os

    logging.getLogger("espo_luigi.user").info("block %d", start)
    (Path(folder) / f"made-{start}.{os.environ.get('SLURM_JOB_ID', '')}.{os.environ.get('SLURM_NODEID', '')}").touch()
    time.sleep(seconds)
    return np.random.default_rng(start).standard_normal(1000)


class SpreadBlocks(Count):
    """Write `n` blocks of numbers into a chunked store, each by the worker that computed it."""

    seconds = luigi.FloatParameter(default=0.5, significant=False)
    resources_default = Resources(n_workers=1, cpus_per_task=1, memory="1GB", time="10")

    file_name = "blocks-{}.zarr"

    def work(self) -> None:
        import dask
        import dask.array

        folder, seconds = str(self.folder), float(self.seconds)
        made = [dask.delayed(_block, pure=True)(start, folder, seconds) for start in range(int(self.n))]
        blocks = dask.array.concatenate([dask.array.from_delayed(one, (1000,), float) for one in made])
        with partial_of(Path(self.output().path)) as partial:
            blocks.to_zarr(HeldStore(partial), zarr_format=3)
