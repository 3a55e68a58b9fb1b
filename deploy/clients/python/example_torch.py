"""A training loop in PyTorch that reports its steps, saves on notice and goes on from its checkpoint. It runs on a CPU in
seconds.

    python3 example_torch.py --steps 20
    sbatch --comment=tidegate:preemptible,notice --requeue --wrap="srun python3 example_torch.py --checkpoint run.pt"
"""

import argparse
import os

import torch

import tidegate

BATCH, CONTEXT, WIDTH, LAYERS, VOCABULARY = 8, 64, 64, 2, 256


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(VOCABULARY, WIDTH)
        layer = torch.nn.TransformerEncoderLayer(WIDTH, nhead=4, dim_feedforward=4 * WIDTH, batch_first=True)
        self.layers = torch.nn.TransformerEncoder(layer, LAYERS)
        self.head = torch.nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        return self.head(self.layers(self.embed(tokens)))


def batches():
    while True:
        yield torch.randint(VOCABULARY, (BATCH, CONTEXT + 1))


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--steps", type=int, default=100)
    arguments.add_argument("--checkpoint", default="checkpoint.pt")
    arguments = arguments.parse_args()
    steps, checkpoint = arguments.steps, arguments.checkpoint

    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = BATCH * CONTEXT
    # PaLM's convention: 6 N + 12 L H Q T operations a token (arXiv 2204.02311, appendix B); H Q is the width.
    weights = sum(weight.numel() for weight in model.parameters())
    model_flops = tokens * (6 * weights + 12 * LAYERS * WIDTH * CONTEXT)
    tidegate.configure(tokens=tokens, model_flops=model_flops, flops_convention="palm", precision="fp32")

    first = 0
    if os.path.exists(checkpoint):
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"] + 1

    @tidegate.on_notice
    def save(notice):
        # Called between steps. With replicas only the first rank writes; shards are written by all.
        if int(os.environ.get("RANK", 0)) == 0:
            state = {"step": n, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, checkpoint + ".new")
            os.replace(checkpoint + ".new", checkpoint)

    loader = batches()
    for n in range(first, steps):
        with tidegate.step_timer(n) as t:
            with t.data_wait():
                batch = next(loader)
            with t.compute():
                logits = model(batch[:, :-1])
                loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            if n % 10 == 0:
                # Reading the loss waits for the device, so not in each step.
                t.set(loss=loss.item())
        tidegate.check_notice(n)
    tidegate.flush()
    print(tidegate.stats())


if __name__ == "__main__":
    main()
