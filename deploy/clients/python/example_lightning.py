"""A callback of Lightning that saves on notice and acknowledges.

    trainer = lightning.Trainer(callbacks=[SaveOnNotice("checkpoints/notice.ckpt")], plugins=[no_requeue])
    trainer.fit(model, data, ckpt_path=path if os.path.exists(path) else None)

Where Lightning sees Slurm it takes SIGUSR1 itself and requeues the job. Here the autopilot requeues it, so turn that off:

    no_requeue = lightning.pytorch.plugins.environments.SLURMEnvironment(auto_requeue=False)
"""

import lightning.pytorch

import tidegate


class SaveOnNotice(lightning.pytorch.Callback):
    """Saves at the end of the batch after the job got notice. Options as for `tidegate.on_notice`."""

    def __init__(self, path, **options):
        self._path = path
        self._options = options
        self._notices = None

    def on_train_start(self, trainer, module):
        # In the main thread, before the first notice may come.
        self._notices = tidegate.Notices(**self._options)

    def on_train_batch_end(self, trainer, module, *_batch):
        # All ranks save together, and return when the checkpoint is complete.
        self._notices.check(lambda notice: trainer.save_checkpoint(self._path), trainer.global_step)
