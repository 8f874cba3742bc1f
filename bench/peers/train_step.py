"""PyTorch training steps of an olmoe-shaped model: the peer of `weir train --device cuda --precision bfloat16 [--ranks N]`.

    python train_step.py --layers 16 --tokens 8192 [--checkpoint]
    torchrun --nproc_per_node 2 train_step.py --tokens 65536 --checkpoint [--offload]    (a sequence of its own per rank)

bfloat16 compute under FSDP2's mixed precision (float32 master weights and gradients), grouped_mm experts, cuDNN attention, loss in
chunks of 8192 rows, fused AdamW (--offload: parameters and state in pinned host memory, updated there). Rank 0 prints one JSON
line: seconds of the fastest step, tokens/s of all ranks, model TFLOP/s per GPU, peak bytes of its GPU.
Model FLOP = 6 * active parameters * tokens + 6 * layers * tokens^2 * heads * head_dim (causal half), no recompute.
"""
import argparse
import json
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint
from transformers import OlmoeConfig, OlmoeForCausalLM

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--layers", type=int, default=16)
parser.add_argument("--tokens", type=int, default=8192)
parser.add_argument("--steps", type=int, default=4)
parser.add_argument("--checkpoint", action="store_true", help="recompute each layer in the backward pass")
parser.add_argument("--offload", action="store_true", help="parameters and optimizer state in host memory")
args = parser.parse_args()

for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511", "RANK": "0", "WORLD_SIZE": "1"}.items():
    os.environ.setdefault(name, value)
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
dist.init_process_group("cpu:gloo,cuda:nccl" if args.offload else "nccl")
torch.manual_seed(rank)
torch.backends.cuda.enable_flash_sdp(False)
torch.backends.cuda.enable_mem_efficient_sdp(False)
torch.backends.cuda.enable_cudnn_sdp(True)

config = OlmoeConfig(vocab_size=50304, hidden_size=2048, intermediate_size=1024, num_hidden_layers=args.layers,
                     num_attention_heads=16, num_key_value_heads=16, num_experts=64, num_experts_per_tok=8,
                     max_position_embeddings=2 * 1024 * 1024, output_router_logits=False)
config._attn_implementation = "sdpa"


class Head(torch.nn.Module):
    """Summed loss over chunks of 8192 rows; with --checkpoint the logits of one chunk live at a time."""

    def __init__(self, linear):
        super().__init__()
        self.linear = linear

    def forward(self, hidden, labels):
        def chunk(h, y):
            return F.cross_entropy((h @ self.linear.weight.t()).float(), y, reduction="sum")

        total = hidden.new_zeros((), dtype=torch.float32)
        for h, y in zip(hidden.split(8192), labels.split(8192)):
            total = total + (checkpoint(chunk, h, y, use_reentrant=False) if args.checkpoint else chunk(h, y))
        return total


with torch.device("meta"):
    model = OlmoeForCausalLM(config)
model.set_experts_implementation("grouped_mm")
body, head = model.model, Head(model.lm_head)
policy = dict(mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
if args.offload:
    policy["offload_policy"] = CPUOffloadPolicy(pin_memory=True)
for layer in body.layers:
    if args.checkpoint:
        forward = layer.forward
        layer.forward = (lambda f: lambda *a, **k: checkpoint(f, *a, use_reentrant=False, **k))(forward)
    fully_shard(layer, **policy)
fully_shard(body, **policy)
fully_shard(head, **policy)
for part in (body, head):
    part.to_empty(device="cpu" if args.offload else "cuda")
parameters = [*body.parameters(), *head.parameters()]
with torch.no_grad():
    for parameter in parameters:
        local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        local.fill_(1.0) if local.ndim == 1 else local.normal_(0, 0.02)
inverse = 1.0 / (10000 ** (torch.arange(0, 128, 2, device="cuda").float() / 128))
body.rotary_emb.inv_freq = body.rotary_emb.original_inv_freq = inverse
optimizer = torch.optim.AdamW(parameters, lr=1e-5, fused=True)


def step(ids, labels):
    hidden = body(input_ids=ids, use_cache=False).last_hidden_state[0]
    loss = head(hidden, labels) / hidden.shape[0]
    loss.backward()
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return loss


tokens = args.tokens
ids = torch.randint(0, 50304, (1, tokens), device="cuda")
labels = torch.randint(0, 50304, (tokens,), device="cuda")
seconds = []
for _ in range(args.steps):
    torch.cuda.synchronize()
    dist.barrier()
    torch.cuda.reset_peak_memory_stats()
    start = time.time()
    loss = step(ids, labels)
    torch.cuda.synchronize()
    seconds.append(time.time() - start)
best = min(seconds[1:])
per_layer = 4 * 2048 * 2048 + 64 * 2048 + 8 * 3 * 2048 * 1024
active = args.layers * per_layer + 50304 * 2048
flop = 6 * active * tokens + 6 * args.layers * tokens * tokens * 2048
if rank == 0:
    print(json.dumps({"peer": "pytorch " + torch.__version__, "ranks": world, "tokens": tokens, "layers": args.layers,
                      "loss": round(loss.item(), 4), "seconds": round(best, 4), "tokens_per_s": round(world * tokens / best),
                      "model_tflops": round(flop / best / 1e12, 1), "peak_bytes": torch.cuda.max_memory_allocated(),
                      "checkpoint": args.checkpoint, "offload": args.offload}))
dist.destroy_process_group()
