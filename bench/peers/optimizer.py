"""PyTorch beside `weir bench optimizer --peer bench/peers/optimizer.py`: AdamW with its state in host memory, as PyTorch does it.

    python optimizer.py DEVICE PARAMETERS

Prints "name|seconds", the median of five: adamw, the fused CPU update on all threads; step, with float32 gradients down from the GPU and
bfloat16 weights back up, both through pinned memory (device cuda).
"""
import sys
import time

import torch

device, count = sys.argv[1], int(sys.argv[2])
cuda = device == "cuda"
tensors = [torch.zeros(count // 16).requires_grad_() for _ in range(16)]
gradients = [torch.full_like(t, 1e-3) for t in tensors]
optimizer = torch.optim.AdamW(tensors, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
for t, g in zip(tensors, gradients):
    t.grad = g.pin_memory() if cuda else g
if cuda:
    on_gpu = [torch.full_like(t, 1e-3, device="cuda", requires_grad=False) for t in tensors]
    weights = [torch.empty_like(g, dtype=torch.bfloat16) for g in on_gpu]
    low = [torch.empty(t.shape, dtype=torch.bfloat16).pin_memory() for t in tensors]


def step():
    for t, g in zip(tensors, on_gpu):
        t.grad.copy_(g, non_blocking=True)
    torch.cuda.synchronize()
    optimizer.step()
    for t, l, w in zip(tensors, low, weights):
        l.copy_(t.detach())
        w.copy_(l, non_blocking=True)
    torch.cuda.synchronize()


def median(run, repeats=5):
    run()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return sorted(times)[repeats // 2]


print(f"adamw|{median(optimizer.step)}", flush=True)
if cuda:
    print(f"step|{median(step)}", flush=True)
