#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "optim/checkpoint_index.h"
#include "optim/training_session.h"

namespace weir {

// What a new run begins with instead of the model's own weights.
struct InitialLoadOptions {
  std::filesystem::path path;  // a run's folder (its newest readable checkpoint), one checkpoint's folder, or a weights file (safetensors)
  bool model_only = false;     // weights alone, though there are moments
};

// Fills the session from there, whatever layout wrote it: parameters by name, and, from a checkpoint, AdamW's moments. nullptr: only
// looks whether that fits `canonical`, the model that the session is of. Every rank calls it and all agree. Adds lines to `notices`.
// Throws InvalidArgument naming what lacks or has another shape, and what is frozen here and was trained to other values there;
// IoError when nothing can be read: the session's values are then anyone's.
RunOrigin LoadInitial(const Graph& canonical, const InitialLoadOptions& options, TrainingSession* session,
                      std::vector<std::string>& notices);

// "step 300 of 'a/checkpoints/step-000000300': weights and moments after 300 updates"
std::string ToText(const RunOrigin& origin);

}  // namespace weir
