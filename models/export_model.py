"""Exports a Hugging Face MoE model to ONNX for weir.

    python models/export_model.py --model Qwen/Qwen3-30B-A3B --output qwen3.onnx [--experts batched_mm] [--opset 18]

Needs your own torch (2.9+), transformers (5.x), onnx and onnxscript. `batched_mm` experts and `sdpa` attention export with
plain torch.onnx; weir turns every variant into the same graph, so choose whichever your versions can export. The weights
stay beside the model as external data. torch's optimizer stores equal tensors once (all norm gains of a fresh model) and folds
sums of weights and constants (Gemma's norms multiply by 1 + weight): a model that has any is exported without it, so that every
parameter keeps its name and values. Pass the checkpoint's safetensors (or its index) to weir as --names: exporters
transpose and rename weights, and weir finds the original names by value.
"""
import argparse

import torch
from transformers import AutoConfig, AutoModelForCausalLM


class LogitsOnly(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids):
        return self.model(input_ids=input_ids, use_cache=False).logits


def has_equal_parameters(model):
    """Whether two parameters hold the same values: an optimizing exporter would make them one."""
    seen = {}
    for parameter in model.parameters():
        alike = seen.setdefault((parameter.shape, parameter.dtype, *parameter.flatten()[:8].tolist()), [])
        if any(torch.equal(parameter, other) for other in alike):
            return True
        alike.append(parameter)
    return False


def has_folded_vectors(model, program):
    """Whether a vector of the model's is not in the file as it is; matrices the optimizer only transposes."""
    kept = {value.name.removeprefix("model.") for value in program.model.graph.initializers.values()}
    return any(parameter.dim() == 1 and name not in kept for name, parameter in model.named_parameters())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder or hub name")
    parser.add_argument("--output", required=True)
    parser.add_argument("--experts", default="batched_mm", choices=["batched_mm", "grouped_mm", "eager"])
    parser.add_argument("--attention", default="sdpa", choices=["sdpa", "eager"])
    parser.add_argument("--opset", type=int, default=18)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--layers", type=int, help="keep only the first ones, as models/write_reference.py --layers does")
    parser.add_argument("--random", action="store_true", help="random weights from the configuration, nothing downloaded but it")
    parser.add_argument("--checkpoint", help="with --random: folder for the model as transformers saves it, whose model.safetensors (or index) is --names")
    args = parser.parse_args()
    if args.checkpoint and not args.random:
        parser.error("--checkpoint saves what --random draws; a model that was downloaded has one")

    dtype = getattr(torch, args.dtype)
    config = AutoConfig.from_pretrained(args.model)
    if args.layers:
        config.num_hidden_layers = args.layers
    config._attn_implementation = args.attention
    config._experts_implementation = args.experts
    if args.random:
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    else:
        model = AutoModelForCausalLM.from_pretrained(args.model, config=config, dtype=dtype)
    ids = torch.randint(0, config.vocab_size, (2, 16))
    batch, sequence = torch.export.Dim("batch"), torch.export.Dim("sequence")

    def export(optimize):
        return torch.onnx.export(
            LogitsOnly(model).eval(), (ids,), input_names=["input_ids"], output_names=["logits"],
            opset_version=args.opset, dynamo=True, dynamic_shapes={"input_ids": {0: batch, 1: sequence}},
            optimize=optimize)

    program = export(optimize=not has_equal_parameters(model))
    if has_folded_vectors(model, program):
        program = export(optimize=False)
    first = {}  # of tied parameters transformers keeps the first name
    same = {name: first.setdefault(id(p), name) for name, p in model.named_parameters(remove_duplicate=False)}
    for value in list(program.model.graph.initializers.values()):
        name = value.name.removeprefix("model.")  # of LogitsOnly
        value.name = same.get(name, name)
    program.save(args.output, external_data=True)
    if args.checkpoint:
        model.save_pretrained(args.checkpoint)
    print(f"wrote {args.output}; check it with: weir import {args.output}")


if __name__ == "__main__":
    main()
