"""The update of ``train_step.py`` with transformers and torch, and its memory in one process.

``train_step.py`` imports this for its rounds and starts it on its own for its memory:

    python benchmarks/torch_step.py FOLDER --head full|chunked --steps 2

``FOLDER`` holds ``checkpoint/``, ``rows.npz`` and ``settings.json``, as ``train_step.py`` leaves
them; what comes out is one line of JSON. jax is not imported.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import rss
import torch
from torch.utils.checkpoint import checkpoint as recompute
from torch_model import encode, load


class TorchStep:
    """One model, its AdamW and one batch; each call makes an update.

    Args:
      folder: see the module.
      head: ``"full"``: logits of every position of the padded rows, then the log-probability of
        every next token, of which the actions' are used. ``"chunked"``: hidden states at action
        positions alone, a block of them at a time, whose logits are computed again backwards.
    """

    def __init__(self, folder: Path, head: str):
        self.settings = json.loads((folder / "settings.json").read_text())
        self.head = head
        self.model = load(folder / "checkpoint").train()
        if self.settings["remat"] == "full":
            self.model.activation_checkpointing_enable()
        self.model.model.visual.requires_grad_(False)
        self.trained = [p for p in self.model.parameters() if p.requires_grad]
        fields = self.settings["optimizer"]
        self.optimizer = torch.optim.AdamW(
            self.trained,
            lr=fields["learning_rate"],
            betas=(fields["b1"], fields["b2"]),
            eps=fields["eps"],
            weight_decay=fields["weight_decay"],
            fused=True,
        )
        with np.load(folder / "rows.npz") as rows:
            self.take({name: rows[name] for name in rows.files if name != "frames"})
            # Every rollout's row comes with its prompt's frames, as trainers lay them out.
            self.frames = np.repeat(rows["frames"], self.settings["group"], axis=0)

    def take(self, rows: dict[str, np.ndarray]) -> None:
        """Another batch of the same frames."""
        self.rows = {name: torch.from_numpy(values) for name, values in rows.items()}

    def __call__(self) -> dict[str, float]:
        """Update once; the loss, the mean log-probability of actions and the gradient's norm."""
        self.optimizer.zero_grad(set_to_none=True)
        logp_NA = self.logprobs()
        loss = self.loss(logp_NA)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.trained, self.settings["optimizer"]["clip_norm"])
        self.optimizer.step()
        mask_NA = self.rows["action_mask"]
        return {
            "loss": float(loss.detach()),
            "logp": float(logp_NA.detach()[mask_NA].mean()),
            "grad_norm": float(norm),
        }

    def logprobs(self) -> torch.Tensor:
        """f32 ``[N, A]``, 0 where there is no action."""
        inputs = {
            "input_ids": self.rows["tokens"],
            "attention_mask": self.rows["valid"].long(),
            "position_ids": self.rows["positions"].transpose(0, 1),
            "mm_encoder_outputs": encode(self.model, self.frames),
            "use_cache": False,
        }
        position_NA = self.rows["action_pos"]
        if self.head == "full":
            logits_NTV = self.model(**inputs).logits[:, :-1]
            next_NT = self.rows["tokens"][:, 1:]
            logp_NA = self._selected(logits_NTV, next_NT).gather(1, position_NA)
            return torch.where(self.rows["action_mask"], logp_NA, 0.0)
        hidden_NTD = self.model.model(**inputs)[0]
        index_NAD = position_NA[..., None].expand(-1, -1, hidden_NTD.shape[-1])
        return self._chunked(hidden_NTD.gather(1, index_NAD))

    def _selected(self, logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """log_softmax of ``logits / temperature`` at ids, normalised row by row to save memory."""
        logits = logits.div_(self.settings["temperature"])
        chosen = logits.gather(-1, ids[..., None])[..., 0]
        return chosen - torch.stack([row.logsumexp(-1) for row in logits])

    def _chunked(self, hidden_NAD: torch.Tensor) -> torch.Tensor:
        mask_NA = self.rows["action_mask"]
        hidden_MD = hidden_NAD[mask_NA]
        ids_M = self.rows["action_target"][mask_NA]
        weight, temperature = self.model.lm_head.weight, self.settings["temperature"]

        def block(hidden: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
            logits = hidden @ weight.T / temperature
            return logits.gather(-1, ids[:, None])[:, 0] - logits.logsumexp(-1)

        size = self.settings["positions"]
        parts = [
            recompute(block, hidden, ids, use_reentrant=False)
            for hidden, ids in zip(hidden_MD.split(size), ids_M.split(size), strict=True)
        ]
        logp_NA = torch.zeros(mask_NA.shape)
        return logp_NA.masked_scatter(mask_NA, torch.cat(parts))

    def loss(self, logp_NA: torch.Tensor) -> torch.Tensor:
        """Eq. 6, H.1 and 7 of the TurnWise paper; the old log-probs are the current ones.

        With the reduction ``trajectory_token`` eq. 8, GRPO's, in place of 7.
        """
        clip, mask_NA = self.settings["clip"], self.rows["action_mask"]
        turn_NA = self.rows["turn_id"]
        advantage_NA = self.rows["advantage"].gather(1, turn_NA)
        ratio_NA = (logp_NA - logp_NA.detach()).exp()
        clipped_NA = ratio_NA.clamp(1 - clip["low"], 1 + clip["high"])
        value_NA = torch.minimum(ratio_NA * advantage_NA, clipped_NA * advantage_NA)
        floor_NA = torch.maximum(value_NA, clip["dual"] * advantage_NA)
        value_NA = torch.where(advantage_NA < 0, floor_NA, value_NA)
        if self.settings["reduction"] == "trajectory_token":
            mean_N = (value_NA * mask_NA).sum(1) / mask_NA.sum(1).clamp(min=1)
            return -mean_N.sum() / mask_NA.any(1).sum()
        turns = self.rows["advantage"].shape[1]
        belongs_NAK = (turn_NA[..., None] == torch.arange(turns)) & mask_NA[..., None]
        count_NK = belongs_NAK.sum(1)
        mean_NK = (value_NA[..., None] * belongs_NAK).sum(1) / count_NK.clamp(min=1)
        mean_N = mean_NK.sum(1) / (count_NK > 0).sum(1).clamp(min=1)
        return -mean_N.sum() / mask_NA.any(1).sum()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--head", choices=("full", "chunked"), required=True)
    parser.add_argument("--steps", type=int, default=2)
    args = parser.parse_args()
    print(json.dumps(rss.memory(lambda: TorchStep(args.folder, args.head), args.steps)))


if __name__ == "__main__":
    main()
