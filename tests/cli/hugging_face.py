"""Takes tiny Hugging Face checkpoints, experts stored one by one, through the guides: export, verify, train with frozen tensors, back.

    python hugging_face.py WEIR REPOSITORY FOLDER
"""
import os
import pathlib
import subprocess
import sys

import onnxruntime
import torch
import transformers
from safetensors.torch import load_file

weir, root, folder = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
SMALL = dict(vocab_size=307, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
             num_experts_per_tok=2, tie_word_embeddings=False, pad_token_id=None, bos_token_id=0, eos_token_id=1)
FAMILIES = {
    # A bias that only selects experts, and no parameter of PyTorch's; names of experts as in the module.
    "glm4_moe": dict(n_routed_experts=6, intermediate_size=48, moe_intermediate_size=24, first_k_dense_replace=1, n_shared_experts=1,
                     n_group=1, topk_group=1, head_dim=16, partial_rotary_factor=0.5),
    # Experts are w1, w2, w3 of block_sparse_moe in the files alone.
    "mixtral": dict(num_local_experts=4, intermediate_size=48),
}


def run(*words, cwd=None, **environment):
    done = subprocess.run([str(w) for w in words], cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          env={**os.environ, **environment})
    assert done.returncode == 0, f"{words}:\n{done.stdout}"


def make_checkpoint(family, target):
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(family, **SMALL, **FAMILIES[family]))
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if tensor.dim() == 1 and "inv_freq" not in name:  # norms and biases
                tensor += 0.1 * torch.randn_like(tensor)
    model.save_pretrained(target)


def guide_block():
    text = (root / "docs/guides/fine_tune.md").read_text()
    return next(b for b in text.split("```sh python\n")[1:] if "from_pretrained" in b).split("```")[0]


def check(family):
    work = folder / family
    checkpoint, model, names = work / "checkpoint", work / "model.onnx", work / "checkpoint/model.safetensors"
    make_checkpoint(family, checkpoint)
    run(sys.executable, root / "models/export_model.py", "--model", checkpoint, "--output", model)
    run(sys.executable, root / "models/write_reference.py", "--model", checkpoint, "--output", work / "reference.safetensors")
    run(weir, "verify", model, "--names", names, "--reference", work / "reference.safetensors")

    (work / "data.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 200)
    run(weir, "train", model, "--names", names, "--freeze", "*embed_tokens*", "--freeze", "*q_proj*", "--data", work / "data.txt",
        "--out", work / "tuned", "--steps", 5, "--sequence", 32, "--micro-batch", 2, "--learning-rate", "1e-2")
    before, after = load_file(names), load_file(work / "tuned/weights.safetensors")
    assert set(before) == set(after), set(before) ^ set(after)
    frozen = {name for name in before if torch.equal(before[name], after[name])}
    assert "model.embed_tokens.weight" in frozen and "lm_head.weight" not in frozen, frozen
    assert all(name in frozen for name in before if name.endswith("e_score_correction_bias")), frozen

    run(weir, "export", model, "--names", names, "--weights", work / "tuned/weights.safetensors", "-o", work / "tuned.onnx")
    run("bash", "-euc", guide_block(), cwd=work, PATH=f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}")
    ids = torch.randint(0, 307, (2, 17))
    session = onnxruntime.InferenceSession(work / "tuned.onnx")
    ours = torch.from_numpy(session.run(["logits"], {"input_ids": ids.numpy()})[0])
    with torch.no_grad():
        theirs = transformers.AutoModelForCausalLM.from_pretrained(work / "tuned_hf")(input_ids=ids).logits
        first = transformers.AutoModelForCausalLM.from_pretrained(checkpoint)(input_ids=ids).logits
    assert (ours - theirs).abs().max() < 2e-5, (ours - theirs).abs().max()
    assert (first - theirs).abs().max() > 1e-2, "training changed nothing, so the comparison proves nothing"
    print(f"{family}: {len(after)} tensors, {len(frozen)} frozen, logits within {(ours - theirs).abs().max():.1e}")


for family in FAMILIES:
    check(family)
