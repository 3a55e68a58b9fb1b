"""Tests of the callbacks in the examples. That of Transformers runs against the real package if it is installed; of
Lightning, which needs PyTorch, only the base class is there, as a stand-in.

    python3 -m unittest discover -s deploy/clients/python
"""

import importlib.util
import json
import os
import sys
import tempfile
import time
import types
import unittest
import unittest.mock

HAS_TRANSFORMERS = importlib.util.find_spec("transformers") is not None


class Noticed(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.options = {"folder": self.folder, "signal": None, "job": "7", "rank": 0}

    def tell(self):
        told = {"action": "preempt-1", "job": "7", "ready_by_us": int((time.time() + 60) * 1e6)}
        with open(os.path.join(self.folder, "7.notice"), "w") as file:
            json.dump(told, file)

    def ready(self):
        path = os.path.join(self.folder, "7.ready")
        if not os.path.exists(path):
            return None
        with open(path) as file:
            return json.load(file)


class Lightning(Noticed):
    def test_the_trainer_saves_after_the_batch_and_then_it_is_acknowledged(self):
        stand_in = types.ModuleType("lightning"), types.ModuleType("lightning.pytorch")
        stand_in[0].pytorch, stand_in[1].Callback = stand_in[1], object
        modules = dict(zip(("lightning", "lightning.pytorch"), stand_in))
        with unittest.mock.patch.dict(sys.modules, modules):
            import example_lightning
        saved = []

        class Trainer:
            global_step = 12

            def save_checkpoint(trainer, path):
                self.assertIsNone(self.ready())
                saved.append(path)

        callback = example_lightning.SaveOnNotice("notice.ckpt", **self.options)
        callback.on_train_start(Trainer(), None)
        self.tell()
        for batch in range(3):
            callback.on_train_batch_end(Trainer(), None, None, None, batch)
        self.assertEqual(saved, ["notice.ckpt"])
        self.assertEqual(self.ready(), {"action": "preempt-1", "saved_step": 12})


@unittest.skipUnless(HAS_TRANSFORMERS, "transformers is not installed")
class Transformers(Noticed):
    def test_the_trainer_is_asked_to_save_and_then_it_is_acknowledged(self):
        import example_transformers
        from transformers.trainer_callback import CallbackHandler, DefaultFlowCallback, TrainerControl, TrainerState

        arguments = types.SimpleNamespace(
            logging_strategy="no", eval_strategy="no", save_strategy="no", logging_first_step=False, logging_steps=0,
        )
        control, state = TrainerControl(), TrainerState(max_steps=100)
        state.compute_steps = lambda *_: None
        callbacks = [DefaultFlowCallback, example_transformers.SaveOnNotice(**self.options)]
        handler = CallbackHandler(callbacks, None, None, None, None)
        control = handler.on_train_begin(arguments, state, control)
        for state.global_step in (1, 2, 3):
            if state.global_step == 2:
                self.tell()
                callbacks[1]._notices._look_at = 0
            control = handler.on_step_begin(arguments, state, control)
            control = handler.on_step_end(arguments, state, control)
            self.assertEqual(control.should_save, state.global_step == 2)
            if control.should_save:
                self.assertIsNone(self.ready())
                control = handler.on_save(arguments, state, control)
        self.assertEqual(self.ready(), {"action": "preempt-1", "saved_step": 2})


if __name__ == "__main__":
    unittest.main()
