#pragma once

namespace weir {

// `weir bench step MODEL.onnx [flags]`: seconds, tokens/s, model TFLOP/s and planned bytes of a training step.
int BenchStep(int argc, const char* const* argv);

}  // namespace weir
