"""A callback of Transformers' Trainer that saves on notice and acknowledges.

    trainer = transformers.Trainer(..., callbacks=[SaveOnNotice()])
    trainer.train(resume_from_checkpoint=transformers.trainer_utils.get_last_checkpoint(arguments.output_dir))
"""

import transformers

import tidegate


class SaveOnNotice(transformers.TrainerCallback):
    """Has the Trainer save at the end of the step after the job got notice, and acknowledges when it has. Options as for
    `tidegate.on_notice`.
    """

    def __init__(self, **options):
        self._options = options
        self._notices = None
        self._notice = None

    def on_train_begin(self, args, state, control, **_others):
        # In the main thread, before the first notice may come.
        self._notices = tidegate.Notices(**self._options)

    def on_step_end(self, args, state, control, **_others):
        notice = self._notices.notice()
        if notice is not None:
            self._notice = notice
            control.should_save = True

    def on_save(self, args, state, control, **_others):
        # The Trainer calls it on every rank once its checkpoint is written.
        if self._notice is not None:
            notice, self._notice = self._notice, None
            notice.acknowledge(state.global_step)
