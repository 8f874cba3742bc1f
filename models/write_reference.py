"""Writes the reference file that `weir verify MODEL.onnx --reference FILE` compares with.

    python models/write_reference.py --model DIR_OR_HUB_NAME --output reference.safetensors [--batch 2 --sequence 17] [--token-weights]

Needs your own torch, transformers and safetensors. Runs the model once in float32 on random ids and stores, under the
framework's names: input_ids, labels (already next-token, -100 in the last place), logits, loss (mean cross-entropy over
valid labels; with --token-weights also weights, 0 to 2, and the loss is sum(weight * loss) / sum(weight)), parameter.* as it was,
grad.* of every parameter, and adamw.* = each parameter after one AdamW step from those gradients. Names are those of PyTorch's
modules; checkpoints may have others (experts one by one): weir finds them by the values of parameter.*, so that any --names, or none,
verifies. For models larger than memory allows, lower --layers.
"""
import argparse

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder or hub name")
    parser.add_argument("--output", required=True)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--sequence", type=int, default=17)
    parser.add_argument("--layers", type=int, help="keep only the first N layers")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--token-weights", action="store_true", help="weigh the labels")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    config = AutoConfig.from_pretrained(args.model)
    if args.layers:
        config.num_hidden_layers = args.layers
    model = AutoModelForCausalLM.from_pretrained(args.model, config=config, dtype=torch.float32).eval()
    ids = torch.randint(0, config.vocab_size, (args.batch, args.sequence))
    labels = torch.cat([ids[:, 1:], torch.full((args.batch, 1), -100)], dim=1)

    logits = model(input_ids=ids, use_cache=False).logits
    tensors = {"input_ids": ids, "labels": labels, "logits": logits.detach()}
    if args.token_weights:
        tensors["weights"] = torch.randint(0, 9, labels.shape) / 4.0
        each = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="none")
        weights = tensors["weights"].flatten() * (labels.flatten() != -100)
        loss = (weights * each).sum() / weights.sum()
    else:
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
    loss.backward()
    tensors["loss"] = loss.detach().reshape(1)
    named = [(name, p) for name, p in model.named_parameters() if p.grad is not None]
    for name, parameter in named:
        tensors["parameter." + name] = parameter.detach().clone()
        tensors["grad." + name] = parameter.grad.clone()
    optimizer = torch.optim.AdamW([p for _, p in named], lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    optimizer.step()
    for name, parameter in named:
        tensors["adamw." + name] = parameter.detach()
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(tensors, args.output, metadata={"adamw": "lr=1e-3 betas=.9/.95 eps=1e-8 wd=0.1 step=1"})
    print(f"wrote {args.output}: {len(tensors)} tensors, loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
