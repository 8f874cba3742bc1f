"""Turns what bench/paper_tables.sh measured into JSON and Markdown beside the paper's figures (arXiv 2609.14306).

    python3 paper_tables.py SECTION RANKS DEVICE LINES.jsonl OUT     writes OUT.json and OUT.md
"""
import datetime
import json
import sys

PAPER = {
    "dispatch": "8 H200, 65k tokens a rank, H 7168, top 8, K 10, forward: LLEP 177.8 ms, 52.7 GiB; pipelined 161.0 ms, 21.4 GiB; "
                "skewed 177-185 ms, 22.8 GiB; plain EP runs out of memory.",
    "head": "P = 8 H200, H 7168, V 200,000, float32: N 16,384 42.46 GiB, 1001 ms whole, 7.32 GiB, 1052 ms streamed; "
            "N 32,768 79.52 GiB, 2065 ms whole, 10.62 GiB, 2156 ms streamed.",
    "sco": "gpt-oss-20b on 8 H200, host budget off / 8 / 16 GiB / all: 139.8 / 133.5 / 125.7 / 123.7 GiB; 26.34 to 25.88 s a step.",
    "optimizer": "gpt-oss-20b on 8 H200: CPU AdamW 3.95 s, streamed 1.93 s with 4.2 GiB of staging.",
    "long_context": "128k to 1M tokens, 120B / 241B / 667B on 16 / 32 / 64 H200: 1355 to 642, 866 to 314, 316 to 124 tokens/s a GPU, 91-110 to "
                    "213-233 TFLOP/s. Beyond the paper: Qwen3-30B-A3B at 1M tokens on 8 H100, 483 s a step, 341 model TFLOP/s a GPU.",
}
GIB = 2.0**30


def gib(value):
    return f"{value / GIB:.2f}"


def ms(row, key):
    return f"{row[key]:.1f}" if key in row else "no room"


def dispatch(runs):
    yield ("routes", "run", "forward ms", "forward + backward ms", "GiB forward", "GiB backward", "GiB sent", "max/mean rows", "chunks", "lent")
    for run in runs:
        percent, _, experts = run["name"].partition(":")
        routes = "balanced" if percent == "0" else f"{percent} % to {experts}"
        for row in run["result"]["results"]:
            yield (routes, row["name"], ms(row, "forward_ms"), ms(row, "both_ms"), gib(row["forward_workspace"]), gib(row["backward_workspace"]),
                   gib(row.get("both_sent_bytes", row.get("forward_sent_bytes", 0))), f"{row.get('load', 0):.2f}", row.get("chunks", ""),
                   row.get("borrowed", ""))


def head(runs):
    yield ("tokens a rank", "precision", "head", "forward + backward ms", "TFLOP/s (6NHV)", "GiB planned", "GiB over inputs and results", "GiB received")
    for run in runs:
        tokens, precision = run["name"].split()
        for row in run["result"]["results"]:
            time = row["failure"] or f"{row['ms']:.1f}"
            yield (tokens, precision, row["variant"], time, f"{row['tflops']:.0f}", gib(row["planned_bytes"]), gib(row["bytes_above"]),
                   gib(row["received_bytes"]))


def steps(runs, what):
    yield (what, "s a step", "tokens/s", "model TFLOP/s a GPU", "GiB planned a GPU")
    for run in runs:
        row = run["result"]
        if "share_of_step" in row:  # weir bench checkpoint: products alone, no model
            yield (f"{run['name']}, {100 * row['share_of_step']:.2f} % over kept", f"{row['ms'] * 1e-3:.3f}", "", f"{row['tflops']:.1f}", gib(row["planned_bytes"]))
            continue
        yield (run["name"], f"{row['seconds']:.3f}", f"{row['tokens_per_s']:.0f}", f"{row['model_tflops']:.1f}", gib(row["arena_bytes"]))


def optimizer(runs, source):
    """The update's spans of the last step's trace, from its first launch to its last end."""
    yield ("bucket (0 = moments on the GPU)", "s of the update", "s a step", "GiB planned a GPU")
    for run in runs:
        bucket = run["name"].split()[1]
        if "floor_ms" in run["result"]:  # weir bench optimizer: no model
            row = run["result"]
            yield (f"{bucket}, {row['parameters']} parameters alone", f"{row['ms'] * 1e-3:.3f}, {row.get('of_floor', 0):.2f} of its copies", "",
                   gib(row["planned_bytes"]))
            continue
        with open(f"{source}.{bucket}", encoding="utf-8") as file:
            spans = [e for e in json.load(file)["traceEvents"] if e["ph"] == "X" and e["tid"] == 4]
        seconds = (max(e["ts"] + e["dur"] for e in spans) - min(e["ts"] for e in spans)) * 1e-6
        row = run["result"]
        yield (bucket, f"{seconds:.3f}", f"{row['seconds']:.3f}", gib(row["arena_bytes"]))


TABLES = {
    "dispatch": lambda runs, source: dispatch(runs),
    "head": lambda runs, source: head(runs),
    "sco": lambda runs, source: steps(runs, "host budget"),
    "optimizer": optimizer,
    "long_context": lambda runs, source: steps(runs, "tokens"),
}


def markdown(section, ranks, device, runs, source):
    good = [run for run in runs if "result" in run]
    rows = list(TABLES[section](good, source))
    lines = [f"# {section} on {ranks} ranks of {device}, {datetime.date.today()}", "", f"Paper (arXiv 2609.14306): {PAPER[section]}", ""]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    lines.insert(5, "|" + "---|" * len(rows[0]))
    failed = [run for run in runs if "failed" in run]
    lines += [""] + [f"- {run['name']}: {run['failed']}" for run in failed]
    lines += ["", "Commands:"] + [f"- `{run['command']}`" for run in runs]
    return "\n".join(lines) + "\n"


def main():
    section, ranks, device, source, out = sys.argv[1:]
    with open(source, encoding="utf-8") as file:
        runs = [json.loads(line) for line in file]
    with open(out + ".json", "w", encoding="utf-8") as file:
        json.dump({"section": section, "ranks": int(ranks), "device": device, "paper": PAPER[section], "runs": runs}, file, indent=1)
    text = markdown(section, ranks, device, runs, source)
    with open(out + ".md", "w", encoding="utf-8") as file:
        file.write(text)
    print(text)


main()
