"""PyTorch beside `weir bench gemm|attention|experts|head --device cuda --peer bench/peers/heavy_ops.py`.

    python heavy_ops.py SUBJECT SHAPE...        a shape is its numbers with commas, as weir prints them

bfloat16. Prints "shape|name|seconds" per measurement, the median of ten runs: gemm through addmm, attention through cuDNN, experts
as gather, grouped_mm, SwiGLU and index_add, the head with whole logits in float32.
"""
import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel


def median(run, count=10):
    for _ in range(2):
        run()
    times = []
    for _ in range(count):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e-3)
    return sorted(times)[len(times) // 2]


def normal(*dims, scale=1.0, grad=False):
    return (torch.randn(*dims, device="cuda") * scale).bfloat16().requires_grad_(grad)


def gradients(output, inputs, dy):
    return median(lambda: torch.autograd.grad(output, inputs, dy, retain_graph=True))


def gemm(m, n, k):
    x, w, dy, acc = normal(m, k), normal(n, k), normal(m, n), torch.zeros(n, k, device="cuda")
    yield "forward", median(lambda: x @ w.t())
    yield "weight gradient", median(lambda: acc.add_(dy.t() @ x))


def attention(n, heads, kv_heads, channels):
    q = normal(1, n, heads, channels, grad=True).transpose(1, 2)
    k, v = (normal(1, n, kv_heads, channels, grad=True).transpose(1, 2) for _ in range(2))
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        forward = lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=heads != kv_heads)
        yield "forward", median(forward)
        y = forward()
        yield "backward", gradients(y, (q, k, v), torch.randn_like(y))


def experts(n, e, k, h, i):
    x, ids, weights = normal(n, h, grad=True), torch.randint(0, e, (n, k), device="cuda"), torch.rand(n, k, device="cuda", requires_grad=True)
    gate_up, down = normal(e, 2 * i, h, scale=0.02, grad=True), normal(e, h, i, scale=0.02, grad=True)

    def forward():
        order = ids.flatten().argsort(stable=True)
        ends = torch.bincount(ids.flatten(), minlength=e).cumsum(0).to(torch.int32)
        gate, up = torch._grouped_mm(x[order // k], gate_up.transpose(1, 2), offs=ends).chunk(2, dim=-1)
        rows = torch._grouped_mm(F.silu(gate) * up, down.transpose(1, 2), offs=ends)
        rows = rows * weights.flatten()[order, None].to(rows.dtype)
        return torch.zeros(n, h, device="cuda", dtype=rows.dtype).index_add(0, order // k, rows)

    yield "forward", median(forward)
    y = forward()
    yield "backward", gradients(y, (x, weights, gate_up, down), torch.randn_like(y))


def head(n, h, v):
    x, w, labels = normal(n, h, grad=True), normal(v, h, scale=0.02, grad=True), torch.randint(0, v, (n,), device="cuda")

    def step():
        F.cross_entropy((x @ w.t()).float(), labels).backward()
        x.grad = w.grad = None

    yield "forward and backward", median(step)


for text in sys.argv[2:]:
    for name, seconds in globals()[sys.argv[1]](*map(int, text.split(","))):
        print(f"{text}|{name}|{seconds}", flush=True)
    torch.cuda.empty_cache()
