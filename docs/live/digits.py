"""Makes digits.npz: the demo's model, trained, for the first page, and the images of chapter 13.

python docs/live/digits.py      a minute; needs the extra `examples`
"""

from pathlib import Path

import numpy as np

from tinygrad_attn.cli.demo import train
from tinygrad_attn.cli.demo.digits import load_split

if __name__ == "__main__":
    split = load_split(0)
    run = train(split, seed=0)
    print(f"{run.accuracies[-1]:.2f} % of unseen images right")
    weights = {name: array.numpy() for name, array in run.model.state_dict().items()}
    images = np.concatenate([split.train_images, split.test_images])
    labels = np.concatenate([split.train_labels, split.test_labels])
    data = {"images": (16 * images).astype(np.uint8), "labels": labels.astype(np.uint8)}
    np.savez_compressed(Path(__file__).with_name("digits.npz"), **weights, **data)
