#include "cli/graph_options.h"

namespace weir {

po::options_description GraphOptions(TrainingOptions& training) {
  po::options_description group("Training graph");
  group.add_options()
      ("precision", po::value<std::string>(&training.precision)->default_value(training.precision),
       "of compute: float32, or bfloat16 with float32 masters, accumulators and moments (--device cuda)")
      ("strip", po::value<int64_t>(&training.strip)->default_value(training.strip),
       "columns of logits alive at a time, loss and head gradients formed strip by strip, same bits; 0 = off")
      ("recompute", po::value<std::string>(&training.recompute)->default_value(training.recompute),
       "none, or layer: backward computes a layer's activations again from the layer's input, same bits")
      ("keep", po::value<std::string>(&training.keep)->default_value(training.keep),
       "with --recompute layer: attention keeps what attention made, the dearest to compute again; none");
  return group;
}

}  // namespace weir
